"""Exports of file servers and mount units of their clients; each option that is not obvious has its reason.

Source: exports(5), nfs(5), systemd.mount(5), mount.lustre(8), mount.ceph(8), lfs-setstripe(1), mdadm(8), xfs(5), and
the comments of beegfs-client.conf.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from trainworks.config.stack import Stack
from trainworks.config.stack_parts.storage import MetadataArray, MountKind, Scratch, SharedMount

SCRATCH_ARRAY = "/dev/md/scratch"
METADATA_ARRAY = "/dev/md/metadata"
_CEPH_PORT = 3300


@dataclass(frozen=True, slots=True)
class MountUnit:
    """A mount of systemd."""

    name: str
    """File name, which systemd derives from the folder."""
    text: str
    facts: Mapping[str, object]
    """What the storage role has to know."""

    @property
    def path(self) -> str:
        """Path in the files of the role: two groups of nodes may have one folder from other drives."""
        return str(self.facts["file"])


def exports(stack: Stack) -> dict[str, str]:
    """Text of the exports of each of the stack's own file servers, by its name."""
    lines: dict[str, list[str]] = {}
    for server, mount in _own_exports(stack):
        rights = "ro" if mount.read_only else "rw"
        line = f"{mount.export} {stack.network}({rights},sync,no_subtree_check,root_squash)"
        lines.setdefault(server, [*_EXPORT_REASONS]).append(line)
    return {server: "\n".join(each) + "\n" for server, each in lines.items()}


def exported_folders(stack: Stack) -> dict[str, list[str]]:
    """Folders that each of the stack's own file servers exports, by its name."""
    own = list(_own_exports(stack))
    return {
        server: list(dict.fromkeys(mount.export for each, mount in own if each == server and mount.export))
        for server, _ in own
    }


def mount_units(stack: Stack) -> list[MountUnit]:
    """Units of all mounts, of the local scratch of compute nodes, and of the mirrored drives of file servers."""
    units = [_shared(mount) for mount in stack.mounts if mount.kind != "scale"]
    units += [
        _local(scratch.at, _drive(scratch), group, "noatime,nofail", _SCRATCH_REASONS)
        for group, scratch in stack.scratches
    ]
    return units + ([_metadata(stack.metadata)] if stack.metadata else [])


def arrays(stack: Stack) -> list[Mapping[str, object]]:
    """Local file systems of drives, as the storage role creates them; the level is left out for a single drive."""
    found = []
    for group, scratch in stack.scratches:
        options = ["--level=0"] if len(scratch.devices) > 1 else []
        found.append(_array(group, _drive(scratch), options, scratch.devices, scratch.at))
    if stack.metadata is not None:
        options = ["--level=10", "--layout=n2", "--bitmap=internal"]
        found.append(_array("storage", METADATA_ARRAY, options, stack.metadata.devices, stack.metadata.at))
    return found


def secret_files(stack: Stack) -> list[dict[str, str]]:
    """Keys of file systems: the name below `secrets` of the project, and the path on the nodes."""
    found = [
        {"secret": f"ceph.client.{mount.client}.secret", "path": _ceph_key(mount)}
        for mount in stack.mounts
        if mount.kind == "cephfs"
    ]
    if any(mount.kind == "beegfs" for mount in stack.mounts):
        found.append({"secret": "beegfs.conn.auth", "path": _BEEGFS_KEY})
    return list({each["path"]: each for each in found}.values())


def beegfs_files(stack: Stack) -> dict[str, str]:
    """Configuration of BeeGFS's client for each of its mounts, by name."""
    return {_beegfs_file(mount): _beegfs_text(mount) for mount in stack.mounts if mount.kind == "beegfs"}


def striped_folders(stack: Stack) -> list[Mapping[str, object]]:
    """Folders of Lustre with the command that stripes each, and the reason."""
    return [
        {"path": f"{mount.at}/{folder.path}", "options": list(options), "why": why}
        for mount in stack.mounts
        for folder in mount.folders
        for options, why in [_STRIPES[folder.use]]
    ]


def _array(group: str, device: str, options: list[str], drives: tuple[str, ...], at: str) -> Mapping[str, object]:
    name = device.rpartition("/")[2]
    return {"group": group, "device": device, "options": options, "drives": list(drives), "at": at, "name": name}


_BEEGFS_KEY = "/etc/beegfs/conn.auth"
_STRIPES: dict[str, tuple[tuple[str, ...], str]] = {
    "checkpoints": (
        ("-E", "1G", "-c", "1", "-S", "16M", "-E", "16G", "-c", "4", "-E", "-1", "-c", "-1"),
        "a rank writes its part at once: small parts on one target each, large ones over all, in pieces of 16 MiB",
    ),
    "shards": (
        ("-c", "1", "-S", "4M"),
        "many files are read at a time, which spreads them; a second target would only add an open",
    ),
    "samples": (
        ("-E", "64K", "-L", "mdt", "-E", "-1", "-c", "1"),
        "the first 64 KiB are on the metadata target: a small file is opened and read in one request",
    ),
}
"""Options of `lfs setstripe` by what a folder holds, and why."""


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
_SCRATCH_REASONS = ("# noatime: reading a file writes nothing", "# nofail: a node without it starts, and is drained")
_LUSTRE_REASONS = ("# flock: locks hold on all nodes, which HDF5 and pip ask for", "# noatime: reading writes nothing")
_CEPH_REASONS = (
    "# secretfile: the key itself would show in the unit and in the list of processes",
    "# ms_mode: the second version of the protocol, at port 3300, with checksums; `secure` would encrypt as well",
    "# noatime: reading a file writes nothing",
)
_BEEGFS_REASONS = (
    "# cfgFile: the management daemon and the key of the connections; a second file system has a file of its own",
    "# _netdev: systemd does not know the type, and would mount it with the local drives, before the network",
)


