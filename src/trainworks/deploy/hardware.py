"""Hardware and operating system of a stack, from the catalogue or as the stack file describes them."""

from __future__ import annotations

from trainworks.catalog import software
from trainworks.catalog.catalog import accelerator, load_catalog, node, processor
from trainworks.catalog.facts import Release
from trainworks.catalog.stack_cluster import node_of
from trainworks.config.command import AcceleratorRequest
from trainworks.config.stack import Stack
from trainworks.config.stack_parts.nodes import Hardware, NodeGroup
from trainworks.errors import ArgumentError, UsageError

REPORTED_SHARE = 0.95
"""Memory that a kernel reports, over what is installed: firmware and the kernel itself keep the rest."""


def system_of(stack: Stack) -> Release:
    """The operating system of a stack.

    Raises:
        ArgumentError: the catalogue does not have it.
    """
    try:
        found = software.release(stack.os)
    except UsageError as error:
        raise ArgumentError(error.message, argument="os", hint=error.hint) from None
    if found.component != "operating system":
        message = f"`{found.name}` is a {found.component}, and not an operating system"
        raise ArgumentError(message, argument="os", hint="name one such as `Ubuntu 24.04`")
    return found


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


def gres_devices(accelerators: AcceleratorRequest) -> str:
    """Their device files, as a line of gres.conf names them."""
    last = accelerators.count - 1
    files = f"/dev/nvidia[0-{last}]" if last else "/dev/nvidia0"
    return f"Name=gpu Type={gres_kind(accelerators.name)} File={files}"


def check_names(stack: Stack) -> None:
    """Look up everything that a stack names in the catalogue.

    Raises:
        ArgumentError: the catalogue does not have it; the argument is the path of the key.
    """
    system_of(stack)
    for index, group in enumerate(stack.nodes):
        if "compute" not in group.roles:
            continue
        key = "machine" if group.machine is not None else "hardware.accelerators"
        try:
            hardware_of(group)
            machine = node_of(group)
            part = accelerator(machine.accelerator) if machine is not None else None
            if part is not None and part.vendor != "NVIDIA":
                raise UsageError(
                    f"`{part.name}` is made by {part.vendor}, and the roles know NVIDIA's driver and devices alone",
                    hint="leave these nodes out of the stack",
                )
        except UsageError as error:
            raise ArgumentError(error.message, argument=f"nodes.{index}.{key}", hint=error.hint) from None


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
