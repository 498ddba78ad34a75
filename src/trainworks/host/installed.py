"""What an environment contains: its Python, its distributions, its CUDA."""

from __future__ import annotations

import json
import platform
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib import metadata
from pathlib import Path

import pynvml
from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from trainworks.errors import EnvironmentProblem
from trainworks.host.nvml import ask
from trainworks.record.run_environment import Distribution, NodeEnvironment


def distributions_in(folders: Sequence[str]) -> tuple[Distribution, ...]:
    """Installed distributions, by name; of two with one name the first, which Python imports.

    Name and version are those of the folder that a wheel leaves (PEP 376 and 427): reading all metadata takes a second.
    """
    found: dict[str, Distribution] = {}
    for folder in folders:
        for path in Path(folder).glob("*.dist-info"):
            name, _, version = path.name.removesuffix(".dist-info").rpartition("-")
            if name and canonicalize_name(name) not in found:
                one = _with_origin(Distribution(name=canonicalize_name(name), version=version), path)
                found[one.name] = one
    return tuple(found[name] for name in sorted(found))


def conda_packages_in(folder: Path) -> tuple[Distribution, ...]:
    """Packages of a conda environment, with their addresses and checksums; those that pip installed are not there."""
    found = []
    for path in sorted((folder / "conda-meta").glob("*.json")):
        facts = json.loads(path.read_bytes())
        hashes = tuple(f"{kind}:{facts[kind]}" for kind in ("md5", "sha256") if facts.get(kind))
        found.append(
            Distribution(name=facts["name"], version=facts["version"], url=facts.get("url") or None, hashes=hashes)
        )
    return tuple(found)


def _with_origin(one: Distribution, folder: Path) -> Distribution:
    """A distribution with its address and hash, if it did not come from an index (PEP 610)."""
    try:
        origin = json.loads((folder / "direct_url.json").read_bytes())
    except (OSError, ValueError):
        return one
    vcs, hashes = origin.get("vcs_info"), origin.get("archive_info", {}).get("hashes", {})
    url = f"{vcs['vcs']}+{origin['url']}@{vcs['commit_id']}" if vcs else origin.get("url")
    found = tuple(f"{kind}:{value}" for kind, value in sorted(hashes.items()))
    return one.model_copy(update={"url": url, "hashes": found})


def unmet_requirements(folder: str, others: Sequence[str]) -> Iterator[str]:
    """What the distributions of a folder need, and neither it nor `others`, which are behind it on the path, have:
    `torch 2.13.0 needs networkx>=2.5`.
    """
    versions = {one.name: one.version for one in reversed(distributions_in([folder, *others]))}
    for one in metadata.distributions(path=[folder]):
        for requirement in _required(one.requires or ()):
            has = versions.get(canonicalize_name(requirement.name))
            if has is None or not requirement.specifier.contains(has, prereleases=True):
                needs = f"{requirement.name}{requirement.specifier}"
                yield f"{one.metadata['Name']} {one.version} needs {needs}" + (f", and {has} is there" if has else "")


def check_versions(packages: Mapping[str, str], extra: str) -> None:
    """Check that packages are not older than an extra of Trainworks needs; those that are missing are not looked at.

    Raises:
        EnvironmentProblem: one of them is.
    """
    try:
        texts = metadata.requires("trainworks") or ()
    except metadata.PackageNotFoundError:  # a source tree on the path, which says of no version what it needs
        return
    for requirement in _required(texts, extra):
        has = packages.get(canonicalize_name(requirement.name))
        if has is not None and not requirement.specifier.contains(has, prereleases=True):
            raise EnvironmentProblem(
                f"`{requirement.name}` {has} is installed, and `{requirement.name}{requirement.specifier}` is needed",
                hint=f"pip install --upgrade 'trainworks[{extra}]'",
            )


def _required(texts: Iterable[str], extra: str = "") -> Iterator[Requirement]:
    """Requirements that hold on this machine, those of one extra among them."""
    for text in texts:
        try:
            requirement = Requirement(text)
        except InvalidRequirement:  # of a distribution older than the rule
            continue
        if requirement.marker is None or requirement.marker.evaluate({"extra": extra}):
            yield requirement


def machine_platform() -> str:
    """Operating system and processor: `linux x86_64`."""
    return f"{sys.platform} {platform.machine()}"


def cuda_of(distributions: Iterable[Distribution]) -> str | None:
    """CUDA of installed wheels: the local version of torch, else NVIDIA's runtime."""
    versions = {one.name: one.version for one in distributions}
    if found := re.search(r"\+cu(\d+)(\d)$", versions.get("torch", "")):
        return f"{found[1]}.{found[2]}"
    runtimes = [version for name, version in versions.items() if name.startswith("nvidia-cuda-runtime")]
    return ".".join(runtimes[0].split(".")[:2]) if runtimes else None


def driver_version() -> str | None:
    """Version of NVIDIA's driver; None without one."""
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return None
    try:
        version = ask(pynvml.nvmlSystemGetDriverVersion)
        return None if version is None else str(version)
    finally:
        pynvml.nvmlShutdown()


def own_environment() -> NodeEnvironment:
    """The environment of Trainworks, in which a workload without an `environment` trains."""
    found = distributions_in([path for path in sys.path if path])
    return NodeEnvironment(
        kind=None,
        folder=sys.prefix,
        python=platform.python_version(),
        platform=machine_platform(),
        distributions=found,
        cuda=cuda_of(found),
        driver=driver_version(),
    )


def site_packages(folder: Path) -> Path:
    """The folder of packages of a virtual or conda environment."""
    return next(iter(sorted((folder / "lib").glob("python3.*/site-packages"))), folder / "lib" / "site-packages")
