"""`mounts`, `scratch` and `metadata` of the stack file."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, StringConstraints, model_validator

from trainworks.config.autoscale import DnsName, Name
from trainworks.config.spec import ConfigPath, FieldError, Spec
from trainworks.config.stack_parts.words import Folder, MountSource

MountKind = Literal["nfs", "lustre", "cephfs", "beegfs", "scale"]
_NAMES: dict[MountKind, str] = {
    "nfs": "NFS",
    "lustre": "Lustre",
    "cephfs": "CephFS",
    "beegfs": "BeeGFS",
    "scale": "Storage Scale",
}
_NEEDED: dict[MountKind, tuple[str, ...]] = {
    "nfs": ("server", "export"),
    "lustre": ("device",),
    "cephfs": ("monitors", "file_system", "client"),
    "beegfs": ("server",),
    "scale": ("device",),
}
"""Keys that say what is mounted, by kind."""
_OPTIONAL: dict[MountKind, tuple[str, ...]] = {"cephfs": ("export",), "lustre": ("folders",)}
_SOURCE_KEYS = ("server", "export", "device", "monitors", "file_system", "client", "folders")


class StripedFolder(Spec):
    """A folder of Lustre, and the files that it is for."""

    path: Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._/-]*$", max_length=255)]
    """Folder below the mount."""
    use: Literal["checkpoints", "shards", "samples"]
    """What it holds: checkpoints, shards of a dataset, or samples as one small file each."""


class SharedMount(Spec):
    """A shared file system on all nodes."""

    kind: MountKind
    at: Folder
    """Folder where all nodes see it."""
    server: DnsName | None = None
    """With `nfs`: host that exports it; one of the stack with the role `storage`, or an appliance. With `beegfs`: host
    of the management daemon."""
    export: ConfigPath | None = None
    """With `nfs` and `cephfs`: folder on the server; by default all of a CephFS."""
    device: MountSource | None = None
    """With `lustre`: what is mounted, `10.0.0.5@o2ib:/scratch`; with `scale`: name of the file system, `fs1`."""
    monitors: tuple[DnsName, ...] = ()
    """With `cephfs`: hosts of the monitors."""
    file_system: Name | None = None
    """With `cephfs`: name of the file system."""
    client: Name | None = None
    """With `cephfs`: user of Ceph. Its key comes from `secrets/ceph.client.NAME.secret` of the project."""
    folders: tuple[StripedFolder, ...] = ()
    """With `lustre`: folders to create, each striped for what it holds."""
    read_only: bool = False

    @model_validator(mode="after")
    def _source_of_its_kind(self) -> SharedMount:
        needed = _NEEDED[self.kind]
        allowed = (*needed, *_OPTIONAL.get(self.kind, ()))
        given = {key for key in _SOURCE_KEYS if getattr(self, key)}
        if not given >= set(needed) or not given <= set(allowed):
            words = " and ".join(f"`{key}`" for key in needed)
            others = ", ".join(f"`{key}`" for key in _SOURCE_KEYS if key not in allowed)
            raise FieldError(f"a mount of {_NAMES[self.kind]} has {words}, and none of {others}")
        if self.read_only and self.folders:
            raise FieldError("`folders` are created, and the mount is read-only", hint="remove one of the two")
        return self


class Scratch(Spec):
    """Local scratch of compute nodes: the NVMe drives of each as one RAID 0."""

    devices: Annotated[tuple[ConfigPath, ...], Field(min_length=1)]
    """Drives: `/dev/nvme1n1`. Empty ones are formatted; several that hold something are refused."""
    at: Folder = "/scratch"


class MetadataArray(Spec):
    """A mirrored file system of every host with the role `storage`, for metadata and what it exports: a RAID 10."""

    devices: Annotated[tuple[ConfigPath, ...], Field(min_length=4)]
    """Drives, an even number; those that hold something are refused."""
    at: Folder
    """Folder: `/export`."""

    @model_validator(mode="after")
    def _pairs(self) -> MetadataArray:
        if len(self.devices) % 2:
            raise FieldError(f"RAID 10 mirrors pairs of drives, and there are {len(self.devices)}", hint="add one")
        return self
