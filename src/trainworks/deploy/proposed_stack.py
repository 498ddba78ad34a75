"""The stack file of a described cluster: a proposal that `deploy check` accepts and that a person completes.

Releases are the longest supported ones that fit each other and the GPUs, by the facts of the rules TW731 to
TW739. A line that ends with `# fill in: ...` has a value that only the owner of the cluster knows.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from trainworks.catalog import software
from trainworks.catalog.cluster import ClusterDescription
from trainworks.catalog.facts import Release
from trainworks.config.source import Source
from trainworks.config.stack_parts.nodes import NodeGroup
from trainworks.deploy.hardware import hardware_of
from trainworks.errors import RunFileError, UsageError
from trainworks.plan.network.addresses import FIRST_NODE, MANAGEMENT, MOST_NODES

FILL_IN = "# fill in:"
"""Comment behind a value that stands for one that Trainworks cannot know."""
_FIRST_COMPUTE = MANAGEMENT.network_address + FIRST_NODE
_EXAMPLE_KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIReplaceThisKey admin@example"
_ADVICE_WIDTH = 110


def proposed_stack(cluster: ClusterDescription, advice: Sequence[str] = ()) -> str:
    """Text of a stack file for a described cluster.

    Args:
        cluster: its compute nodes.
        advice: sentences that go with them, as comments: about network, storage or racks.

    Raises:
        UsageError: the nodes are not known, have no GPU of NVIDIA, or do not fit the network of the file.
    """
    machine = cluster.node.name if cluster.node else None
    if machine is None or cluster.accelerator.vendor != "NVIDIA":
        raise UsageError(
            f"a stack file is for nodes with GPUs of NVIDIA, and `{cluster.name}` has {cluster.accelerator.name}",
            hint="describe nodes such as `4 nodes of DGX H100`",
        )
    if cluster.num_nodes > MOST_NODES:
        raise UsageError(f"{cluster.num_nodes:,} nodes do not fit the network {MANAGEMENT} of the stack file")
    driver, torch, cuda = _gpu_software(cluster.accelerator.architecture or "")
    lines = [
        f"# The software of {cluster.name}, proposed by Trainworks.",
        f"# Fill in the lines that say so, then use `trainworks deploy`. Releases as of {software.AS_OF}.",
        *(f"# {line}" for sentence in advice for line in _wrapped(sentence)),
        "name: cluster                             # of the cluster in Slurm",
        f"os: {_system().name}                          # supported until {_system().ends}",
        f"network: {MANAGEMENT}                     # of the nodes' management interfaces",
        f'admin_keys: ["{_EXAMPLE_KEY}"]  {FILL_IN} your public key, `cat ~/.ssh/id_ed25519.pub`',
        "",
        "nodes:",
        "  - {hosts: login1, address: 10.10.0.10, roles: [login, controller, database, monitoring]}",
        "  - {hosts: store1, address: 10.10.0.20, roles: [storage]}",
        _compute(machine, cluster.num_nodes, is_assumed=machine not in cluster.node_name),
        "",
        f'gpu: {{driver: "{software.driver_branch(driver.name)}"}}  # supported until {driver.ends}; runs CUDA {cuda}',
        "slurm:",
        f'  release: "{_slurm()}"                        # packages that you build, as SchedMD describes',
        "  partitions:",
        "    - {name: train, default: true, max_time: 7-00:00:00}",
        '    - {name: debug, max_time: "30:00", priority: 10}',
        "",
        "mounts:",
        "  - {kind: nfs, at: /shared, server: store1, export: /export/shared}",
        "# scratch: {devices: [/dev/nvme1n1, /dev/nvme2n1]}   # the empty drives of a compute node, by `lsblk`",
        "environments:",
        f'  - {{name: torch, torch: "{torch}", cuda: "{cuda}", at: /shared/environments}}',
        "monitoring: {}                            # `page: https://...` receives critical alerts",
        f"users: [{{name: first, uid: 2001, account: research}}]  {FILL_IN} the users and their accounts",
    ]
    return "\n".join(lines) + "\n"


def refuse_placeholders(source: Source) -> None:
    """Refuse a stack file whose placeholders are not filled in.

    Raises:
        RunFileError: naming every line, and what belongs there.
    """
    problems = [
        UsageError(f"this line needs your own value: {what}", place=f"{source.name}:{number}", hint=_HINT)
        for number, what in _placeholders(source.text)
    ]
    if problems:
        raise RunFileError([*problems])


_HINT = f"write the value, and remove `{FILL_IN} ...`"


def _placeholders(text: str) -> Iterator[tuple[int, str]]:
    for number, line in enumerate(text.splitlines(), 1):
        before, mark, what = line.partition(FILL_IN)
        if mark and before.strip():
            yield number, what.strip()


def _compute(machine: str, num_nodes: int, *, is_assumed: bool) -> str:
    """The line of the compute nodes; what the description or the catalogue leaves open is to be filled in."""
    width = len(str(num_nodes))
    names = f"gpu{1:0{width}}" if num_nodes == 1 else f"gpu[{1:0{width}}-{num_nodes}]"
    group = NodeGroup(hosts=names, address=_FIRST_COMPUTE, roles=("compute",), machine=machine)
    start = f'  - {{hosts: "{names}", address: {_FIRST_COMPUTE}, roles: [compute], '
    try:
        hardware_of(group)
    except UsageError:
        kind = _word(machine.partition("-")[0].lower())
        described = f"hardware: {{sockets: 2, cores_per_socket: 32, memory: 1TB, accelerators: {kind}:8}}}}"
        return f"{start}{described}  {FILL_IN} the hardware of {machine}, by `slurmd -C` on a node"
    note = f"  {FILL_IN} your machine; this one of the catalogue is assumed" if is_assumed else ""
    return f"{start}machine: {machine}}}{note}"


def _word(text: str) -> str:
    return re.sub(r"[^a-z0-9_-]", "", text) or "gpu"


def _wrapped(sentence: str) -> Iterator[str]:
    line = ""
    for word in sentence.split():
        if len(line) + len(word) + 1 > _ADVICE_WIDTH:
            yield line
            line = "  "
        line = f"{line} {word}" if line.strip() else f"{line}{word}"
    yield line


def _system() -> Release:
    """The supported release of Ubuntu that ends last: it has packages of the driver and of Prometheus itself."""
    found = [each for each in software.releases("operating system") if each.name.startswith("Ubuntu")]
    return max(found, key=lambda each: each.ends or "")


def _slurm() -> str:
    return software.longest_supported("Slurm").name.removeprefix("Slurm ")


def _gpu_software(architecture: str) -> tuple[Release, str, str]:
    """Driver branch, PyTorch and CUDA: the longest supported branch that knows the GPUs, and the newest that it runs.

    Raises:
        UsageError: none fits.
    """
    generation = next(
        (each for each in software.releases("GPU generation") if each.name == architecture.partition(" ")[0]), None
    )
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
