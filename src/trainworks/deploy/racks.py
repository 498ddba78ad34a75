"""Racks whose nodes share one scale-up domain, such as a GB200 NVL72: blocks of Slurm, and domains of IMEX.

Nodes of a group fill its racks in the order of their names. A job that fits into a rack gets nodes of one, because the
scale-up links end there. IMEX lets GPUs of several nodes map each other's memory, and has to know those of its rack.

Beside other nodes, racks are a topology of their own from Slurm 25.05 on, for partitions of racks alone. Before, all
nodes have one: blocks where most nodes are in racks, or else switches. Slurm gives a job no node that is in no block,
so those outside of racks are one, too.

Source: topology.conf(5), `topology/block` since Slurm 23.11; topology.yaml(5) since 25.05; slurm.conf(5),
`switch/nvidia_imex` since 24.05, which does nothing on a node whose driver has no channels; NVIDIA's IMEX guide,
deployment over a whole NVLink domain: /etc/nvidia-imex/nodes_config.cfg has an address in each line.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from trainworks.catalog.software import FIRST_TOPOLOGIES, version_key
from trainworks.catalog.stack_cluster import rack_of_group
from trainworks.config.stack import Stack
from trainworks.jobs.formats.manifest import to_yaml

_FIRST_RELEASE = (24, 5)
RACKS = "racks"
"""Name of the topology with a block for each rack."""


def racks_of(stack: Stack) -> dict[str, dict[str, str]]:
    """Addresses of nodes by name, by the name of their rack, of the groups whose nodes are in such racks."""
    racks: dict[str, dict[str, str]] = {}
    for group in stack.groups("compute"):
        if (rack := rack_of_group(group)) is None:
            continue
        nodes = list(group.addresses.items())
        for start in range(0, len(nodes), rack.nodes):
            racks[f"rack{len(racks) + 1}"] = dict(nodes[start : start + rack.nodes])
    return racks


def has_imex(stack: Stack) -> bool:
    """True if Slurm gives jobs channels of IMEX: some nodes are in such racks, and its release knows IMEX."""
    return version_key(stack.scheduler.release) >= _FIRST_RELEASE and bool(rack_of_nodes(stack))


def has_topologies(stack: Stack) -> bool:
    """True if racks and other nodes have a topology each."""
    is_new = version_key(stack.scheduler.release) >= FIRST_TOPOLOGIES
    return is_new and has_imex(stack) and not is_of_racks(stack, stack.hosts("compute"))


def has_blocks(stack: Stack) -> bool:
    """True if Slurm places all jobs by rack, as most of its compute nodes are in some."""
    most = 2 * len(rack_of_nodes(stack)) > len(stack.hosts("compute"))
    return most and has_imex(stack) and not has_topologies(stack)


def is_of_racks(stack: Stack, nodes: Collection[str]) -> bool:
    """True if all of these compute nodes are in racks."""
    return set(nodes).issubset(rack_of_nodes(stack))


def topology_files(stack: Stack, leaves: Sequence[Sequence[str]]) -> dict[str, str]:
    """The file with the topology of a cluster whose nodes are under these sets of leaf switches, by its name."""
    switches = {f"leaf{number}": ",".join(nodes) for number, nodes in enumerate(leaves, start=1)}
    spine = {"spine": f"leaf[1-{len(leaves)}]"} if len(leaves) > 1 else {}
    if has_topologies(stack):
        leaf_lines = [{"switch": name, "nodes": nodes} for name, nodes in switches.items()]
        tree = leaf_lines + [{"switch": name, "children": below} for name, below in spine.items()]
        return {"topology.yaml": _topologies(stack, tree)}
    if has_blocks(stack):
        return {"topology.conf": "".join(f"{line}\n" for line in _block_lines(stack))}
    lines = [_LEAVES, *(f"SwitchName={name} Nodes={nodes}" for name, nodes in switches.items())]
    lines += [f"SwitchName={name} Switches={below}" for name, below in spine.items()]
    return {"topology.conf": "".join(f"{line}\n" for line in lines)}


_LEAVES = "# a set of leaf switches that whole nodes are attached to is one switch here"
_BLOCKS = "# a rack is a block: a job that fits into one gets nodes of one; `sbatch --segment=16` has room for failures"


def _topologies(stack: Stack, tree: Sequence[Mapping[str, str]]) -> str:
    """Topologies of partitions that name none, and of those over racks alone."""
    blocks = [{"block": name, "nodes": ",".join(nodes)} for name, nodes in racks_of(stack).items()]
    block = {"block_sizes": [_least(stack)], "blocks": blocks}
    switches = {"topology": "switches", "cluster_default": True, "tree": {"switches": [*tree]}}
    racks = {"topology": RACKS, "cluster_default": False, "block": block}
    return (
        f"# of partitions that name no topology\n{_LEAVES}\n{to_yaml([switches], is_short=True)}"
        f"# of partitions over racks alone, `Topology={RACKS}`\n{_BLOCKS}\n{to_yaml([racks], is_short=True)}"
    )


def _block_lines(stack: Stack) -> list[str]:
    """Lines of topology.conf with one block for each rack, and one for all other nodes."""
    in_rack = rack_of_nodes(stack)
    others = [name for name in stack.hosts("compute") if name not in in_rack]
    least = min([_least(stack), *([len(others)] if others else [])])
    return [
        _BLOCKS,
        *(f"BlockName={rack} Nodes={','.join(nodes)}" for rack, nodes in racks_of(stack).items()),
        *(["# no job gets a node that is in no block", f"BlockName=others Nodes={','.join(others)}"] if others else []),
        f"BlockSizes={least}",
    ]


def _least(stack: Stack) -> int:
    return min(len(nodes) for nodes in racks_of(stack).values())


def imex_files(stack: Stack) -> dict[str, str]:
    """Addresses of the nodes of each rack as IMEX reads them, by the name of the file."""
    return {f"imex/{rack}.cfg": "".join(f"{at}\n" for at in nodes.values()) for rack, nodes in racks_of(stack).items()}


def rack_of_nodes(stack: Stack) -> dict[str, str]:
    """The rack of each node, by its name."""
    return {name: rack for rack, nodes in racks_of(stack).items() for name in nodes}
