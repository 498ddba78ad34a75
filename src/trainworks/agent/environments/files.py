"""Read the lock file or conda file of a run into its record, and notice when the file has changed since."""

from __future__ import annotations

import hashlib
import platform
import re
from pathlib import Path
from typing import Any

import yaml
from packaging.markers import default_environment

from trainworks.config.engines import Container, Kubernetes, Local, LocalContainer, SkyPilot, Slurm
from trainworks.config.environment import RunEnvironment
from trainworks.config.run_file import RunFile
from trainworks.config.source import Source, read_text
from trainworks.errors import UsageError
from trainworks.jobs.lock_file import kind_of_lock, read_lock
from trainworks.record.run_environment import EnvironmentKind, ResolvedEnvironment

_LARGEST = 700_000
"""Longest file in characters: a Secret of Kubernetes, which carries it to the pods, holds 1 MiB."""
_CONDA_PIN = re.compile(r"(?:[\w-]+::)?[A-Za-z0-9_.-]+\s*(?:={1,2}[0-9][A-Za-z0-9_.!+-]*)(?:=[A-Za-z0-9_.]+)?")


def with_image(run_file: RunFile, engine: str | None = None) -> RunFile:
    """The run file with its image where its cluster, or another `engine`, takes one; itself without an image.

    Raises:
        UsageError: the cluster names another image.
    """
    image = run_file.environment.image if run_file.environment else None
    cluster = run_file.cluster
    engine = engine or cluster.engine
    if image is None or engine not in ("local", "slurm", "kubernetes", "skypilot"):
        return run_file
    local, slurm = cluster.local.container or LocalContainer(), cluster.slurm.container or Container()
    written = {
        "local": local.image,
        "slurm": slurm.image,
        "kubernetes": cluster.kubernetes.image,
        "skypilot": cluster.skypilot.image,
    }
    key = f"{engine}.container.image" if engine in ("local", "slurm") else f"{engine}.image"
    other, placed = written[engine], f"docker:{image}" if engine == "skypilot" else image
    if other not in (None, placed):
        raise UsageError(
            f"`environment.image` is `{image}`, and `cluster.{key}` is `{other}`", hint="keep one of the two"
        )
    options: Local | Slurm | Kubernetes | SkyPilot = getattr(cluster, engine)
    update: dict[str, object] = {"image": placed}
    if engine in ("local", "slurm"):
        update = {"container": (local if engine == "local" else slurm).model_copy(update=update)}
    changed = cluster.model_copy(update={engine: options.model_copy(update=update)})
    return run_file.model_copy(update={"cluster": changed})


def without_packages(run_file: RunFile) -> RunFile:
    """The run file for a program of Trainworks itself, such as a benchmark, which needs Trainworks' own packages.

    The image of a cluster stays: it has Trainworks. A lock file, a conda file and a container on this machine do not.
    """
    placed = with_image(run_file)
    cluster = placed.cluster.model_copy(update={"local": Local()})
    return placed.model_copy(update={"cluster": cluster, "environment": None})


def read_environment(run_file: RunFile, source: Source | None) -> ResolvedEnvironment | None:
    """The environment of a run file with the content of its file; None if it has none.

    Raises:
        UsageError: the file cannot be read, or leaves a version open; with the line of the run file.
    """
    wanted = run_file.environment
    if wanted is None:
        return None
    if wanted.image is not None:
        sha256 = hashlib.sha256(wanted.image.encode()).hexdigest()
        return ResolvedEnvironment(kind="image", name=wanted.image, sha256=sha256)
    try:
        return _read(wanted, Path(source.name).parent if source else Path())
    except UsageError as error:
        error.place = source.place(("environment",)) if source else "environment"
        raise


def _read(wanted: RunEnvironment, folder: Path) -> ResolvedEnvironment:
    assert wanted.file is not None
    path = (folder / Path(wanted.file).expanduser()).absolute()
    text = read_text(path, "file of the environment")
    if len(text) > _LARGEST:
        raise UsageError(
            f"`{path}` has {len(text):,} characters, more than {_LARGEST:,}",
            hint="export it for one platform: `uv export --frozen -o requirements.lock`",
        )
    minor = wanted.python or ".".join(platform.python_version_tuple()[:2])
    kind: EnvironmentKind = "conda" if wanted.conda else kind_of_lock(path.name, text)
    if kind == "conda":
        _check_conda(text)
    else:
        machine = {name: str(value) for name, value in default_environment().items()}
        if not read_lock(kind, text, machine | {"python_version": minor, "python_full_version": f"{minor}.0"}).pins:
            raise UsageError(f"`{path}` names no package", hint="leave `environment` out")
    sha256 = hashlib.sha256(text.encode()).hexdigest()
    python = "" if kind == "conda" else minor
    return ResolvedEnvironment(kind=kind, name=str(path), sha256=sha256, text=text, python=python)


def _check_conda(text: str) -> None:
    """Refuse a conda file that leaves a version open, naming the first such package."""
    if "@EXPLICIT" in text:
        return
    try:
        data: Any = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise UsageError(f"the conda file is not YAML: {error}") from None
    packages = data.get("dependencies") if isinstance(data, dict) else None
    if not packages:
        raise UsageError("the conda file has no `dependencies`")
    for package in packages:
        if isinstance(package, dict):
            read_lock("requirements", "\n".join(map(str, package.get("pip", []))), {})
        elif str(package) != "pip" and not _CONDA_PIN.fullmatch(str(package).strip()):
            raise UsageError(
                f"`{package}` of the conda file leaves its version open",
                hint="write the file with `conda env export`, or use `conda list --explicit`",
            )


def changed_since(recorded: ResolvedEnvironment) -> str | None:
    """A sentence if the file of an environment is not what the run has recorded; None if it is, or is gone."""
    if recorded.kind == "image":
        return None
    try:
        now = hashlib.sha256(Path(recorded.name).read_bytes()).hexdigest()
    except OSError:
        return None
    if now == recorded.sha256:
        return None
    return (
        f"`{recorded.name}` has changed since the run was made; it continues with the packages in its record "
        f"(sha256 {recorded.sha256[:12]}, the file now has {now[:12]})"
    )
