"""The environment of a command's process, by framework: what its own cluster detection reads, and nothing false.

torch       RANK, WORLD_SIZE, MASTER_ADDR ... as torchrun sets them, and PET_* for torchrun itself
deepspeed   torch's, LOCAL_SIZE, CROSS_RANK and CROSS_SIZE of DeepSpeed's launcher, DEEPSPEED_ARGS for the launcher
jax         JAX_COORDINATOR_ADDRESS and the variables by which `jax.distributed.initialize()` knows Open MPI
tensorflow  TF_CONFIG
mpi         a host file and settings for Open MPI's mpirun, and no rank: mpirun gives each of its processes its own
slurm       no rank either: srun gives each of its tasks its own

Sources: jax/_src/distributed.py and jax/_src/clusters of JAX 0.10; deepspeed/launcher of DeepSpeed 0.19;
tensorflow/python/distribute/cluster_resolver/tfconfig_cluster_resolver.py; mpirun(1) of Open MPI 4.1.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from trainworks.config.command import Framework
from trainworks.jobs.environment import accelerators_per_node, rank_environment
from trainworks.record.processes import Processes

_OF_TORCHRUN = ("TORCHRUN_ARGS", "PET_NNODES", "PET_NODE_RANK", "PET_MASTER_ADDR", "PET_MASTER_PORT")
_OF_A_RANK = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "NODE_RANK")


@dataclass(frozen=True, slots=True, kw_only=True)
class Rendezvous:
    """Addresses and ports the ranks of one attempt connect to."""

    address: str
    ports: tuple[int, ...]
    """Ports that were free when the attempt began; the first belongs to rank 0."""
    hostfile: str
    """Path of a host file for the framework's launcher."""
    nodes: tuple[str, ...] = ()
    """Addresses of the nodes, in order; `address` for all of them when empty."""
    attempt: int = 1
    as_root: bool = False
    """True if the launcher runs as root, which Open MPI refuses without two variables."""


def ports_needed(framework: Framework | None, processes: Processes) -> int:
    """Number of ports an attempt needs: one per worker for TensorFlow, else one for rank 0."""
    return processes.world_size if framework == "tensorflow" else 1


def command_environment(
    framework: Framework | None, processes: Processes, rendezvous: Rendezvous, *, node: int, local_rank: int
) -> dict[str, str]:
    """Variables for one process of a command, `local_rank` on its node, added to those of the shell and of the run
    file; without a framework those of torch.
    """
    common = rank_environment(
        processes,
        node=node,
        local_rank=local_rank,
        master_address=rendezvous.address,
        master_port=rendezvous.ports[0],
        attempt=rendezvous.attempt,
        addresses=rendezvous.nodes,
    )
    if framework in (None, "torch"):
        return common
    if framework == "deepspeed":
        return common | _deepspeed(processes, rendezvous, node)
    common = _drop(common, _OF_TORCHRUN)
    if framework == "jax":
        return common | _jax(processes, rendezvous, node, local_rank)
    if framework == "tensorflow":
        return common | {"TF_CONFIG": _tf_config(processes, rendezvous, int(common["RANK"]))}
    return _drop(common, _OF_A_RANK) | (_mpi(rendezvous) if framework == "mpi" else {})


def _drop(env: dict[str, str], names: Iterable[str]) -> dict[str, str]:
    return {name: value for name, value in env.items() if name not in names}


def _deepspeed(processes: Processes, rendezvous: Rendezvous, node: int) -> dict[str, str]:
    """Variables of DeepSpeed's ranks; its launcher, which runs once per node, reads only its arguments."""
    arguments = f"--hostfile={rendezvous.hostfile} --no_ssh --node_rank={node}"
    return {
        "LOCAL_SIZE": str(processes.processes_per_node),
        "CROSS_RANK": str(node),
        "CROSS_SIZE": str(processes.nodes),
        "DEEPSPEED_ARGS": f"{arguments} --master_addr={rendezvous.address} --master_port={rendezvous.ports[0]}",
    }


def _jax(processes: Processes, rendezvous: Rendezvous, node: int, local_rank: int) -> dict[str, str]:
    """JAX takes the address from a variable of its own, and the ranks from the first cluster that it knows.

    It looks for Open MPI first, before Slurm and Kubernetes, so that these words hold wherever the job runs. Without
    JAX_COORDINATOR_BIND_ADDRESS the coordinator would listen on every network of the machine.
    """
    rank = node * processes.processes_per_node + local_rank
    coordinator = f"{rendezvous.address}:{rendezvous.ports[0]}"
    own = {
        "JAX_COORDINATOR_ADDRESS": coordinator,
        "JAX_COORDINATOR_BIND_ADDRESS": coordinator,
        "JAX_COORDINATOR_PORT": str(rendezvous.ports[0]),
        "JAX_NUM_PROCESSES": str(processes.world_size),
        "JAX_PROCESS_ID": str(rank),
        "OMPI_MCA_orte_hnp_uri": f"0.0;tcp://{coordinator}",
        "OMPI_COMM_WORLD_SIZE": str(processes.world_size),
        "OMPI_COMM_WORLD_RANK": str(rank),
        "OMPI_COMM_WORLD_LOCAL_RANK": str(local_rank),
    }
    if processes.device == "cuda":  # by default JAX uses the device of its local rank
        each = accelerators_per_node(processes) // processes.processes_per_node
        own["JAX_LOCAL_DEVICE_IDS"] = ",".join(str(local_rank * each + index) for index in range(each))
    return own


def _tf_config(processes: Processes, rendezvous: Rendezvous, rank: int) -> str:
    """One worker per process; worker 0 is the chief, which writes checkpoints."""
    each = processes.processes_per_node
    addresses = rendezvous.nodes or (rendezvous.address,) * processes.nodes
    workers = [f"{addresses[worker // each]}:{rendezvous.ports[worker]}" for worker in range(processes.world_size)]
    return json.dumps({"cluster": {"worker": workers}, "task": {"type": "worker", "index": rank}})


def _mpi(rendezvous: Rendezvous) -> dict[str, str]:
    """Defaults for `mpirun`, which its own options override.

    Ranks are not bound to cores: several jobs may share a machine, and every mpirun would take the same first cores.
    For the same reason a rank that waits gives its core away between two looks.
    """
    root = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"} if rendezvous.as_root else {}
    return {
        "OMPI_MCA_orte_default_hostfile": rendezvous.hostfile,
        "OMPI_MCA_hwloc_base_binding_policy": "none",
        "OMPI_MCA_mpi_yield_when_idle": "1",
        **root,
    }


def mpi_hostfile(processes: Processes, addresses: Iterable[str]) -> str:
    """Lines of `ADDRESS slots=RANKS`; nodes at one address share a line."""
    nodes = Counter(addresses)
    return "".join(f"{address} slots={count * processes.processes_per_node}\n" for address, count in nodes.items())


def deepspeed_hostfile(processes: Processes) -> str:
    """One line per node; under `--no_ssh` host names only have to be distinct."""
    slots = accelerators_per_node(processes) or processes.processes_per_node
    return "".join(f"node-{node} slots={slots}\n" for node in range(processes.nodes))


def setup_environment(env: dict[str, str]) -> dict[str, str]:
    """Variables for `setup`: those of a process, some also under SkyPilot's names for `setup`."""
    names = ("NODE_RANK", "NODE_IPS", "NUM_GPUS_PER_NODE")
    return env | {f"SKYPILOT_SETUP_{name}": env[f"SKYPILOT_{name}"] for name in names}
