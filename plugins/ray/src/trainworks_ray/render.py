"""A job as a request to Ray's Jobs interface, and the archives that go with it."""

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
    "mark_of",
    "package_of_folder",
    "package_of_gang",
    "request_of",
]

PACKAGE = "trainworks_gang"
_SET_BY_THE_GANG = frozenset(("MASTER_PORT",))
_DRIVER_ENDS_S = 20.0
"""Beyond the grace of the nodes: to print their last lines, and to say how they ended."""
_LEFT_OUT = frozenset((".git", "__pycache__", ".venv", ".mypy_cache", ".pytest_cache", ".ruff_cache", "node_modules"))
_LARGEST_BYTES = 100 * 2**20
"""Ray keeps packages in the memory of its head node, and takes no larger ones unless it is told to."""
_OLDEST = (1980, 1, 1, 0, 0, 0)


def mark_of(run_dir: RunDir) -> str:
    """How the ids of this run's jobs begin. Run ids repeat, folders do not."""
    folder = hashlib.sha256(str(run_dir.path.absolute()).encode()).hexdigest()[:12]
    return f"{dns_name(run_dir.run_id)}-{folder}"


def gang_of(spec: JobSpec, program: Program, options: RayOptions) -> dict[str, Any]:
    """What the driver is told, without the job's id.

    Raises:
        UsageError: the program needs a launcher that Ray's nodes do not have.
    """
    check_exportable(program, "a job of Ray")
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
    """Resources of one node in Ray's words; a kind of accelerator is a resource of which a thousandth is enough."""
    wanted: dict[str, float] = {"CPU": node.cores or 1.0}
    if node.accelerators:
        wanted["GPU"] = float(node.accelerators)
    if node.accelerators and node.accelerator:
        wanted[f"accelerator_type:{node.accelerator.upper()}"] = 0.001
    if node.memory_bytes:
        wanted["memory"] = float(node.memory_bytes)
    return wanted | options.resources


def request_of(
    name: str, spec: JobSpec, options: RayOptions, *, modules: str, working_dir: str | None, arguments: str = ""
) -> dict[str, Any]:
    """The body of `POST /api/jobs/`.

    Args:
        name: the job's id at Ray.
        spec: of the job.
        options: what the run file says about Ray.
        modules: URI of the archive with the driver.
        working_dir: URI of the archive with the user's folder.
        arguments: of the driver.
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
    """Name and content of the archive with the driver and what it is told."""
    source = Path(gang.__file__).read_bytes()
    told = json.dumps(description, indent=1, sort_keys=True).encode()
    files = {f"{PACKAGE}/__init__.py": b"", f"{PACKAGE}/__main__.py": source, f"{PACKAGE}/gang.json": told}
    return archive(files)


def package_of_folder(folder: Path) -> tuple[str, bytes]:
    """Name and content of an archive with the user's folder.

    Raises:
        UsageError: there is no such folder, or it is too large.
    """
    if not folder.is_dir():
        hint = "with Ray, `workdir` is a folder here, which is sent to the nodes"
        raise UsageError(f"`workdir`: there is no folder `{folder}`", hint=hint)
    files: dict[str, bytes] = {}
    size = 0
    for parent, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if name not in _LEFT_OUT)
        for path in (Path(parent, name) for name in sorted(names)):
            if not path.is_file():
                continue
            size += path.stat().st_size
            if size > _LARGEST_BYTES:
                hint = "put data and checkpoints elsewhere, and only the program into `workdir`"
                raise UsageError(f"`workdir` `{folder}` is larger than {_LARGEST_BYTES >> 20} MiB", hint=hint)
            files[path.relative_to(folder).as_posix()] = path.read_bytes()
    executable = frozenset(name for name in files if os.access(folder / name, os.X_OK))
    return archive(files, executable)


def archive(files: Mapping[str, bytes], executable: frozenset[str] = frozenset()) -> tuple[str, bytes]:
    """A zip archive that is the same for the same files, and a name for Ray that says what is in it."""
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", zipfile.ZIP_DEFLATED) as file:
        for name, data in sorted(files.items()):
            entry = zipfile.ZipInfo(name, date_time=_OLDEST)
            entry.external_attr = (0o755 if name in executable else 0o644) << 16
            entry.compress_type = zipfile.ZIP_DEFLATED
            file.writestr(entry, data)
    digest = hashlib.sha256(content.getvalue()).hexdigest()[:24]
    return f"_ray_pkg_{digest}.zip", content.getvalue()


def attempt_of(name: str, mark: str) -> int | None:
    """Which submission of a run a job is, from its id; None for a job of another run."""
    found = re.fullmatch(rf"{re.escape(mark)}-(\d+)", name)
    return int(found[1]) if found else None
