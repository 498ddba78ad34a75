"""Hardware of a stack, from the catalogue or as the stack file describes it."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from trainworks.catalog.catalog import accelerator, has, load_catalog, node, processor
from trainworks.catalog.facts import Accelerator
from trainworks.catalog.stack_cluster import has_accelerators, node_of
from trainworks.config.command import AcceleratorRequest
from trainworks.config.stack import Stack
from trainworks.config.stack_parts.nodes import Hardware, NodeGroup
from trainworks.config.stack_parts.software import GpuSoftware
from trainworks.errors import ArgumentError, UsageError

REPORTED_SHARE = 0.95
"""Memory that a kernel reports, over what is installed: firmware and the kernel itself keep the rest."""


def hardware_of(group: NodeGroup) -> Hardware:
    """Hardware of a group of nodes: as described, else that of its machine; memory as a kernel reports it.

    Raises:
        UsageError: the catalogue does not have the machine, or does not know its processors or memory.
    """
    if group.machine is None:
        assert group.hardware is not None, "compute nodes have one of both"
        return group.hardware
    machine = node(group.machine)
    accelerators = None
    if machine.accelerators:
        accelerators = AcceleratorRequest(name=machine.accelerator, count=machine.accelerators)
    if group.hardware is not None:
        return group.hardware.model_copy(update={"accelerators": accelerators})
    if machine.processor is None or machine.processors is None or machine.host_memory_bytes is None:
        hint = "describe it with `hardware`, from `slurmd -C` on a node"
        raise UsageError(f"the catalogue does not know the processors and memory of `{machine.name}`", hint=hint)
    cores = processor(machine.processor).cores
    threads = (machine.vcpus or machine.processors * cores) // (machine.processors * cores)
    return Hardware(
        sockets=machine.processors,
        cores_per_socket=cores,
        threads_per_core=max(1, threads),
        memory=int(machine.host_memory_bytes * REPORTED_SHARE),
        accelerators=accelerators,
    )


def architectures(stack: Stack) -> list[str]:
    """Architectures of the compute nodes, as far as the catalogue knows their processors."""
    machines = [node(group.machine) for group in stack.groups("compute") if group.machine is not None]
    return sorted({processor(each.processor).architecture for each in machines if each.processor is not None})


def gres_kind(name: str) -> str:
    """Type of an accelerator in Slurm: the first word of a name of the catalogue, in small letters; else the name.

    >>> gres_kind("H100-SXM-80GB"), gres_kind("mig-1g")
    ('h100', 'mig-1g')
    """
    return name.partition("-")[0].lower() if name in load_catalog().accelerators else name


def gres_of(accelerators: AcceleratorRequest) -> str:
    """Accelerators of a node as Slurm counts them.

    >>> gres_of(AcceleratorRequest(name="H100-SXM-80GB", count=8))
    'gpu:h100:8'
    """
    return f"gpu:{gres_kind(accelerators.name)}:{accelerators.count}"


def is_of_amd(accelerators: AcceleratorRequest) -> bool:
    """Whether accelerators are made by AMD, as far as the catalogue knows them."""
    return has("accelerators", accelerators.name) and accelerator(accelerators.name).vendor == "AMD"


def gres_devices(accelerators: AcceleratorRequest, cores: Sequence[str] = ()) -> list[str]:
    """Their device files as gres.conf names them: a line for the GPUs with the same nearest cores, which follow.

    GPUs of AMD are render nodes of the kernel, from number 128 on.
    """
    prefix, first, flags = ("/dev/dri/renderD", 128, " Flags=amd_gpu_env") if is_of_amd(accelerators) else _NVIDIA
    lines, start = [], 0
    for near, same in groupby(f" Cores={each}" if each else "" for each in cores or [""] * accelerators.count):
        end = start + len(list(same)) - 1
        files = f"{prefix}[{first + start}-{first + end}]" if end > start else f"{prefix}{first + start}"
        lines.append(f"Name=gpu Type={gres_kind(accelerators.name)} File={files}{near}{flags}")
        start = end + 1
    return lines


_NVIDIA = ("/dev/nvidia", 0, "")
"""Device files of NVIDIA's GPUs: beginning, first number, and flags of gres.conf."""


def gpu_of(stack: Stack, group: NodeGroup) -> GpuSoftware | None:
    """Driver of the accelerators of a group: its own, else that of the stack; None where the project installs none."""
    found = (group.gpu or stack.gpu) if "compute" in group.roles and has_accelerators(group) else None
    return None if found is None or found.vendor == "none" else found


def check_names(stack: Stack) -> None:
    """Look up everything that a stack names in the catalogue.

    Raises:
        ArgumentError: the catalogue does not have it; the argument is the path of the key.
    """
    for index, group in enumerate(stack.nodes):
        if "compute" not in group.roles:
            continue
        key = "machine" if group.machine is not None else "hardware.accelerators"
        try:
            described = hardware_of(group)
            machine = node_of(group)
            part = accelerator(machine.accelerator) if machine is not None else None
            if part is not None:
                _check_vendor(stack, group, part)
        except UsageError as error:
            raise ArgumentError(error.message, argument=f"nodes.{index}.{key}", hint=error.hint) from None
        if group.reserved_cores >= described.sockets * described.cores_per_socket:
            raise ArgumentError("jobs get no core", argument=f"nodes.{index}.reserved_cores", hint="reserve fewer")
        if group.reserved_memory is not None and group.reserved_memory >= described.memory:
            raise ArgumentError("jobs get no memory", argument=f"nodes.{index}.reserved_memory", hint="reserve less")


def _check_vendor(stack: Stack, group: NodeGroup, part: Accelerator) -> None:
    made, gpu = f"`{part.name}` is made by {part.vendor}", gpu_of(stack, group)
    if part.vendor not in ("NVIDIA", "AMD"):
        hint = "leave these nodes out of the stack"
        raise UsageError(f"{made}, and the roles know drivers and devices of NVIDIA and AMD alone", hint=hint)
    if gpu is not None and gpu.vendor != part.vendor.lower():
        hint = 'write `gpu: {rocm: "6.4"}`, `gpu: {driver: "580"}` or `gpu: none` into this group of `nodes`'
        raise UsageError(f"{made}, and `gpu` is a driver for `{gpu.vendor}`", hint=hint)
    if part.vendor == "AMD" and stack.kubernetes is not None:
        hint = "remove `kubernetes`, or leave these nodes out of the stack"
        raise UsageError(f"{made}, and the operators of `kubernetes` are NVIDIA's", hint=hint)


def has_nvswitch(group: NodeGroup) -> bool:
    """True if the GPUs of a node reach each other over its own NVSwitches, which need a fabric manager.

    Those are nodes with over four GPUs in one scale-up domain, from Ampere on, and with the sixteen V100 of a DGX-2.
    The NVSwitches of an NVL72 are in trays of their own, which run the fabric manager themselves.
    """
    machine = node_of(group)
    if machine is None:
        return False
    part = accelerator(machine.accelerator)
    least = 4 if part.launched >= 2020 else 8
    return part.vendor == "NVIDIA" and least < machine.scale_up_domain <= machine.accelerators
