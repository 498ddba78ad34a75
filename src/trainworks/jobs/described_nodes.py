"""The nodes of a job on a cluster that its run file describes: what `cluster.of` says is what the job requests."""

from __future__ import annotations

from pathlib import Path
from typing import NoReturn

from trainworks.catalog.catalog import accelerator, has, processor
from trainworks.catalog.cluster import ClusterDescription
from trainworks.catalog.facts import PYTORCH_VENDORS
from trainworks.catalog.prices import known_accelerator
from trainworks.catalog.stack_cluster import compute_groups, group_fabric, read_cluster
from trainworks.config.command import AcceleratorRequest, AtLeast, Resources
from trainworks.config.engines import Ssh, stack_file_in
from trainworks.config.run_file import Cluster, RunFile
from trainworks.config.source import FieldPath, Source
from trainworks.config.stack import load_stack
from trainworks.errors import RunFileError, UsageError
from trainworks.jobs.accelerator_names import matching_names
from trainworks.jobs.formats.manifest import RAILS
from trainworks.plan.network.nccl import pod_environment

_HOST_SHARE = 0.8
"""Share of a node's cores and memory that a job requests; the scheduler and the system keep the rest."""


def with_described_nodes(run_file: RunFile, source: Source | None = None, *, of_format: bool = False) -> RunFile:
    """The run file with the nodes, ranks and `resources` of `cluster.of`, where it leaves them open.

    A job takes all of the described cluster, or the part that `nodes`, `processes_per_node` of a workload and
    `resources` name. Cores and memory are requested where the catalogue has those of the described node. In place of a
    stack file stand the words of its cluster, which nodes without the file can read; pods get its rails. A run file
    without `of`, or that is only planned for, stays as it is, unless the job is written for another program
    (`of_format`), which runs a described cluster, too. The hosts of `engine: ssh` are those of the stack, unless the
    run file names some. `source` gives an error its place.

    Raises:
        UsageError: the description cannot be read, or is of a stack without the scheduler that the job is for, or the
            run file requests more than it has, or other accelerators.
    """
    cluster = run_file.cluster
    if cluster.of is None or (cluster.engine == "described" and not of_format):
        return run_file
    whole = described_cluster(run_file, source)
    wanted = _accelerators(run_file, whole, source)
    count = wanted.count
    changes: dict[str, object] = {"nodes": _nodes(run_file, whole, source)}
    if named := stack_file_in(cluster.of):
        if cluster.engine == "slurm" and load_stack(Path(named[0]))[0].slurm is None:
            message = f"`{named[0]}` has no `slurm` that a job could be submitted to"
            hint = "write `engine: ssh` beside `of`, to start jobs on its machines without a scheduler"
            raise UsageError(message, place=_place(source, ("cluster",)), hint=hint)
        changes["of"] = whole.name
        if cluster.engine == "ssh":
            changes["ssh"] = hosts_of(cluster)
    takes_a_rank = whole.accelerator.vendor in PYTORCH_VENDORS  # each of them; on others the command decides
    if run_file.starts == "per_rank" and cluster.processes_per_node == "auto" and takes_a_rank:
        changes["processes_per_node"] = count
    written = run_file.resources or Resources()
    resources = {
        "accelerators": (wanted,),
        "cpus": written.cpus or _cores(whole, count),
        "memory": written.memory or _memory_gb(whole, count),
    }
    completed = run_file.model_copy(
        update={"cluster": cluster.model_copy(update=changes), "resources": written.model_copy(update=resources)}
    )
    is_of_pods = named is not None and cluster.engine == "kubernetes" and completed.nodes > 1
    return _with_rails(completed, *named) if named is not None and is_of_pods else completed


def _with_rails(run_file: RunFile, path: str, group: str | None) -> RunFile:
    """The run file with the adapters of the stack's nodes, for pods: they see no nccl.conf of their host.

    Values of the run file come first. Pods take the adapters of InfiniBand where the stack has NVIDIA's network
    operator; RoCE needs an interface in the pod as well, which the bundle of a stack does not create.
    """
    stack, _ = load_stack(Path(path))
    fabrics = [group_fabric(stack, each) for each in compute_groups(stack, group)]
    fabric, options = fabrics[0], run_file.cluster.kubernetes
    if fabric is None or fabric.link is None or any(each != fabric for each in fabrics):
        return run_file
    has_plugin = stack.kubernetes is not None and stack.kubernetes.network_operator is not None
    is_asked = any(name.startswith("rdma/") for name in options.devices)
    if fabric.link == "infiniband" and has_plugin and not is_asked:
        options = options.model_copy(update={"devices": {**options.devices, RAILS: 1}})
    cluster = run_file.cluster.model_copy(update={"kubernetes": options})
    return run_file.model_copy(update={"cluster": cluster, "envs": pod_environment(fabric) | dict(run_file.envs)})


def hosts_of(cluster: Cluster) -> Ssh:
    """Options of `engine: ssh` with their hosts: by default the compute nodes of the stack that `of` names."""
    options, named = cluster.ssh, stack_file_in(cluster.of or "")
    if cluster.engine != "ssh" or options.hosts or named is None:
        return options
    groups = compute_groups(load_stack(Path(named[0]))[0], named[1])
    return options.model_copy(update={"hosts": tuple(host for group in groups for host in group.names)})


def described_part(run_file: RunFile, source: Source | None = None) -> ClusterDescription:
    """The nodes and accelerators of the described cluster that a job takes: all of one that is only planned for.

    Raises:
        UsageError: the description cannot be read, or the run file requests more than it has, or other accelerators.
    """
    whole = described_cluster(run_file, source)
    if run_file.cluster.engine == "described":
        return whole
    return whole.part(_nodes(run_file, whole, source), _accelerators(run_file, whole, source).count)


