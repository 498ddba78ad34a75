"""`gpu`, `environments` and `monitoring` of the stack file."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import StringConstraints, model_validator

from trainworks.config.autoscale import ConfigPath, Name
from trainworks.config.spec import FieldError, Spec
from trainworks.config.stack_parts.words import Requirement, Version


class GpuSoftware(Spec):
    """Software of NVIDIA GPUs on the compute nodes. CUDA comes with each environment and not with the node."""

    driver: Version
    """Branch or version of the driver: `580`, `580.126.18`."""
    fabric_manager: bool | None = None
    """Install the fabric manager of the same version, which GPUs behind NVSwitches need; by default where they are."""
    detect: Literal["files", "nvml"] = "files"
    """How Slurm finds GPUs: by device files, which every build can, or by NVML, which it must be built with."""


class SoftwareEnvironment(Spec):
    """Software of jobs: a virtual environment on a shared file system, or a container image."""

    name: Name
    image: Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._/:@-]*$", max_length=512)] | None = None
    """A container image, best with its digest: `name@sha256:...`."""
    torch: Version | None = None
    """Release of PyTorch in a virtual environment."""
    cuda: Version | None = None
    """CUDA of the wheels or of the image; that of an image named `nvidia/cuda:` is known."""
    packages: tuple[Requirement, ...] = ()
    """Further packages of a virtual environment."""
    at: ConfigPath
    """Folder of the virtual environments or images, on a shared file system."""

    @model_validator(mode="after")
    def _one_kind(self) -> SoftwareEnvironment:
        if (self.image is None) == (self.torch is None):
            raise FieldError("an environment has exactly one of `torch` and `image`")
        if self.torch is not None and self.cuda is None:
            raise FieldError("`torch` needs `cuda`: its wheels are built for one", hint='write `cuda: "13.0"`')
        return self


class Monitoring(Spec):
    """Prometheus and Alertmanager on the node with the role `monitoring`."""

    page: Annotated[str, StringConstraints(pattern=r"^https?://\S+$")] | None = None
    """Webhook of critical alerts."""
    ticket: Annotated[str, StringConstraints(pattern=r"^https?://\S+$")] | None = None
    """Webhook of the others."""
