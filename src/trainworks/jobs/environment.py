"""The environment of one rank, in the words of torchrun, Kubeflow's trainer and SkyPilot at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from trainworks.record.processes import Processes


_KEEP_FREED_MEMORY = {"MALLOC_MMAP_THRESHOLD_": str(32 << 20), "MALLOC_TRIM_THRESHOLD_": str(1 << 30)}
"""glibc returns freed activations to the kernel by default, and the next step pays a page fault per 4 KiB."""


FORWARDED_VARIABLES = (
    *("MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_", "OMP_NUM_THREADS"),
    *("TRAINWORKS_LOG", "TRAINWORKS_RUN_DIR"),
)
"""Variables of the supervisor that a remote agent gets; all others are those of its own node, or of the shell that
submitted the job."""


KEPT_VARIABLES = ("OMP_NUM_THREADS",)
"""Variables of a command's rank that stay as the shell has them, which torchrun does as well."""


ROLE = "TRAINWORKS_ROLE"
"""Variable with the role of a process, in jobs with roles."""
_SERVICE_PORT = 24_000
"""Port where other roles find a node that no other node shares."""


def role_environment(
    processes: Processes, *, node: int, addresses: Sequence[str], ports: Sequence[int]
) -> dict[str, str]:
    """Variables by which the processes of a job with roles find each other; none for a job without roles.

    `addresses` are those of all nodes of the job, and `ports` one of each. TRAINWORKS_PORT is that of this node, and
    TRAINWORKS_ADDRESSES_ROLLOUT has `ADDRESS:PORT` of every node of the role `rollout`, with commas between.
    """
    own = processes.group_of(node)
    if own.role is None:
        return {}
    places = [f"{address}:{port}" for address, port in zip(addresses, ports, strict=True)]
    found = {
        ROLE: own.role,
        "TRAINWORKS_ROLE_INDEX": str(node - own.first_node),
        "TRAINWORKS_ROLE_SIZE": str(own.processes.nodes),
        "TRAINWORKS_PORT": str(ports[node]),
    }
    for group in processes.groups():
        found[role_variable(str(group.role))] = ",".join(places[each] for each in group.nodes)
    return found


def variables_of_roles(hosts: Mapping[str, Sequence[str]]) -> dict[str, dict[str, str]]:
    """Variables of each role where the names of its nodes are known before the job starts, and each has all ports.

    `hosts` has the names by role. The number of a node in its role, TRAINWORKS_ROLE_INDEX, is known there alone.
    """
    places = {
        role_variable(role): ",".join(f"{host}:{_SERVICE_PORT}" for host in names) for role, names in hosts.items()
    }
    common = {"TRAINWORKS_PORT": str(_SERVICE_PORT), **places}
    return {role: {**common, ROLE: role, "TRAINWORKS_ROLE_SIZE": str(len(names))} for role, names in hosts.items()}


def role_variable(role: str) -> str:
    """Variable with the addresses of a role.

    >>> role_variable("roll-out")
    'TRAINWORKS_ADDRESSES_ROLL_OUT'
    """
    return f"TRAINWORKS_ADDRESSES_{role.upper().replace('-', '_')}"


def agent_environment(processes: Processes) -> dict[str, str]:
    """Variables of a node agent of the trainer, which its ranks inherit; read once, when a process starts."""
    threads = {"OMP_NUM_THREADS": str(processes.threads_per_process)}
    return threads if processes.device == "cuda" else threads | _KEEP_FREED_MEMORY


def default_environment(processes: Processes) -> dict[str, str]:
    """Variables of every rank that a value in its environment or run file overrides."""
    return dict(processes.nccl_environment) if processes.backend == "nccl" else {}


def accelerators_per_node(processes: Processes) -> int:
    """Accelerators that the processes of one node have together."""
    if processes.device != "cuda":
        return 0
    return processes.accelerators_per_node or processes.processes_per_node


def rank_environment(
    processes: Processes,
    *,
    node: int,
    local_rank: int,
    master_address: str,
    master_port: int,
    attempt: int,
    addresses: Sequence[str] = (),
) -> dict[str, str]:
    """Variables that a command finds, so that a script written for another launcher runs unchanged.

    A command that is itself a launcher (`torchrun $TORCHRUN_ARGS ...`) is started once per node, with one process per
    node here and its own number of processes there. rank = node * processes_per_node + local_rank. Rank 0 listens at
    the master's address, and at a port that was free when the job started. `attempt` is 1 for the first start, counting
    up with every restart. `addresses` are those of all nodes, in their order; all are at `master_address` when left
    out.
    """
    per_node = processes.processes_per_node
    address, port = master_address, str(master_port)
    torchrun_arguments = f"--nnodes={processes.nodes} --node-rank={node} --master-addr={address} --master-port={port}"
    return {
        "RANK": str(node * per_node + local_rank),
        "WORLD_SIZE": str(processes.world_size),
        "LOCAL_RANK": str(local_rank),
        "LOCAL_WORLD_SIZE": str(per_node),
        "GROUP_RANK": str(node),
        "NODE_RANK": str(node),
        "MASTER_ADDR": address,
        "MASTER_PORT": port,
        "TORCHRUN_ARGS": torchrun_arguments,
        "PET_NNODES": str(processes.nodes),
        "PET_NODE_RANK": str(node),
        "PET_MASTER_ADDR": address,
        "PET_MASTER_PORT": port,
        "SKYPILOT_NODE_RANK": str(node),
        "SKYPILOT_NUM_NODES": str(processes.nodes),
        "SKYPILOT_NODE_IPS": "\n".join(addresses or [address] * processes.nodes),
        "SKYPILOT_NUM_GPUS_PER_NODE": str(accelerators_per_node(processes)),
        "TRAINWORKS_ATTEMPT": str(attempt),
        "OMP_NUM_THREADS": str(processes.threads_per_process),
        "PYTHONUNBUFFERED": "1",
    }
