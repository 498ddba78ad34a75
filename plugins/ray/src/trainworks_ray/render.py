"""The writer of requests to Ray's Jobs interface, and of the archives that they refer to."""

from __future__ import annotations

import hashlib
import io
import json
import os
import re
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trainworks.config.command import split_mig
from trainworks.errors import UsageError
from trainworks.jobs.formats.manifest import dns_name
from trainworks.jobs.formats.shell import check_exportable, node_program
from trainworks.jobs.job_spec import JobSpec, NodeResources
from trainworks.jobs.program import Program
from trainworks.record.run_dir import RunDir
from trainworks_ray import gang
from trainworks_ray.options import RayOptions

__all__ = [
    "archive",
    "attempt_of",
    "gang_of",
    "id_prefix",
    "package_of_folder",
    "package_of_gang",
    "request_of",
]

PACKAGE = "trainworks_gang"
_SET_BY_THE_GANG = frozenset(("MASTER_PORT",))
_DRIVER_ENDS_S = 20.0
"""Time after the grace of the nodes, to print their last lines and report how they ended."""
_SKIPPED = frozenset((".git", "__pycache__", ".venv", ".mypy_cache", ".pytest_cache", ".ruff_cache", "node_modules"))
_LARGEST_BYTES = 100 * 2**20
"""Default size limit of Ray, which keeps packages in the memory of its head node."""
_OLDEST = (1980, 1, 1, 0, 0, 0)


def id_prefix(run_dir: RunDir) -> str:
    """Prefix of this run's submission ids; the folder makes it unique, as run ids repeat."""
    folder = hashlib.sha256(str(run_dir.path.absolute()).encode()).hexdigest()[:12]
    return f"{dns_name(run_dir.run_id)}-{folder}"


def gang_of(spec: JobSpec, program: Program, options: RayOptions) -> dict[str, Any]:
    """Description of the job for the driver, without the submission id.

    Raises:
        UsageError: the program needs a launcher that Ray's nodes do not have.
    """
    check_exportable(program, "a Ray job")
    return {
        "nodes": spec.max_nodes,
        "bundle": _bundle(spec.node, options),
        "text": node_program(program, spec, addresses=None, known=_SET_BY_THE_GANG),
        "envs": {name: value for name, value in program.envs.items() if value is not None},
        "envs_of_node": [name for name, value in program.envs.items() if value is None],
        "grace_s": spec.grace_s,
        "time_limit_s": spec.time_limit_s,
        "max_restarts": spec.max_restarts,
    }


def _bundle(node: NodeResources, options: RayOptions) -> dict[str, float]:
    """Resources of one node in Ray's names; an accelerator type is a resource, requested with a tiny amount."""
    if split_mig(node.accelerator or "")[1]:
        hint = "request whole accelerators, or a resource that your nodes offer with `cluster.ray.resources`"
        raise UsageError(f"a Ray job has no parts by MIG, got `{node.accelerator}`", hint=hint)
    resources: dict[str, float] = {"CPU": node.cores or 1.0}
    if node.accelerators:
        resources["GPU"] = float(node.accelerators)
    if node.accelerators and node.accelerator:
        resources[f"accelerator_type:{node.accelerator.upper()}"] = 0.001
    if node.memory_bytes:
        resources["memory"] = float(node.memory_bytes)
    return resources | options.resources


def request_of(
    name: str, spec: JobSpec, options: RayOptions, *, modules: str, working_dir: str | None, arguments: str = ""
) -> dict[str, Any]:
    """Body of `POST /api/jobs/`.

    Args:
        name: submission id.
        spec: the job.
        options: the run file's `cluster.ray`.
        modules: URI of the archive with the driver.
        working_dir: URI of the archive with the user's folder.
        arguments: arguments of the driver.
    """
    wait_s = str(round(spec.grace_s + _DRIVER_ENDS_S))
    env: dict[str, Any] = {"py_modules": [modules], "env_vars": {"RAY_JOB_STOP_WAIT_TIME_S": wait_s}}
    return {
        "entrypoint": f"{options.python} -m {PACKAGE} {arguments}".rstrip(),
        "submission_id": name,
        "runtime_env": env | ({"working_dir": working_dir} if working_dir else {}),
        "metadata": {"trainworks_run": spec.run_id},
    }


def package_of_gang(description: Mapping[str, Any]) -> tuple[str, bytes]:
    """Name and content of the archive with the driver and its description of the job."""
    source = Path(gang.__file__).read_bytes()
    content = json.dumps(description, indent=1, sort_keys=True).encode()
    files = {f"{PACKAGE}/__init__.py": b"", f"{PACKAGE}/__main__.py": source, f"{PACKAGE}/gang.json": content}
    return archive(files)


def package_of_folder(folder: Path) -> tuple[str, bytes]:
    """Name and content of an archive with the user's folder.

    Raises:
        UsageError: the folder does not exist, or is too large.
    """
    if not folder.is_dir():
        hint = "set it to a folder on this machine, which is uploaded to the nodes"
        raise UsageError(f"`workdir` `{folder}` does not exist", hint=hint)
    files: dict[str, bytes] = {}
    size = 0
    for parent, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if name not in _SKIPPED)
        for path in (Path(parent, name) for name in sorted(names)):
            if not path.is_file():
                continue
            size += path.stat().st_size
            if size > _LARGEST_BYTES:
                hint = "keep only the program in `workdir`, and data and checkpoints elsewhere"
                raise UsageError(f"`workdir` `{folder}` is larger than {_LARGEST_BYTES >> 20} MiB", hint=hint)
            files[path.relative_to(folder).as_posix()] = path.read_bytes()
    executable = frozenset(name for name in files if os.access(folder / name, os.X_OK))
    return archive(files, executable)


def archive(files: Mapping[str, bytes], executable: frozenset[str] = frozenset()) -> tuple[str, bytes]:
    """Reproducible zip archive of files, and its name at Ray, which contains a hash of the content."""
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", zipfile.ZIP_DEFLATED) as file:
        for name, data in sorted(files.items()):
            entry = zipfile.ZipInfo(name, date_time=_OLDEST)
            entry.external_attr = (0o755 if name in executable else 0o644) << 16
            entry.compress_type = zipfile.ZIP_DEFLATED
            file.writestr(entry, data)
    digest = hashlib.sha256(content.getvalue()).hexdigest()[:24]
    return f"_ray_pkg_{digest}.zip", content.getvalue()


def attempt_of(name: str, prefix: str) -> int | None:
    """Submission number in the id of a job; None for a job of another run."""
    match = re.fullmatch(rf"{re.escape(prefix)}-(\d+)", name)
    return int(match[1]) if match else None
