"""Exports of file servers and mount units of their clients; each option that is not obvious has its reason.

Source: exports(5), nfs(5), systemd.mount(5), mount.lustre(8), xfs(5).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from trainworks.config.stack import Scratch, SharedMount, Stack

SCRATCH_ARRAY = "/dev/md/scratch"


@dataclass(frozen=True, slots=True)
class MountUnit:
    """A mount of systemd."""

    name: str
    """File name, which systemd derives from the folder."""
    text: str
    facts: dict[str, Any]
    """What the storage role has to know."""


def exports(stack: Stack) -> str:
    """Text of the exports of the stack's own file server; empty without one."""
    lines = []
    for mount in _own_exports(stack):
        rights = "ro" if mount.read_only else "rw"
        lines.append(f"{mount.export} {stack.network}({rights},sync,no_subtree_check,root_squash)")
    return "\n".join([*_EXPORT_REASONS, *lines]) + "\n" if lines else ""


def exported_folders(stack: Stack) -> list[str]:
    """Folders that the stack's own file server exports."""
    return list(dict.fromkeys(mount.export for mount in _own_exports(stack) if mount.export))


def mount_units(stack: Stack) -> list[MountUnit]:
    """Units of all mounts, and of the local scratch of compute nodes."""
    units = [_shared(mount) for mount in stack.mounts]
    return units + ([_scratch(stack.scratch)] if stack.scratch else [])


def block_device(scratch: Scratch) -> str:
    """The device that holds the file system of local scratch."""
    return scratch.devices[0] if len(scratch.devices) == 1 else SCRATCH_ARRAY


_EXPORT_REASONS = (
    "# the network of the nodes alone; no blank before the parenthesis, which would export to every host",
    "# sync: a write is on the disk before it is confirmed, so that a restart loses no checkpoint",
    "# no_subtree_check: a file that is renamed while it is open stays valid",
    "# root_squash: root of a node is not root on the files",
)
_NETWORK = (
    "# the network comes first: a mount before it fails, and is not tried again",
    "Wants=network-online.target",
    "After=network-online.target",
)
_NFS_REASONS = (
    "# hard: a write waits for a busy server; `soft` ends it with an error, and loses data",
    "# nconnect: eight connections; the rate of a single one is bound to one core",
    "# noatime: reading a file writes nothing",
)
_LUSTRE_REASONS = ("# flock: locks hold on all nodes, which HDF5 and pip ask for", "# noatime: reading writes nothing")


def _own_exports(stack: Stack) -> list[SharedMount]:
    return [mount for mount in stack.mounts if mount.server in stack.hosts("storage")]


def _shared(mount: SharedMount) -> MountUnit:
    rights = "ro" if mount.read_only else "rw"
    reasons: tuple[str, ...]
    if mount.kind == "nfs":
        what, kind = f"{mount.server}:{mount.export}", "nfs4"
        options, reasons = f"{rights},hard,nconnect=8,noatime", _NFS_REASONS
    else:
        what, kind = str(mount.device), "lustre"
        options, reasons = f"{rights},flock,noatime", _LUSTRE_REASONS
    facts = {"at": mount.at, "kind": mount.kind, "server": mount.server or "", "group": "all"}
    return _unit(mount.at, what, kind, options, reasons, facts, before=_NETWORK, target="remote-fs.target")


def _scratch(scratch: Scratch) -> MountUnit:
    reasons = (
        "# noatime: reading a file writes nothing",
        "# nofail: a node without it starts, and is drained",
    )
    facts = {"at": scratch.at, "kind": "scratch", "server": "", "group": "compute"}
    device = block_device(scratch)
    return _unit(scratch.at, device, "xfs", "noatime,nofail", reasons, facts, before=(), target="local-fs.target")


def _unit(
    at: str,
    what: str,
    kind: str,
    options: str,
    reasons: tuple[str, ...],
    facts: dict[str, Any],
    *,
    before: tuple[str, ...],
    target: str,
) -> MountUnit:
    name = unit_name(at)
    lines = [
        "[Unit]",
        f"Description={at}",
        *before,
        "",
        "[Mount]",
        f"What={what}",
        f"Where={at}",
        f"Type={kind}",
        *reasons,
        f"Options={options}",
        "",
        "[Install]",
        f"WantedBy={target}",
    ]
    return MountUnit(name, "\n".join(lines) + "\n", {"unit": name, **facts})


def unit_name(folder: str) -> str:
    r"""Name of the mount unit of a folder, as `systemd-escape --path --suffix=mount` prints it.

    >>> unit_name("/shared/data-1")
    'shared-data\\x2d1.mount'
    """
    path = "/".join(part for part in folder.split("/") if part)
    escaped = re.sub(r"[^A-Za-z0-9:_./]|^\.", lambda found: f"\\x{ord(found[0]):02x}", path)
    return f"{escaped.replace('/', '-') or '-'}.mount"
