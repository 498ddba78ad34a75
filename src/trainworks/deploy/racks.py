"""Racks whose nodes share one scale-up domain, such as a GB200 NVL72: blocks of Slurm, and domains of IMEX.

Nodes of a group fill its racks in the order of their names. A job that fits into a rack gets nodes of one, because the
scale-up links end there. IMEX lets GPUs of several nodes map each other's memory, and has to know those of its rack.

Source: topology.conf(5), `topology/block` since Slurm 23.11; slurm.conf(5), `switch/nvidia_imex` since 24.05; NVIDIA's
IMEX guide, deployment over a whole NVLink domain: /etc/nvidia-imex/nodes_config.cfg has an address in each line.
"""

from __future__ import annotations

from trainworks.catalog.catalog import rack_of
from trainworks.catalog.software import version_key
from trainworks.catalog.stack_cluster import node_of
from trainworks.config.stack import Stack

_FIRST_RELEASE = (24, 5)


def racks_of(stack: Stack) -> dict[str, dict[str, str]]:
    """Addresses of nodes by name, by the name of their rack, of the groups whose nodes are in such racks."""
    racks: dict[str, dict[str, str]] = {}
    for group in stack.groups("compute"):
        machine = node_of(group)
        rack = rack_of(machine)
        if machine is None or rack is None or machine.scale_up_domain <= machine.accelerators:
            continue
        nodes = list(group.addresses.items())
        for start in range(0, len(nodes), rack.nodes):
            racks[f"rack{len(racks) + 1}"] = dict(nodes[start : start + rack.nodes])
    return racks


def has_blocks(stack: Stack) -> bool:
    """True if Slurm places jobs by rack: its compute nodes are in such racks, and its release knows blocks and IMEX."""
    return version_key(stack.scheduler.release) >= _FIRST_RELEASE and set(rack_of_nodes(stack)) == set(
        stack.hosts("compute")
    )


def topology_lines(stack: Stack) -> list[str]:
    """Lines of topology.conf with one block for each rack."""
    racks = racks_of(stack)
    return [
        "# a rack is a block: a job that fits into one gets nodes of one; `sbatch --segment=16` has room for failures",
        *(f"BlockName={rack} Nodes={','.join(nodes)}" for rack, nodes in racks.items()),
        f"BlockSizes={min(len(nodes) for nodes in racks.values())}",
    ]


def imex_files(stack: Stack) -> dict[str, str]:
    """Addresses of the nodes of each rack as IMEX reads them, by the name of the file."""
    return {f"imex/{rack}.cfg": "".join(f"{at}\n" for at in nodes.values()) for rack, nodes in racks_of(stack).items()}


def rack_of_nodes(stack: Stack) -> dict[str, str]:
    """The rack of each node, by its name."""
    return {name: rack for rack, nodes in racks_of(stack).items() for name in nodes}
