"""`gpu`, `environments`, `images`, `machine_image`, `kubernetes` and `monitoring` of the stack file."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import StringConstraints, model_validator

from trainworks.config.autoscale import DnsName, Name
from trainworks.config.quantities import SizeBytes
from trainworks.config.spec import ConfigPath, FieldError, Spec
from trainworks.config.stack_parts.words import Folder, Requirement, Version

ImageDigest = Annotated[
    str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._/:-]*@sha256:[0-9a-f]{64}$", max_length=512)
]
Release = Annotated[str, StringConstraints(pattern=r"^v?[0-9]+(\.[0-9]+)+$", max_length=32)]


class GpuSoftware(Spec):
    """Driver of GPUs; `none` in its place installs none. CUDA and ROCm's libraries come with each environment."""

    vendor: Literal["nvidia", "amd", "none"] = "nvidia"
    """Maker of the GPUs; `amd` where `rocm` is given."""
    driver: Version | None = None
    """With `nvidia`: branch or version of the driver: `580`, `580.126.18`."""
    rocm: Version | None = None
    """With `amd`: release of ROCm whose driver is installed, `6.4`, from AMD's repository, which you set up."""
    fabric_manager: bool | None = None
    """Install the fabric manager of the same version, which GPUs behind NVSwitches need; by default where they are."""
    detect: Literal["files", "nvml", "rsmi"] = "files"
    """How Slurm finds GPUs: by device files, which every build can, or by NVML or AMD's RSMI, which it must be built
    with."""

    @model_validator(mode="before")
    @classmethod
    def _by_a_word(cls, value: object) -> object:
        if value == "none":
            return {"vendor": "none"}
        if isinstance(value, dict) and "rocm" in value:
            return {"vendor": "amd", **value}
        return value

    @model_validator(mode="after")
    def _keys_of_its_vendor(self) -> GpuSoftware:
        needed = {"nvidia": "driver", "amd": "rocm", "none": None}[self.vendor]
        given = [key for key in ("driver", "rocm", "fabric_manager") if getattr(self, key) is not None]
        if needed is not None and needed not in given:
            raise FieldError(f"GPUs of `{self.vendor}` need `{needed}`", hint="write its release, or `gpu: none`")
        allowed = {"nvidia": ("driver", "fabric_manager"), "amd": ("rocm",), "none": ()}[self.vendor]
        if other := [key for key in given if key not in allowed]:
            raise FieldError(f"`{other[0]}` is not for `vendor: {self.vendor}`", hint="remove one of the two")
        if self.detect != "files" and self.detect != {"nvidia": "nvml", "amd": "rsmi"}.get(self.vendor):
            raise FieldError(f"`detect: {self.detect}` is not for `{self.vendor}`", hint="write `detect: files`")
        return self


class SoftwareEnvironment(Spec):
    """Software of jobs: a virtual environment on a shared file system, or a container image."""

    name: Name
    image: Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._/:@-]*$", max_length=512)] | None = None
    """A container image, best with its digest: `name@sha256:...`."""
    torch: Version | None = None
    """Release of PyTorch in a virtual environment."""
    cuda: Version | None = None
    """CUDA of the wheels or of the image; that of an image named `nvidia/cuda:` is known."""
    rocm: Version | None = None
    """ROCm of the wheels, for GPUs of AMD."""
    packages: tuple[Requirement, ...] = ()
    """Further packages of a virtual environment."""
    at: ConfigPath
    """Folder of the virtual environments or images, on a shared file system."""

    @model_validator(mode="after")
    def _one_kind(self) -> SoftwareEnvironment:
        if (self.image is None) == (self.torch is None):
            raise FieldError("an environment has exactly one of `torch` and `image`")
        if self.torch is not None and self.cuda is None and self.rocm is None:
            raise FieldError("`torch` needs `cuda`: its wheels are built for one", hint='write `cuda: "13.0"`')
        if self.rocm is not None and (self.torch is None or self.cuda is not None):
            raise FieldError("`rocm` is for wheels of `torch` without `cuda`", hint="write two environments")
        return self


class ImageRecipe(Spec):
    """A container image to build: a base, and the wheels of a lock file."""

    name: DnsName
    base: ImageDigest
    """Image with Python, by its digest: `docker.io/library/python:3.12-slim@sha256:...`."""
    cuda: Version | None = None
    """CUDA of the wheels of PyTorch."""
    rocm: Version | None = None
    """ROCm of the wheels; with neither, they are those for CPUs."""
    lock: Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9._][A-Za-z0-9._/-]*$", max_length=255)]
    """Requirements with versions and hashes, beside the stack file; `uv pip compile --generate-hashes` writes one."""

    @model_validator(mode="after")
    def _one_accelerator(self) -> ImageRecipe:
        if self.cuda is not None and self.rocm is not None:
            raise FieldError("an image is for CUDA or for ROCm", hint="write two recipes")
        return self


class MachineImage(Spec):
    """An image of a compute node, which Packer builds from a cloud image with the roles of this project."""

    source: Annotated[str, StringConstraints(pattern=r"^https://[^\s\"$\\{]+$", max_length=512)]
    """Address of the cloud image of the operating system."""
    checksum: Annotated[str, StringConstraints(pattern=r"^sha256:[0-9a-f]{64}$")]
    disk: SizeBytes = 40 * 2**30
    """Size of the disk."""


class KubernetesBundle(Spec):
    """Kubernetes on the compute nodes, beside or instead of Slurm: operators, queues, volumes and policies."""

    gpu_operator: Release
    """Release of NVIDIA's GPU operator: `v26.7.0`."""
    network_operator: Release | None = None
    """Release of NVIDIA's network operator, for RDMA in pods."""
    jobset: Release
    kueue: Release
    """Release of Kueue, 0.15 or newer: the first one that serves the API v1beta2."""
    prometheus_operator: bool = True
    """The cluster has the Prometheus operator: render PodMonitors."""

    @model_validator(mode="after")
    def _kueue_serves_the_queues(self) -> KubernetesBundle:
        major, minor = (int(part) for part in self.kueue.removeprefix("v").split(".")[:2])
        if (major, minor) < (0, 15):
            raise FieldError(f"`kueue` {self.kueue} does not serve the API v1beta2", hint="take v0.15.0 or newer")
        return self


class Monitoring(Spec):
    """Prometheus and Alertmanager on the node with the role `monitoring`; exporters on the nodes that they watch."""

    page: Annotated[str, StringConstraints(pattern=r"^https?://\S+$")] | None = None
    """Webhook of critical alerts."""
    ticket: Annotated[str, StringConstraints(pattern=r"^https?://\S+$")] | None = None
    """Webhook of the others."""
    trainworks: Folder = "/opt/trainworks"
    """Virtual environment of Trainworks on the compute nodes and the controller, whose exporter runs from it. The role
    installs it from the package index, unless `bin/trainworks` is there."""
    grafana: bool = False
    """Grafana with the dashboards of Trainworks, from Grafana's own package repository, on loopback of that node."""
