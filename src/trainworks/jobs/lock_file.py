"""Lock files of Python packages, as requirements that pip and uv install without resolving anything.

Sources: pip's requirements file format; PEP 751 (pylock.toml, version 1.0); uv.lock, version 1.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from packaging.markers import InvalidMarker, Marker
from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from trainworks.errors import UsageError
from trainworks.record.run_environment import EnvironmentKind

PYPI = "https://pypi.org/simple"
_OPTIONS = (
    "--index-url", "-i", "--extra-index-url", "--find-links", "-f", "--no-index", "--no-binary", "--only-binary",
    "--prefer-binary", "--pre", "--trusted-host", "--require-hashes",
)  # fmt: skip
"""Options of a requirements file that choose where packages come from, and not which."""
_COMMIT = re.compile(r"@[0-9a-f]{40}(#|$)")
_COMPILE = "uv pip compile --generate-hashes requirements.in -o requirements.lock"


@dataclass(frozen=True, slots=True)
class Pin:
    """One distribution with its version or address."""

    name: str
    text: str
    """Requirement without hashes: `numpy==2.3.1`, `tool @ https://...`."""
    hashes: tuple[str, ...] = ()
    """`sha256:...` of the archives that may be installed; any other one is refused."""

    @property
    def line(self) -> str:
        """The requirement with its hashes, as pip reads it."""
        return " ".join([self.text, *(f"--hash={value}" for value in self.hashes)])


@dataclass(frozen=True, slots=True)
class Requirements:
    """Everything that an environment is to contain."""

    pins: tuple[Pin, ...]
    options: tuple[str, ...] = ()
    """Lines of a requirements file that name indexes."""

    @property
    def is_hashed(self) -> bool:
        """Whether every archive is checked against a hash."""
        return bool(self.pins) and all(pin.hashes for pin in self.pins)

    @property
    def text(self) -> str:
        """The requirements file."""
        return "".join(f"{line}\n" for line in (*self.options, *(pin.line for pin in self.pins)))

    def hashes_of(self, name: str) -> tuple[str, ...]:
        """Hashes of a distribution; empty if the file has none, or does not name it."""
        return next((pin.hashes for pin in self.pins if pin.name == canonicalize_name(name)), ())


def kind_of_lock(name: str, text: str) -> EnvironmentKind:
    """The format of a lock file, by its content; its name decides only what the content leaves open."""
    if re.search(r"^lock-version\s*=", text, re.MULTILINE) and name.endswith(".toml"):
        return "pylock"
    if name.endswith("uv.lock") or re.search(r"^\[\[package\]\]", text, re.MULTILINE):
        return "uv"
    return "requirements"


def read_lock(kind: EnvironmentKind, text: str, machine: Mapping[str, str]) -> Requirements:
    """The requirements that a lock file has for one kind of machine.

    `machine` has values of PEP 508's markers, as `packaging.markers.default_environment` has them.

    Raises:
        UsageError: the file is not of this format, or leaves a version open.
    """
    found = {"requirements": _requirements, "uv": _uv, "pylock": _pylock}[kind](text, machine)
    with_hashes = [pin for pin in found.pins if pin.hashes]
    if with_hashes and not found.is_hashed:
        bare = next(pin for pin in found.pins if not pin.hashes)
        raise UsageError(
            f"`{bare.text}` has no hash, and `{with_hashes[0].name}` has one: pip wants all or none",
            hint=f"write the file with `{_COMPILE}`",
        )
    return found


def _requirements(text: str, machine: Mapping[str, str]) -> Requirements:
    pins, options = [], []
    for raw in re.sub(r"\\\s*\n", " ", text).splitlines():
        line = re.sub(r"(^|\s)#.*$", "", raw).strip()
        if not line:
            continue
        if line.startswith("-"):
            if re.split(r"[\s=]", line, maxsplit=1)[0] not in _OPTIONS:
                raise UsageError(
                    f"the lock file has `{line[:100]}`, whose content is not in the file",
                    hint=f"write a complete file, as `{_COMPILE}` does",
                )
            options.append(line)
        elif (pin := _pin(line, machine)) is not None:
            pins.append(pin)
    return Requirements(tuple(pins), tuple(options))


def _pin(line: str, machine: Mapping[str, str]) -> Pin | None:
    """One line of a requirements file; None if its marker leaves it out on this machine."""
    text, *rest = re.split(r"\s+--hash[=\s]", line)
    hashes = tuple(sorted(value.strip() for value in rest))
    try:
        requirement = Requirement(text)
    except InvalidRequirement:
        raise UsageError(
            f"the lock file has `{text[:100]}`, which is not a requirement with a version", hint=f"use `{_COMPILE}`"
        ) from None
    if requirement.marker is not None and not _holds(str(requirement.marker), machine):
        return None
    if requirement.url is not None:
        is_pinned = bool(hashes) or "#sha256=" in requirement.url or bool(_COMMIT.search(requirement.url))
    else:
        specifiers = list(requirement.specifier)
        is_exact = len(specifiers) == 1 and specifiers[0].operator in ("==", "===")
        is_pinned = is_exact and not specifiers[0].version.endswith("*")
    if not is_pinned:
        raise UsageError(
            f"`{requirement}` leaves its version open: nodes could get different packages",
            hint=f"pin every package, as `{_COMPILE}` or `pip freeze` does",
        )
    name = canonicalize_name(requirement.name)
    extras = f"[{','.join(sorted(requirement.extras))}]" if requirement.extras else ""
    where = f" @ {requirement.url}" if requirement.url else str(requirement.specifier)
    return Pin(name, f"{name}{extras}{where}", hashes)


def _holds(marker: str, machine: Mapping[str, str]) -> bool:
    try:
        return Marker(marker).evaluate({"extra": "", **machine})
    except InvalidMarker:
        raise UsageError(f"the lock file has the marker `{marker[:100]}`, which PEP 508 does not know") from None


def _toml(text: str) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise UsageError(f"the lock file is not TOML: {error}") from None


def _pylock(text: str, machine: Mapping[str, str]) -> Requirements:
    data = _toml(text)
    version = str(data.get("lock-version", ""))
    if version.partition(".")[0] != "1":
        raise UsageError(
            f"lock-version `{version}` of pylock.toml is not 1.x", hint="write it with a current uv or pip"
        )
    pins: dict[str, Pin] = {}
    for package in data.get("packages", []):
        if "marker" in package and not _holds(package["marker"], machine):
            continue
        pin = _pin_of_package(package)
        if pin.name in pins:
            raise UsageError(f"pylock.toml has `{pin.name}` twice for this machine", hint="lock it again")
        pins[pin.name] = pin
    indexes = _indexes(package.get("index") for package in data.get("packages", []))
    return Requirements(tuple(pins.values()), indexes)


def _pin_of_package(package: Mapping[str, Any]) -> Pin:
    """A package of pylock.toml: from an index, an archive, or a repository at a commit."""
    name = canonicalize_name(package["name"])
    if (archive := package.get("archive")) and "url" in archive:
        return Pin(name, f"{name} @ {archive['url']}", _hashes([archive]))
    if vcs := package.get("vcs"):
        return Pin(name, f"{name} @ {vcs['type']}+{vcs.get('url', '')}@{vcs['commit-id']}")
    files = [*package.get("wheels", []), *([package["sdist"]] if "sdist" in package else [])]
    if "version" not in package or not files:
        raise UsageError(f"pylock.toml has `{name}` from a folder, which other nodes do not have")
    return Pin(name, f"{name}=={package['version']}", _hashes(files))


def _hashes(files: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
    return tuple(sorted({f"{kind}:{value}" for file in files for kind, value in file.get("hashes", {}).items()}))


def _indexes(urls: Any) -> tuple[str, ...]:
    """Options for the indexes beside PyPI, which is that of the machine's own configuration."""
    others = sorted({url for url in urls if url and url.rstrip("/") != PYPI})
    return tuple(f"--extra-index-url {url}" for url in others)


