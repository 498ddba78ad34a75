"""Versions of software that a project pins: what a rule or a correction needs, held against what the files allow.

Read are lists of requirements and constraints, pyproject.toml, setup files, conda environments, lock files, images of
PyTorch and packages of distributions in Dockerfiles, variables such as `TORCH_VERSION`, loaded modules and stacks.
Sources: PEP 440 and PEP 508; Poetry's `^` and `~`; conda's `=`, which pins a prefix.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Literal

Software = Literal["torch", "nccl", "slurm"]
Version = tuple[int, ...]

_NAMES: dict[Software, str] = {"torch": r"(?:py)?torch", "nccl": r"(?:nvidia-nccl-cu\d+|nccl)", "slurm": "slurm"}
_FILES = (
    "requirements*.txt", "requirements*.in", "requirements/*.txt", "constraints*.txt", "pyproject.toml", "setup.cfg",
    "setup.py", "environment*.y*ml", "conda*.y*ml", "*.lock", "Pipfile", "pylock*.toml", "Dockerfile*",
    "Containerfile*", "*.dockerfile", "docker/*Dockerfile*", "stack*.y*ml",
)  # fmt: skip
_LARGEST_BYTES = 5_000_000
_MOST_FOLDERS = 4
"""Folders that are searched, from that of the file upwards."""
_CLAUSE = r"(?:===?|~=|!=|<=?|>=?|=)\s*v?\d[\w.*+]*"


@dataclass(frozen=True, slots=True)
class Releases:
    """Releases of a software for which an advice holds."""

    software: Software
    since: str | None = None
    """First release; None for every old one."""
    until: str | None = None
    """Last release that is known; None for every new one."""

    def __str__(self) -> str:
        since, until = f"{self.since} or newer" if self.since else "", f"{self.until} or older" if self.until else ""
        return f"{self.software} {' and '.join(filter(None, (since, until)))}"

    def meets(self, allowed: Allowed) -> bool:
        """The advice holds for some release that a pin allows."""
        late = self.since is None or allowed.below is None or allowed.below > _version(self.since)
        early = self.until is None or allowed.least is None or allowed.least < _next(self.until)
        return late and early

    def covers(self, allowed: Allowed) -> bool:
        """The advice holds for every release that a pin allows."""
        late = self.since is None or (allowed.least is not None and allowed.least >= _version(self.since))
        early = self.until is None or (allowed.below is not None and allowed.below <= _next(self.until))
        return late and early


@dataclass(frozen=True, slots=True)
class Allowed:
    """Releases that one pin allows: `least` <= release < `below`."""

    least: Version | None
    below: Version | None
    text: str
    """The pin as it is written: `torch==2.0.1`."""
    file: str
    is_exact: bool = False

    def allows(self, version: str) -> bool:
        """A release, or a later one with the same first numbers, is within the pin."""
        low = self.least is None or self.least < _next(version)
        return low and (self.below is None or _version(version) < self.below)


def allowed_releases(
    software: Software, name: str, text: str, folder: Path | None, systems: Mapping[str, str] = MappingProxyType({})
) -> tuple[Allowed, ...]:
    """Releases that a file is used with: by its own text, else by files beside it, else by those of folders above.

    `systems` has the release of Slurm of each operating system, by the name of its image: `ubuntu:22.04`.

    Returns:
        The exact pins of the nearest place that has any, else its ranges; empty if none is found.
    """
    own = tuple(_pins(software, name, text, systems))
    if own or folder is None:
        return _decisive(own)
    for near in _folders(folder.absolute()):
        files = sorted({path for pattern in _FILES for path in near.glob(pattern) if path.is_file()})
        if found := tuple(pin for path in files for pin in _pins(software, path.name, _read(path), systems)):
            return _decisive(found)
    return ()


def _decisive(pins: Sequence[Allowed]) -> tuple[Allowed, ...]:
    """Exact pins, such as those of a lock file, decide over the ranges that they were resolved from."""
    return tuple(pin for pin in pins if pin.is_exact) or tuple(pins)


def _folders(start: Path) -> Iterator[Path]:
    """A folder and those above it, up to that of the repository, and not the home folder or the root."""
    for folder in (start, *start.parents)[:_MOST_FOLDERS]:
        if folder != start and folder in (Path.home(), Path(folder.anchor)):
            return
        yield folder
        if (folder / ".git").exists():
            return


def _read(path: Path) -> str:
    with suppress(OSError):
        if path.stat().st_size <= _LARGEST_BYTES:
            return path.read_text(encoding="utf-8", errors="replace")
    return ""


def _pins(software: Software, name: str, text: str, systems: Mapping[str, str]) -> Iterator[Allowed]:
    """Every pin of a text; of Python code, those of its inline metadata and of a setup.py."""
    path = Path(name)
    if path.suffix == ".py" and path.name != "setup.py":
        metadata = re.search(r"^# /// script\n(?:#.*\n)*?# ///", text, re.MULTILINE)
        text = re.sub("^#", "", metadata[0], flags=re.MULTILINE) if metadata else ""
    else:
        text = re.sub(r"(^|\s)#.*$", r"\1", text, flags=re.MULTILINE)
    seen: set[str] = set()
    for pattern in _patterns(software):
        for found in pattern.finditer(text):
            written = re.sub(r"\s+", "", found[1])
            if written not in seen and (pin := _allowed(software, written, path.name)):
                seen.add(written)
                yield pin
    if software == "slurm":
        yield from _of_distribution(text, path.name, systems)


def _of_distribution(text: str, file: str, systems: Mapping[str, str]) -> Iterator[Allowed]:
    """The Slurm that an image installs from its distribution, or that has the folders of old packages.

    Debian and Ubuntu named their packages and folders `slurm-llnl` up to Slurm 20.11.
    """
    if re.search(r"apt(?:-get)? install[^\n]*\bslurm", text):
        for found in re.finditer(r"^FROM\s+\S*?((?:ubuntu|debian):[\w.]+)", text, re.IGNORECASE | re.MULTILINE):
            if pin := _allowed("slurm", systems.get(found[1].lower(), ""), file):
                yield pin
    if "/slurm-llnl" in text:
        yield Allowed(None, _version("21"), "/slurm-llnl", file)


def _patterns(software: Software) -> Iterator[re.Pattern[str]]:
    """Forms of a pin; the first group is its specifier."""
    named = _NAMES[software]
    yield re.compile(rf"(?<![\w./-]){named}(?:\[[\w,-]*\])?\s*\(?({_CLAUSE}(?:\s*,\s*{_CLAUSE})*)")
    yield re.compile(
        rf"""(?:^|[\s{{,"']){named}["']?\s*[:=]\s*(?:\{{[^}}\n]*?version["']?\s*[:=]\s*)?["']([\^~=<>!]*\s*v?\d[^"']*)["']""",
        re.MULTILINE,
    )
    yield re.compile(rf'name = "{named}"\s*\nversion = "([^"]+)"')  # uv, Poetry, PDM, PEP 751
    yield re.compile(rf'"{named}":\s*\{{[^}}]*?"version":\s*"([^"]+)"')  # Pipfile.lock
    yield re.compile(rf"""\b{named}_VERSION["']?\s*[:=\s]\s*["']?v?(\d[\w.+]*)""", re.IGNORECASE)
    yield re.compile(rf"^[ \t]*(?:module|ml)\b[^\n]*?[ /]{named}/v?(\d+\.\d+(?:\.\d+)?)", re.IGNORECASE | re.MULTILINE)
    if software == "torch":
        yield re.compile(r"\bpytorch/pytorch:(\d+\.\d+(?:\.\d+)?)")
    if software == "slurm":
        release = r"""\s*["']?(\d\d\.\d\d)"""
        yield re.compile(rf"^slurm:(?:\s*\{{[^}}]*?\brelease:)?{release}", re.MULTILINE)
        yield re.compile(rf"^slurm:[ \t]*(?:\n(?:[ \t].*)?)*?\n[ \t]+release:{release}", re.MULTILINE)


def _allowed(software: Software, written: str, file: str) -> Allowed | None:
    """Bounds of a specifier; None if it leaves every release."""
    least: Version | None = None
    below: Version | None = None
    exact = False
    for clause in written.split(","):
        found = re.match(r"([\^~=<>!]*)v?(\d+(?:\.\d+)*)", clause)
        if found is None or found[1] == "!=":
            continue
        operator, text = found[1], found[2]
        exact = exact or operator in ("", "=", "==", "===")
        if not operator.startswith("<"):
            least = _version(text)
        if operator not in (">", ">="):
            below = _upper(operator, text)
    if least is None and below is None:
        return None
    shown = written if re.match("[^0-9v]", written) else f"=={written}"
    return Allowed(least, below, f"{software}{shown}", file, exact)


def _upper(operator: str, text: str) -> Version:
    """First release that an operator with an upper bound excludes."""
    parts = text.split(".")
    if operator == "<":
        return _version(text)
    if operator == "^":
        return _next(parts[0] if parts[0] != "0" else ".".join(parts[:2]))
    if operator == "~=":
        return _next(".".join(parts[:-1] or parts))
    return _next(".".join(parts[:2]) if operator == "~" else text)


def _version(text: str) -> Version:
    """Numbers of a version, four of them: (2, 3, 0, 0) of `2.3`."""
    numbers = [int(part) for part in text.split(".")][:4]
    return tuple(numbers + [0] * (4 - len(numbers)))


def _next(text: str) -> Version:
    """First release behind all that begin with these numbers: (2, 4, 0, 0) of `2.3`."""
    *first, last = text.split(".")
    return _version(".".join([*first, str(int(last) + 1)]))
