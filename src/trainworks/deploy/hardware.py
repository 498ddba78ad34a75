"""Hardware and operating system of a stack, from the catalogue or as the stack file describes them."""

from __future__ import annotations

from trainworks.catalog import software
from trainworks.catalog.catalog import accelerator, has, node, processor
from trainworks.catalog.facts import Release
from trainworks.config.stack import Stack
from trainworks.config.stack_parts.nodes import Hardware, NodeGroup
from trainworks.errors import ArgumentError, UsageError

_REPORTED_SHARE = 0.95
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
    """Hardware of a group of nodes: as described, or that of its machine; memory as a kernel reports it.

    Raises:
        UsageError: the catalogue does not have the machine, or does not know its processors or memory.
    """
    if group.hardware is not None:
        return group.hardware
    machine = node(group.machine or "")
    if machine.processor is None or machine.processors is None or machine.host_memory_bytes is None:
        hint = "describe it with `hardware`, from `slurmd -C` on a node"
        raise UsageError(f"the catalogue does not know the processors and memory of `{machine.name}`", hint=hint)
    cores = processor(machine.processor).cores
    threads = (machine.vcpus or machine.processors * cores) // (machine.processors * cores)
    kind = machine.accelerator.partition("-")[0].lower()
    return Hardware(
        sockets=machine.processors,
        cores_per_socket=cores,
        threads_per_core=max(1, threads),
        memory=int(machine.host_memory_bytes * _REPORTED_SHARE),
        accelerators=f"{kind}:{machine.accelerators}" if machine.accelerators else None,
    )


def check_names(stack: Stack) -> None:
    """Look up everything that a stack names in the catalogue.

    Raises:
        ArgumentError: the catalogue does not have it; the argument is the path of the key.
    """
    system_of(stack)
    for index, group in enumerate(stack.nodes):
        if "compute" not in group.roles:
            continue
        key = "machine" if group.hardware is None else "hardware.accelerators"
        try:
            hardware_of(group)
            _check_vendor(group)
        except UsageError as error:
            raise ArgumentError(error.message, argument=f"nodes.{index}.{key}", hint=error.hint) from None


def _check_vendor(group: NodeGroup) -> None:
    """Refuse accelerators that the rendered files are not for.

    Raises:
        UsageError: another vendor than NVIDIA made them.
    """
    described = group.hardware.accelerators or "" if group.hardware else node(group.machine or "").accelerator
    name = described.partition(":")[0]
    vendor = accelerator(name).vendor if has("accelerators", name) else "NVIDIA"
    if vendor != "NVIDIA":
        hint = "leave these nodes out of the stack"
        raise UsageError(
            f"`{name}` is made by {vendor}, and the roles know NVIDIA's driver and devices alone", hint=hint
        )


def has_nvswitch(group: NodeGroup) -> bool:
    """True if the GPUs of a machine of the catalogue reach each other over NVSwitches, which need a fabric manager.

    Those are the machines with over four GPUs in one scale-up domain, from Ampere on, and the sixteen V100 of a DGX-2.
    """
    if group.machine is None:
        return False
    machine = node(group.machine)
    part = accelerator(machine.accelerator)
    least = 4 if part.launched >= 2020 else 8
    return part.vendor == "NVIDIA" and machine.scale_up_domain > least
