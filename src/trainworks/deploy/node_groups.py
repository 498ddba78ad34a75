"""What a group of nodes has of its own, as variables of Ansible: packages of its driver, and its adapters."""

from __future__ import annotations

from collections.abc import Mapping

from trainworks.catalog import software
from trainworks.catalog.catalog import accelerator
from trainworks.catalog.stack_cluster import group_fabric, node_of
from trainworks.config.stack import Stack
from trainworks.config.stack_parts.layers import NoPackages, OperatingSystem
from trainworks.config.stack_parts.nodes import NodeGroup
from trainworks.config.stack_parts.software import GpuSoftware
from trainworks.deploy import racks
from trainworks.deploy.hardware import gpu_of, has_nvswitch
from trainworks.deploy.layers import named, operating_system
from trainworks.errors import ArgumentError

NO_GROUP: Mapping[str, object] = {
    "gpu_vendor": "",
    "gpu_driver_packages": [],
    "gpu_driver_version": "",
    "gpu_build_packages": [],
    "gpu_fabric_manager": False,
    "gpu_imex_packages": [],
    "gpu_peermem": False,
    "fabric_link": "",
    "slurm_group_files": [],
    "scratch_at": "",
    "kernel_arguments": [],
}
"""Variables of hosts that have neither GPUs nor rails nor jobs; those of a group override them."""


def group_variables(stack: Stack, group: NodeGroup) -> Mapping[str, object]:
    """Variables of a group of compute nodes: its scratch, its kernel, packages of its driver, and its rails.

    Raises:
        ArgumentError: the operating system has no packages of the driver.
    """
    gpu, fabric = gpu_of(stack, group), group_fabric(stack, group)
    scratch = stack.scratch_of(group)
    arguments = stack.kernel_arguments if group.kernel_arguments is None else group.kernel_arguments
    found: dict[str, object] = {
        "scratch_at": scratch.at if scratch else "",
        "kernel_arguments": [] if arguments == "none" else [*arguments],
    }
    if gpu is not None:
        key = f"nodes.{stack.nodes.index(group)}.gpu" if group.gpu else "gpu"
        found |= {"gpu_vendor": gpu.vendor, "gpu_driver_version": _driver_version(gpu)}
        found |= _nvidia(stack, group, gpu, key) if gpu.rocm is None else _amd(operating_system(stack), gpu.rocm, key)
    if fabric is not None and fabric.link is not None:
        found |= {
            "fabric_link": fabric.link,
            "fabric_rails": len(fabric.interfaces),
            "nccl_settings": nccl_settings(gpu),
            "fabric_runtimes": container_runtimes(stack),
        }
    return found


def nccl_settings(gpu: GpuSoftware | None) -> str:
    """File that NCCL reads; RCCL is AMD's build of it, with the same variables in a file of its own."""
    return "/etc/rccl.conf" if gpu is not None and gpu.vendor == "amd" else "/etc/nccl.conf"


def container_runtimes(stack: Stack) -> list[str]:
    """Programs that start containers on the compute nodes: Enroot with pyxis, Apptainer with images that it pulled."""
    has_pyxis = stack.slurm is not None and stack.slurm.pyxis is not None
    return [*(["enroot"] * has_pyxis), *(["apptainer"] * any(each.image for each in stack.environments))]


def _amd(system: OperatingSystem, rocm: str, key: str) -> Mapping[str, object]:
    """Packages of AMD's driver, which is built on the node for its kernel, `{release}` in their names."""
    kernel = "{{ ansible_facts['kernel'] }}"
    return {
        "gpu_driver_packages": named(system.packages.rocm, key, system, release=rocm),
        "gpu_build_packages": named(system.packages.kernel_modules, key, system, release=kernel),
    }


def _nvidia(stack: Stack, group: NodeGroup, gpu: GpuSoftware, key: str) -> Mapping[str, object]:
    """Packages of the driver, the fabric manager and IMEX, of one branch, and of one version where the stack has it."""
    system = operating_system(stack)
    packages = system.packages.driver
    if isinstance(packages, NoPackages):
        raise ArgumentError(f"{system.name}: {packages.none}", argument=key)
    # the open module, unless these GPUs need the other
    machine = node_of(group)
    known = software.generation(accelerator(machine.accelerator).architecture) if machine is not None else None
    is_open = known is None or known.kernel_module != "proprietary"
    has_manager = has_nvswitch(group) if gpu.fabric_manager is None else gpu.fabric_manager
    wanted = {
        "gpu_driver_packages": [
            packages.open if is_open else packages.proprietary,
            *([packages.fabric_manager] if has_manager else []),
        ],
        # where GPUs of several nodes are one NVLink domain
        "gpu_imex_packages": [packages.imex] if group.names[0] in racks.rack_of_nodes(stack) else [],
    }
    branch, version = str(software.driver_branch(str(gpu.driver))), _driver_version(gpu)
    names = {
        variable: [name for one in each for name in named(one, key, system, branch=branch)]
        for variable, each in wanted.items()
    }
    # of that version, or else of that branch
    form = system.pinned("{name}", version) if version else packages.of_branch
    return {
        **{variable: [form.format(name=name, branch=branch) for name in each] for variable, each in names.items()},
        "gpu_fabric_manager": has_manager,
        "gpu_peermem": bool(stack.fabric and stack.fabric.doca) and not is_open,
    }


def _driver_version(gpu: GpuSoftware) -> str:
    """Pattern of a package's version for a driver beyond its branch; empty for the branch alone.

    The packages of `580.126.18` have a release behind it, `580.126.18-1`.
    """
    dots = gpu.driver.count(".") if gpu.driver else 0
    return f"{gpu.driver}{'.' if dots == 1 else '-'}*" if dots else ""
