"""What a group of nodes has of its own, as variables of Ansible: packages of its driver, and its adapters."""

from __future__ import annotations

from collections.abc import Mapping

from trainworks.catalog import software
from trainworks.catalog.catalog import accelerator
from trainworks.catalog.stack_cluster import group_fabric, node_of
from trainworks.config.stack import Stack
from trainworks.config.stack_parts.nodes import NodeGroup
from trainworks.config.stack_parts.software import GpuSoftware
from trainworks.deploy import racks
from trainworks.deploy.hardware import gpu_of, has_nvswitch

NO_GROUP: Mapping[str, object] = {"gpu_driver_packages": [], "fabric_link": "", "slurm_group_files": []}
"""Variables of hosts that have neither GPUs nor rails nor jobs; those of a group override them."""


def group_variables(stack: Stack, group: NodeGroup, apt: bool) -> Mapping[str, object]:
    """Variables of a group of compute nodes: packages of its driver, and its rails."""
    gpu, fabric = gpu_of(stack, group), group_fabric(stack, group)
    found: dict[str, object] = {}
    if gpu is not None:
        found |= {
            "gpu_vendor": gpu.vendor,
            "gpu_driver_packages": _driver_packages(stack, group, gpu, apt),
            "gpu_driver_version": _driver_version(gpu),
            "gpu_fabric_manager": _needs_fabric_manager(gpu, group),
            "gpu_imex_packages": _imex_packages(stack, group, gpu, apt),
        }
    if fabric is not None and fabric.link is not None:
        found |= {
            "fabric_link": fabric.link,
            "fabric_rails": len(fabric.interfaces),
            "nccl_settings": nccl_settings(gpu),
        }
    return found


def nccl_settings(gpu: GpuSoftware | None) -> str:
    """File that NCCL reads; RCCL is AMD's build of it, with the same variables in a file of its own."""
    return "/etc/rccl.conf" if gpu is not None and gpu.vendor == "amd" else "/etc/nccl.conf"


def _driver_packages(stack: Stack, group: NodeGroup, gpu: GpuSoftware, apt: bool) -> list[str]:
    """Packages of the driver and of the fabric manager, of the same branch, and of the same version where one is given.

    Ubuntu has NVIDIA's itself; for others, and for AMD's, the repository of the maker has to be set up before.
    """
    if gpu.rocm is not None:
        # rocm-core has the release in its version, and keeps packages of another one out
        return ["amdgpu-dkms", f"rocm-core{'=' if apt else '-'}{gpu.rocm}.*", "rocm-smi-lib"]
    branch, version = software.driver_branch(str(gpu.driver)), _driver_version(gpu)
    # the open module, unless these GPUs need the other
    machine = node_of(group)
    known = software.generation(accelerator(machine.accelerator).architecture) if machine is not None else None
    is_open = known is None or known.kernel_module != "proprietary"
    if stack.os.startswith("Ubuntu"):
        names = [f"nvidia-driver-{branch}-server{'-open' if is_open else ''}", f"nvidia-utils-{branch}-server"]
    elif apt:
        names = [f"nvidia-open-{branch}" if is_open else f"cuda-drivers-{branch}"]
    else:
        module = "kmod-nvidia-open-dkms" if is_open else "kmod-nvidia-latest-dkms"
        names = ["nvidia-driver", "nvidia-driver-cuda", module]
    if _needs_fabric_manager(gpu, group):
        names.append(f"nvidia-fabricmanager-{branch}" if apt else "nvidia-fabric-manager")
    if not apt:  # one name for all branches
        return [f"{name}-{version or f'{branch}.*'}" for name in names]
    return [f"{name}={version}" for name in names] if version else names


def _driver_version(gpu: GpuSoftware) -> str:
    """Pattern of a package's version for a driver beyond its branch; empty for the branch alone.

    The packages of `580.126.18` have a release behind it, `580.126.18-1`.
    """
    dots = gpu.driver.count(".") if gpu.driver else 0
    return f"{gpu.driver}{'.' if dots == 1 else '-'}*" if dots else ""


def _imex_packages(stack: Stack, group: NodeGroup, gpu: GpuSoftware, apt: bool) -> list[str]:
    """The package of IMEX of the driver's branch, where GPUs of several nodes are one NVLink domain."""
    if gpu.driver is None or group.names[0] not in racks.rack_of_nodes(stack):
        return []
    branch, version = software.driver_branch(gpu.driver), _driver_version(gpu)
    if not apt:
        return [f"nvidia-imex-{version or f'{branch}.*'}"]
    return [f"nvidia-imex-{branch}={version}" if version else f"nvidia-imex-{branch}"]


def _needs_fabric_manager(gpu: GpuSoftware, group: NodeGroup) -> bool:
    return has_nvswitch(group) if gpu.fabric_manager is None else gpu.fabric_manager
