"""The stack file of a described cluster: a proposal that `deploy check` accepts and that a person completes.

Releases are the longest supported ones that fit each other and the GPUs, by the facts that the rules of `deploy check`
apply. A line that ends with `# fill in: ...` has a value that only the owner of the cluster knows.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

from trainworks.catalog import software
from trainworks.catalog.catalog import has
from trainworks.catalog.cluster import ClusterDescription
from trainworks.catalog.facts import Node, Release
from trainworks.catalog.stack_cluster import port_of
from trainworks.config.source import FieldPath, Source
from trainworks.config.stack import Stack
from trainworks.config.stack_parts.nodes import NodeGroup
from trainworks.config.stack_parts.words import FILL_IN
from trainworks.deploy.fabric.switches import has_switch_text
from trainworks.deploy.hardware import hardware_of
from trainworks.errors import UsageError
from trainworks.jobs.formats.manifest import to_yaml
from trainworks.plan.network.addresses import FIRST_NODE, MANAGEMENT, MOST_NODES, rails_network
from trainworks.plan.network.design import NetworkDesign
from trainworks.units import DAY_S

FIRST_COMPUTE = MANAGEMENT.network_address + FIRST_NODE
_EXAMPLE_KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIReplaceThisKey admin@example"
_ADVICE_WIDTH = 110


def proposed_stack(
    cluster: ClusterDescription,
    design: NetworkDesign | None = None,
    advice: Sequence[str] = (),
    time_limit_s: float | None = None,
    *,
    kubernetes: bool = False,
) -> str:
    """Text of a stack file for a described cluster.

    The file hands the network between the nodes over as `fabric`; a single node has no `design`. `advice` has sentences
    about network, storage or racks, which become comments. The partition accepts the longest job, of `time_limit_s`; a
    week at least. With `kubernetes` jobs run in pods, and the file has the operators, too.

    Raises:
        UsageError: the nodes are not known, have no GPU of NVIDIA, or do not fit the network of the file.
    """
    if cluster.node is None or cluster.accelerator.vendor != "NVIDIA":
        raise UsageError(
            f"a stack is proposed for GPUs of NVIDIA, and `{cluster.name}` has {cluster.accelerator.name}",
            hint="describe nodes such as `4 nodes of DGX H100`",
        )
    if cluster.num_nodes > MOST_NODES:
        raise UsageError(f"{cluster.num_nodes:,} nodes do not fit the network {MANAGEMENT} of the stack file")
    driver, torch, cuda = _gpu_software(cluster.accelerator.architecture or "")
    # Ubuntu has packages of the driver and of Prometheus itself
    systems = [each for each in software.releases("operating system") if each.name.startswith("Ubuntu")]
    system = max(systems, key=lambda each: each.ends or "")
    days = max(7, math.ceil((time_limit_s or 0.0) / DAY_S))
    group, note = _compute(cluster.node, cluster)
    fabric, notes = _fabric(cluster if design is None else design.cluster, design)
    data = {
        "name": "cluster",
        "os": system.name,
        "network": str(MANAGEMENT),
        "admin_keys": [_EXAMPLE_KEY],
        "nodes": [
            {"hosts": "login1", "address": "10.10.0.10", "roles": ["login", "controller", "database", "monitoring"]},
            {"hosts": "store1", "address": "10.10.0.20", "roles": ["storage"]},
            group,
        ],
        "gpu": {"driver": str(software.driver_branch(driver.name))},
        **({"fabric": fabric} if fabric else {}),
        "slurm": {
            "release": software.longest_supported("Slurm").name.removeprefix("Slurm "),
            "partitions": [
                {"name": "train", "default": True, "max_time": f"{days}-00:00:00"},
                {"name": "debug", "max_time": "30:00", "priority": 10},
            ],
        },
        "mounts": [{"kind": "nfs", "at": "/shared", "server": "store1", "export": "/export/shared"}],
        "environments": [{"name": "torch", "torch": torch, "cuda": cuda, "at": "/shared/environments"}],
        "monitoring": {},
        **({"kubernetes": _operators(cluster)} if kubernetes else {}),
        "users": [{"name": "first", "uid": 2001, "account": "research"}],
    }
    comments: dict[FieldPath, str] = {
        ("name",): "of the cluster in Slurm",
        ("os",): f"supported until {system.ends}",
        ("network",): "of the nodes' management interfaces",
        ("admin_keys", 0): f"{FILL_IN} your public key, `cat ~/.ssh/id_ed25519.pub`",
        ("nodes", 2, "hardware" if "hardware" in group else "machine"): note,
        ("gpu",): f"supported until {driver.ends}; runs CUDA {cuda}",
        ("slurm", "release"): "packages that you build, as SchedMD describes",
        ("mounts",): "`scratch: {devices: [/dev/nvme1n1]}` adds the empty drives of a compute node, by `lsblk`",
        ("monitoring",): "`page: https://...` receives critical alerts",
        **({("kubernetes",): f"{FILL_IN} the releases that your cluster takes"} if kubernetes else {}),
        ("users", 0): f"{FILL_IN} the users and their accounts",
        **{("fabric", key): text for key, text in notes.items()},
    }
    Stack.model_validate(data)
    head = [
        f"The software of {cluster.name}, proposed by Trainworks.",
        f"Fill in the lines that say so, then use `trainworks deploy`. Releases as of {software.AS_OF}.",
        *(line for sentence in advice for line in _wrapped(sentence)),
    ]
    return "".join(f"# {line}\n" for line in head) + commented(to_yaml(data, is_short=True), comments)


def _operators(cluster: ClusterDescription) -> dict[str, str]:
    """Releases of the operators that were current when Trainworks was; the network's where RDMA is."""
    network = {"network_operator": "v25.10.0"} if cluster.network in ("InfiniBand", "RoCE") else {}
    return {"gpu_operator": "v26.7.0"} | network | {"jobset": "v0.10.1", "kueue": "v0.19.2"}