def check_worker(run_file: RunFile, source: Source | None = None) -> None:
    """Refuse a workload on accelerators that Trainworks cannot train on; a command may run on any.

    Raises:
        UsageError: with the line that names them.
    """
    if run_file.workload is None:
        return
    wanted: list[tuple[str | None, FieldPath]] = []
    if run_file.cluster.of is not None:  # first: the requests may be completed from it
        wanted.append((described_cluster(run_file, source).accelerator.name, ("cluster", "of")))
    requests = (run_file.resources.accelerators if run_file.resources else None) or ()
    wanted += [(one.kind, ("resources", "accelerators")) for one in requests]
    for kind, field in wanted:
        name = known_accelerator(kind or "")
        if name is not None and accelerator(name).vendor not in PYTORCH_VENDORS:
            raise UsageError(
                f"cannot train a workload on {name}: Trainworks has a worker for NVIDIA and AMD GPUs alone",
                place=_place(source, field),
                hint="start your own program there: `run: python train.py`, `framework: jax`; "
                "`trainworks plan --on` plans a workload for described accelerators of every vendor",
            )


def described_cluster(run_file: RunFile, source: Source | None = None) -> ClusterDescription:
    """The cluster that `cluster.of` of a run file describes, in words or by a stack file.

    Raises:
        UsageError: it cannot be read, with its line.
    """
    try:
        return read_cluster(run_file.cluster.of or "")
    except RunFileError:  # of the stack file, with the line there
        raise
    except UsageError as error:
        field: FieldPath = ("cluster",) if run_file.cluster.engine == "described" else ("cluster", "of")
        raise UsageError(error.message, place=_place(source, field), hint=error.hint) from None


def _nodes(run_file: RunFile, whole: ClusterDescription, source: Source | None) -> int:
    """Nodes of the job: those of the run file, or all that are described."""
    is_written = run_file.num_nodes is not None or "nodes" in run_file.cluster.model_fields_set
    nodes = run_file.nodes if is_written else whole.num_nodes
    if nodes > whole.num_nodes:
        field: FieldPath = ("cluster", "nodes") if run_file.num_nodes is None else ("num_nodes",)
        _refuse(f"{nodes} nodes requested", whole, f"set `{field[-1]}` to at most {whole.num_nodes}", source, field)
    return nodes


def _accelerators(run_file: RunFile, whole: ClusterDescription, source: Source | None) -> AcceleratorRequest:
    """Accelerators of a node that the job takes: those of the run file that are described, or all that are."""
    most = whole.accelerators_per_node
    per_node = run_file.cluster.processes_per_node
    requests = run_file.resources.accelerators if run_file.resources else None
    at = ("resources", "accelerators")
    name = whole.accelerator.name
    same = [
        one
        for one in requests or ()  # without a kind, any accelerator will do
        if one.kind is None or known_accelerator(one.kind) == name or matching_names(one.kind, [name])
    ]
    if requests and not same:
        hint = f"request `{whole.accelerator.name}:{most}`, or describe the nodes that you want"
        _refuse(f"`{requests[0]}` requested", whole, hint, source, at)
    if requests and min(one.count for one in same) > most:
        _refuse(f"`{same[0]}` requested", whole, f"request at most {most} accelerators of a node", source, at)
    if requests:
        return next(one for one in same if one.count <= most)
    count = most if run_file.workload is None or per_node == "auto" else per_node
    if count > most:
        hint = f"set `processes_per_node` to at most {most}: a rank takes one accelerator"
        _refuse(f"{count} ranks on each node", whole, hint, source, ("cluster", "processes_per_node"))
    return AcceleratorRequest(name=whole.accelerator.name, count=count)


def _refuse(wanted: str, whole: ClusterDescription, hint: str, source: Source | None, field: FieldPath) -> NoReturn:
    each = f"{whole.accelerators_per_node} {whole.accelerator.name}"
    nodes = "1 node" if whole.num_nodes == 1 else f"{whole.num_nodes} nodes"
    message = f"{wanted}, and `cluster.of` (`{whole.name}`) has {nodes} of {each}"
    raise UsageError(message, place=_place(source, field), hint=hint)


def _place(source: Source | None, field: FieldPath) -> str | None:
    return source.place(field) if source else None


def _is_named(cluster: ClusterDescription) -> bool:
    """Whether the description names a node of the catalogue, and not its accelerators alone."""
    return cluster.node is not None and has("nodes", cluster.node_name)


def _cores(whole: ClusterDescription, count: int) -> AtLeast:
    """Cores per node for so many accelerators; one for each where the cores of the node are not known."""
    node, cores = whole.node, 0.0
    if node is not None and _is_named(whole):
        sockets, each = node.processors or 0, processor(node.processor).cores if node.processor else 0
        cores = sockets * each or (node.vcpus or 0) / 2  # two threads of a core
    return AtLeast(count * max(1, int(_HOST_SHARE * cores / whole.accelerators_per_node)))


def _memory_gb(whole: ClusterDescription, count: int) -> AtLeast | None:
    """Whole GB per node for so many accelerators; None where the memory of the node is not known."""
    node = whole.node
    if node is None or not node.host_memory_bytes or not _is_named(whole):
        return None
    return AtLeast(_HOST_SHARE * node.host_memory_bytes * count / whole.accelerators_per_node // 1e9)