def _uv(text: str, machine: Mapping[str, str]) -> Requirements:
    """The packages that the project of a uv.lock needs on this machine, without its development groups."""
    packages = _toml(text).get("package", [])
    roots = [one for one in packages if {"virtual", "editable"} & one.get("source", {}).keys()]
    if not roots:
        raise UsageError("uv.lock has no project, whose dependencies would be installed")
    found: dict[str, Mapping[str, Any]] = {}
    for root in roots:
        _walk(root, (), packages, machine, found)
    wanted = [one for key, one in found.items() if "[" not in key and one not in roots]
    indexes = _indexes(one["source"].get("registry") for one in wanted)
    return Requirements(tuple(_pin_of_uv(one) for one in sorted(wanted, key=lambda one: str(one["name"]))), indexes)


def _walk(
    package: Mapping[str, Any],
    extras: Sequence[str],
    packages: Sequence[Mapping[str, Any]],
    machine: Mapping[str, str],
    found: dict[str, Mapping[str, Any]],
) -> None:
    """Add a package with these extras, and all that it needs here."""
    new_extras = [extra for extra in extras if f"{package['name']}[{extra}]" not in found]
    is_known = package["name"] in found
    found[package["name"]] = package
    found.update({f"{package['name']}[{extra}]": package for extra in new_extras})
    wanted = [] if is_known else list(package.get("dependencies", []))
    for extra in new_extras:
        wanted += package.get("optional-dependencies", {}).get(extra, [])
    for dependency in wanted:
        if "marker" in dependency and not _holds(dependency["marker"], machine):
            continue
        _walk(_package_of(dependency, packages), dependency.get("extra", []), packages, machine, found)


def _package_of(dependency: Mapping[str, Any], packages: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    for package in packages:
        same = package["name"] == dependency["name"]
        if same and dependency.get("version") in (None, package.get("version")):
            return package
    raise UsageError(f"uv.lock needs `{dependency['name']}` and does not have it", hint="write it again with `uv lock`")


def _pin_of_uv(package: Mapping[str, Any]) -> Pin:
    name, source = canonicalize_name(package["name"]), package.get("source", {})
    files = [*package.get("wheels", []), *([package["sdist"]] if "sdist" in package else [])]
    hashes = tuple(sorted({str(file["hash"]) for file in files if "hash" in file}))
    if "registry" in source:
        return Pin(name, f"{name}=={package['version']}", hashes)
    if "url" in source:
        return Pin(name, f"{name} @ {source['url']}", hashes)
    if "git" in source:
        address, _, commit = str(source["git"]).rpartition("#")
        return Pin(name, f"{name} @ git+{address.partition('?')[0]}@{commit}")
    raise UsageError(
        f"uv.lock has `{name}` from a folder, which other nodes do not have", hint="publish it, or use git"
    )