def commented(text: str, comments: Mapping[FieldPath, str]) -> str:
    """A YAML text with comments at the lines of keys, empty ones left out."""
    source, lines = Source("stack.yaml", text), text.splitlines()
    source.parse()
    for path, comment in comments.items():
        if comment:
            lines[source.line(path) - 1] += f"  # {comment.removeprefix('# ')}"
    return "\n".join(lines) + "\n"


def _compute(machine: Node, cluster: ClusterDescription) -> tuple[dict[str, object], str]:
    """The group of the compute nodes, and what the description or the catalogue leaves open, to be filled in."""
    num_nodes = cluster.num_nodes
    width = len(str(num_nodes))
    names = f"gpu{1:0{width}}" if num_nodes == 1 else f"gpu[{1:0{width}}-{num_nodes}]"
    found: dict[str, object] = {"hosts": names, "address": str(FIRST_COMPUTE), "roles": ["compute"]}
    try:
        hardware_of(NodeGroup.model_validate(found | {"machine": machine.name}))
    except UsageError:
        note = f"{FILL_IN} the hardware of {machine.name}, by `slurmd -C` on a node"
        known = {"accelerators": f"{machine.accelerator}:{machine.accelerators}"}
        if machine.name == cluster.node_name and has("nodes", machine.name):
            found["machine"], known = machine.name, {}
        return found | {"hardware": _hardware(machine) | known}, note
    is_assumed = machine.name not in cluster.node_name
    note = f"{FILL_IN} your machine; this one of the catalogue is assumed" if is_assumed else ""
    return found | {"machine": machine.name}, note