def _own_exports(stack: Stack) -> Iterator[tuple[str, SharedMount]]:
    """NFS mounts of the stack's own file servers, each with its server."""
    for mount in stack.mounts:
        if mount.kind == "nfs" and mount.server is not None and mount.server in stack.hosts("storage"):
            yield mount.server, mount


def _shared(mount: SharedMount) -> MountUnit:
    what, kind, options, reasons = _SOURCES[mount.kind](mount)
    facts = {"at": mount.at, "kind": mount.kind, "server": mount.server or "", "group": "all"}
    options = f"{'ro' if mount.read_only else 'rw'},{options}"
    return _unit(mount.at, what, kind, options, reasons, facts, before=_NETWORK, target="remote-fs.target")


def mounted_as(mount: SharedMount) -> tuple[str, str]:
    """Source and type of a mount, as `findmnt` prints them."""
    return (str(mount.device), "gpfs") if mount.kind == "scale" else _SOURCES[mount.kind](mount)[:2]


def is_mounted_as(mount: SharedMount, found: str) -> bool:
    """Whether `findmnt` printed this mount: the client of CephFS writes monitors or the cluster before the folder."""
    source, kind = mounted_as(mount)
    if mount.kind == "cephfs":
        folder = mount.export or "/"
        return found.endswith((f":{folder} {kind}", f"={folder} {kind}"))
    return found == f"{source} {kind}"


_MountSource = tuple[str, str, str, tuple[str, ...]]
"""What is mounted, its type, its options, and their reasons."""


def _cephfs(mount: SharedMount) -> _MountSource:
    monitors = ",".join(f"{monitor}:{_CEPH_PORT}" for monitor in mount.monitors)
    options = f"name={mount.client},secretfile={_ceph_key(mount)},fs={mount.file_system},ms_mode=prefer-crc,noatime"
    return f"{monitors}:{mount.export or '/'}", "ceph", options, _CEPH_REASONS


_SOURCES: dict[MountKind, Callable[[SharedMount], _MountSource]] = {
    "nfs": lambda mount: (f"{mount.server}:{mount.export}", "nfs4", "hard,nconnect=8,noatime", _NFS_REASONS),
    "lustre": lambda mount: (str(mount.device), "lustre", "flock,noatime", _LUSTRE_REASONS),
    "cephfs": _cephfs,
    "beegfs": lambda mount: (
        "beegfs_nodev",
        "beegfs",
        f"cfgFile=/etc/beegfs/{_beegfs_file(mount)},_netdev",
        _BEEGFS_REASONS,
    ),
}
"""Sources by kind; Storage Scale mounts by its own command, and has no unit."""


def _ceph_key(mount: SharedMount) -> str:
    return f"/etc/ceph/ceph.client.{mount.client}.secret"


def _beegfs_file(mount: SharedMount) -> str:
    return f"client-{mount.at.strip('/').replace('/', '-')}.conf"


def _beegfs_text(mount: SharedMount) -> str:
    lines = [
        f"sysMgmtdHost = {mount.server}",
        "# the servers refuse a client without the same key",
        f"connAuthFile = {_BEEGFS_KEY}",
        "# RDMA where there is an adapter, TCP otherwise",
        "connUseRDMA = true",
        "# locks hold on all nodes, which HDF5 and pip ask for; by default on one node alone",
        "tuneUseGlobalFileLocks = true",
        "tuneUseGlobalAppendLocks = true",
        "# a checkpoint is on the drives of the servers once `fsync` returns",
        "tuneRemoteFSync = true",
    ]
    return "\n".join(lines) + "\n"


def _drive(scratch: Scratch) -> str:
    return SCRATCH_ARRAY if len(scratch.devices) > 1 else scratch.devices[0]


def _metadata(metadata: MetadataArray) -> MountUnit:
    reasons = (
        "# noatime: reading a file writes nothing",
        "# without nofail: a server that starts without its drives would export an empty folder",
    )
    return _local(metadata.at, METADATA_ARRAY, "storage", "noatime", reasons)


def _local(at: str, device: str, group: str, options: str, reasons: tuple[str, ...]) -> MountUnit:
    facts = {"at": at, "kind": "local", "server": "", "group": group}
    return _unit(at, device, "xfs", options, reasons, facts, before=(), target="local-fs.target")


def _unit(
    at: str,
    what: str,
    kind: str,
    options: str,
    reasons: tuple[str, ...],
    facts: Mapping[str, object],
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
    # a role is one group of the inventory, and `nodes_gpu` one of several with a unit of that name
    file = f"{facts['group']}/{name}" if str(facts["group"]).startswith("nodes_") else name
    return MountUnit(name, "\n".join(lines) + "\n", {"unit": name, "file": file, **facts})


def unit_name(folder: str) -> str:
    r"""Name of the mount unit of a folder, as `systemd-escape --path --suffix=mount` prints it.

    >>> unit_name("/shared/data-1")
    'shared-data\\x2d1.mount'
    """
    path = "/".join(part for part in folder.split("/") if part)
    escaped = re.sub(r"[^A-Za-z0-9:_./]|^\.", lambda found: f"\\x{ord(found[0]):02x}", path)
    return f"{escaped.replace('/', '-') or '-'}.mount"
