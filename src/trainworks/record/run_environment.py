"""The environment of a run: what its nodes have to build, and what each has got."""

from __future__ import annotations

from typing import Literal

from trainworks.config.spec import Spec

EnvironmentKind = Literal["requirements", "uv", "pylock", "conda", "image"]
LOCKS: tuple[EnvironmentKind, ...] = ("requirements", "uv", "pylock")
"""Kinds that become a virtual environment."""


class ResolvedEnvironment(Spec):
    """What every node of a run builds; part of resolved.json, so that a resume needs no other file."""

    kind: EnvironmentKind
    name: str
    """Path of the file when the run was made, or the image."""
    sha256: str
    """SHA-256 of the content of the file, or of the name of the image."""
    text: str = ""
    """Content of the file; empty for an image."""
    python: str = ""
    """Minor version of Python of a lock file."""


class Distribution(Spec):
    """An installed distribution."""

    name: str
    version: str
    url: str | None = None
    """Where it came from, if that was not an index."""
    hashes: tuple[str, ...] = ()
    """Hashes that its archive was checked against: `sha256:...`."""


class NodeEnvironment(Spec):
    """The content of environment/node-N.json: what the ranks of a node run with."""

    kind: EnvironmentKind | None
    """None for the environment of Trainworks itself."""
    sha256: str | None = None
    """SHA-256 of the content that it was built from."""
    key: str = ""
    """Name of its folder in the cache."""
    folder: str
    python: str
    """Version of Python: `3.12.4`."""
    platform: str
    """Operating system and processor: `linux x86_64`."""
    tool: str = ""
    """Program that built it: `uv 0.13.9`."""
    distributions: tuple[Distribution, ...] = ()
    cuda: str | None = None
    """CUDA of the installed wheels; None without one."""
    driver: str | None = None
    """Driver of the accelerators; None without one."""
    image_digest: str | None = None
    """Digest of the image, `sha256:...`; None if it is not known."""
    built_s: float = 0.0
    """Time to build it; 0 if the node had it."""