def _hardware(machine: Node) -> dict[str, object]:
    """Processors and memory of a machine as far as the catalogue knows them, with usual values for the rest."""
    sockets = machine.processors or 2
    return {
        "sockets": sockets,
        "cores_per_socket": max(1, (machine.vcpus or 128) // (2 * sockets)),
        "threads_per_core": 2,
        "memory": f"{(machine.host_memory_bytes or 10**12) // 2**30} GiB",
    }


def _fabric(cluster: ClusterDescription, design: NetworkDesign | None) -> tuple[dict[str, object], dict[str, str]]:
    """`fabric` of the stack for a designed network, and the comments of its keys; a single node may have adapters."""
    node, adapters = cluster.node, cluster.fabric
    assert node is not None
    port = adapters.port if adapters else port_of(node.network, node.nic_bytes_per_s)
    asked: dict[str, object] = {"nics": cluster.nics, "port": port}
    if design is not None:
        asked |= {"topology": design.topology} | ({"switch": design.switch.name} if design.switch else {})
    asked |= {"oversubscription": cluster.oversubscription} if cluster.oversubscription > 1 else {}
    asked |= {"sharp": True} if cluster.in_network_reduction else {}
    if design is None:
        is_said = adapters is not None or len(asked) > 2
        return ({"design": asked} if is_said and cluster.nics else {}), {}
    asked |= {"spare_slots": design.spare_slots} if design.spare_slots else {}
    devices = [f"mlx5_{number}" for number in range(design.nics)]
    notes = {"devices": f"{FILL_IN} the adapters of this network, by `rdma link` on a node"}
    if cluster.network == "InfiniBand":
        managers = "`subnet_managers: [login1]` runs OpenSM there, where neither the switches nor UFM do"
        return {"design": asked, "link": "infiniband", "devices": devices}, notes | {"link": managers}
    rails = rails_network(design)
    if cluster.network != "RoCE" or rails is None:
        return {"design": asked}, {"design": "its adapters are left as they are: `link` configures them"}
    found: dict[str, object] = {
        "design": asked,
        "link": "roce",
        "devices": devices,
        "interfaces": [f"rail{number}" for number in range(design.nics)],
        "network": str(rails),
        "switches": "cumulus" if has_switch_text(design) else "none",
    }
    notes |= {"interfaces": f"{FILL_IN} their network interfaces, in the same order, by `rdma link`"}
    notes |= {"network": "of the rails", "switches": "or `eos`"}
    return found, notes | ({} if has_switch_text(design) else {"switches": "no text for a network of this kind"})


def _wrapped(sentence: str) -> Iterator[str]:
    line = ""
    for word in sentence.split():
        if len(line) + len(word) + 1 > _ADVICE_WIDTH:
            yield line
            line = "  "
        line = f"{line} {word}" if line.strip() else f"{line}{word}"
    yield line


def _gpu_software(architecture: str) -> tuple[Release, str, str]:
    """Driver branch, PyTorch and CUDA: the longest supported branch that knows the GPUs, and what it runs at most."""
    generation = software.generation(architecture)
    drivers = [each for each in software.releases("driver") if not software.is_over(each) and _knows(each, generation)]
    for driver in sorted(drivers, key=lambda each: each.ends or "", reverse=True):
        for torch in reversed(software.releases("PyTorch")):
            builds = [cuda for cuda in torch.builds if _runs(driver, cuda, generation)]
            if builds:
                return driver, torch.name.removeprefix("PyTorch "), max(builds, key=software.version_key)
    raise UsageError(
        f"no supported driver of the catalogue knows {architecture}", hint="write a stack with older releases"
    )


def _knows(driver: Release, generation: Release | None) -> bool:
    branch = software.driver_branch(driver.name)
    if generation is None:
        return True
    return (generation.first_driver or 0) <= branch <= (generation.last_driver or branch)


def _runs(driver: Release, cuda: str, generation: Release | None) -> bool:
    """Whether a driver runs a CUDA that compiles for the GPUs."""
    least = software.least_driver(cuda)
    if least is None or least > software.driver_branch(driver.name):
        return False
    if generation is None:
        return True
    key = software.version_key(cuda)
    is_new_enough = generation.first_cuda is None or key >= software.version_key(generation.first_cuda)
    return is_new_enough and (generation.last_cuda is None or key[0] <= int(generation.last_cuda.partition(".")[0]))
