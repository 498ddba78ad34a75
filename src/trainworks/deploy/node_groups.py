"""What a group of nodes has of its own: packages of a driver, adapters, and files, as variables of Ansible."""

from __future__ import annotations

from collections.abc import Mapping

from trainworks.catalog import software
from trainworks.catalog.catalog import accelerator
from trainworks.catalog.stack_cluster import node_of
from trainworks.config.stack import Stack
from trainworks.config.stack_parts.nodes import NodeGroup
from trainworks.config.stack_parts.software import GpuSoftware
from trainworks.deploy import racks
from trainworks.deploy.fabric.switches import ROCE
from trainworks.deploy.hardware import fabric_of, gpu_of, has_nvswitch
from trainworks.deploy.slurm_conf import node_scripts
from trainworks.deploy.templating import render
from trainworks.plan.network.nccl import ADDING_SWITCHES

NO_GROUP: Mapping[str, object] = {"gpu_driver_packages": [], "fabric_link": "", "slurm_group_files": []}
"""Variables of hosts that have neither GPUs nor rails nor jobs; those of a group override them."""


def group_variables(stack: Stack, apt: bool) -> dict[str, Mapping[str, object]]:
    """Variables of each group of compute nodes, by its name in the inventory."""
    return {name: _variables(stack, name, group, apt) for name, group in _computing(stack).items()}


def group_files(stack: Stack) -> dict[str, str]:
    """Files of the roles `scheduler` and `fabric` that a group has of its own, by path."""
    files: dict[str, str] = {}
    for name, group in _computing(stack).items():
        files |= {f"roles/scheduler/files/{name}/{file}": text for file, text in node_scripts(stack, group).items()}
        files |= {f"roles/fabric/files/{name}/{file}": text for file, text in fabric_files(stack, group).items()}
    return files


def fabric_files(stack: Stack, group: NodeGroup) -> dict[str, str]:
    """Files that name the adapters of a group, which NCCL, UCX and the scripts of RoCE read; empty without some."""
    fabric, gpu = fabric_of(stack, group), gpu_of(stack, group)
    if fabric is None or fabric.link is None:
        return {}
    names = ["nccl.conf", *(["ucx.conf", "mpi-check.sh"] if fabric.mpi is not None else [])]
    names += ["roce-host.sh", "roce-check.sh"] if fabric.link == "roce" else []
    ends = zip(fabric.interfaces, fabric.devices, strict=True) if fabric.link == "roce" else ()
    pairs = " ".join(f"{interface}:{device}" for interface, device in ends)
    has_cuda = fabric.mpi is not None and fabric.mpi.cuda and gpu is not None and gpu.vendor == "nvidia"
    facts = {"fabric": fabric, "roce": ROCE, "adding_switches": ADDING_SWITCHES, "pairs": pairs, "has_cuda": has_cuda}
    return {name: render(f"fabric/{name}", **facts) for name in names}


def _computing(stack: Stack) -> dict[str, NodeGroup]:
    return {name: group for name, group in stack.group_names.items() if "compute" in group.roles}


def _variables(stack: Stack, name: str, group: NodeGroup, apt: bool) -> Mapping[str, object]:
    gpu, fabric = gpu_of(stack, group), fabric_of(stack, group)
    found: dict[str, object] = {"node_group": name, "slurm_group_files": list(node_scripts(stack, group))}
    if gpu is not None:
        found |= {
            "gpu_vendor": gpu.vendor,
            "gpu_driver_packages": _driver_packages(stack, group, gpu, apt),
            "gpu_driver_version": _driver_version(gpu),
            "gpu_fabric_manager": _needs_fabric_manager(gpu, group),
            "gpu_imex_packages": _imex_packages(stack, group, gpu, apt),
        }
    if fabric is not None and fabric.link is not None:
        is_amd = gpu is not None and gpu.vendor == "amd"
        found |= {
            "fabric_link": fabric.link,
            "fabric_rails": len(fabric.interfaces),
            # RCCL is AMD's build of NCCL, with the same variables in a file of its own
            "nccl_settings": "/etc/rccl.conf" if is_amd else "/etc/nccl.conf",
        }
    return found


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
