"""Words that several parts of the stack file use."""

from __future__ import annotations

import posixpath
from collections.abc import Collection
from typing import Annotated, Literal

from pydantic import AfterValidator, StringConstraints

from trainworks.config.spec import ConfigPath

FILL_IN = "# fill in:"
"""Comment behind a value that stands for one that only the owner of the cluster knows."""
Role = Literal["login", "controller", "database", "monitoring", "storage", "compute"]
Version = Annotated[str, StringConstraints(pattern=r"^[0-9]+(\.[0-9]+)*$", max_length=32)]
AccountName = Annotated[str, StringConstraints(pattern=r"^[a-z_][a-z0-9_-]{0,30}$")]
PublicKey = Annotated[
    str, StringConstraints(pattern=r"^(ssh|ecdsa|sk)-[A-Za-z0-9@.-]+ [A-Za-z0-9+/=]+( [A-Za-z0-9@._-]+)?$")
]
"""A public key as in `~/.ssh/id_ed25519.pub`."""
Requirement = Annotated[
    str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*(\[[a-z0-9,_-]+\])?==[A-Za-z0-9.+!]+$")
]
"""A package with its exact version, `numpy==2.3.1`."""
KernelArgument = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_.-]+(=[A-Za-z0-9_.,:@+-]+)?$", max_length=128)]
"""An argument of the kernel, `iommu=pt`."""
MountSource = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9._@:/,\[\]-]+$", max_length=512)]


def _plain(folder: str) -> str:
    return "/" + posixpath.normpath(folder).lstrip("/")


Folder = Annotated[ConfigPath, AfterValidator(_plain)]
"""A folder of a node, without `.`, `..` and slashes that mean nothing, so that two that are the same compare equal."""


def is_of_stack(keys: Collection[str]) -> bool:
    """Whether a file with these keys is a stack file, with Slurm or without it.

    >>> is_of_stack(["os", "nodes", "admin_keys"]), is_of_stack(["name", "cluster", "run"])
    (True, False)
    """
    return {"os", "nodes"}.issubset(keys) and not {"slurm", "admin_keys"}.isdisjoint(keys)
