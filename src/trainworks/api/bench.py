"""Measure a cluster: a benchmark is a run whose ranks measure, on this machine or in the queue of another cluster.

Verdicts say whether the figures are as good as the hardware, and the planner learns from them.
"""

from __future__ import annotations

import hashlib
import shlex
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, get_args

from trainworks import __version__
from trainworks.agent.environments.files import without_packages
from trainworks.api.inputs import argument, load_run
from trainworks.api.launching.prepared_run import PreparedRun, prepare
from trainworks.api.notices import warn
from trainworks.api.proving.expected_hardware import described_hardware
from trainworks.api.proving.read_bench import learn_from
from trainworks.api.run_handle import Run, find_run
from trainworks.api.run_request import RunRequest, read_run_file
from trainworks.api.runs import Launch, create_launch, prepare_resume
from trainworks.api.runs import run as start_run
from trainworks.api.storage import storage
from trainworks.backends.registry import shares_files
from trainworks.catalog.cluster import ClusterDescription
from trainworks.catalog.stack_cluster import read_cluster
from trainworks.config.engines import JobOptions
from trainworks.config.run_description import is_run_description
from trainworks.config.run_file import Cluster, RunFile
from trainworks.config.stack import is_stack_file, load_stack
from trainworks.deploy.hardware import hardware_of
from trainworks.deploy.verification import ClusterVerification
from trainworks.errors import ArgumentError, TrainworksError
from trainworks.host import process
from trainworks.jobs.described_nodes import described_cluster
from trainworks.jobs.formats.manifest import to_yaml
from trainworks.jobs.state import JobState
from trainworks.measure.bench.bench_report import BenchReport, build_bench_report, measured_paths
from trainworks.measure.bench.bench_verdicts import measured_curves, measured_rates
from trainworks.measure.bench.measurement import Quantity
from trainworks.measure.bench.node_record import read_records, record_path, records_in, write_record
from trainworks.measure.bench.outliers import read_cables
from trainworks.measure.bench.short_training import (
    STEPS,
    PlannedStep,
    ShortTraining,
    judge_training,
    read_training,
    write_training,
)
from trainworks.measure.bench.verdict import BenchVerdict
from trainworks.record.measured.bench import BenchKind, BenchRequest, BenchSetting, parse_setting
from trainworks.report.proving.cluster_verification import Acceptance
from trainworks.report.runs.outcome import failure_of

_PROGRAM = "trainworks.measure.bench.node"
_OF_THE_RUN = (
    *("workload", "layout", "software", "goal", "checkpoint", "recover", "guard", "track", "notify", "profile"),
    *("framework", "setup"),
)
"""Keys of a run file that say what runs, and not where."""
_OF_THE_QUEUE = ("min_nodes", "hold", "depends_on", "idle")
"""Keys of `job` that are of the whole run: a benchmark and a short training start at once, on all their nodes."""
KINDS: tuple[BenchKind, ...] = get_args(BenchKind)
Progress = Callable[[str], None]


def bench(
    *kinds: str,
    cluster: str | None = None,
    nodes: int | None = None,
    full: bool = False,
    built_in: bool = False,
    paths: Sequence[Path | str] = (),
    settings: Sequence[str] = (),
    expect: str | None = None,
    cables: Path | str | None = None,
    resume: str | None = None,
    train: bool = False,
    folder: Path | str = "runs",
    progress: Progress | None = None,
) -> BenchReport:
    """Measure compute, memory, network, collectives, storage and MPI of this machine or of the nodes of a cluster.

    Args:
        kinds: what to measure; all when left out.
        cluster: another cluster than this machine: a name such as `slurm`, a stack file, or a run file.
        nodes: number of nodes; that of the run file, or one.
        full: sizes for acceptance, up to hours, instead of about a minute.
        built_in: measure with the programs of Trainworks alone. When left out, nccl-tests, perftest, OSU
            micro-benchmarks, nvbandwidth, iperf3 and fio measure in their place where they are on the search path.
        paths: folders whose storage is measured; when left out the run file's folder of checkpoints and of local data,
            or the current folder.
        settings: variables whose values are compared side by side in the transfers between ranks, such as
            `NCCL_ALGO=Ring,Tree`.
        expect: hardware that the figures are held against: a description such as `4x DGX H100`, a stack file, or a run
            file with one, whose workload says what it needs of the storage; when left out the run file of `cluster`, or
            what the nodes show of their processors.
        cables: cable plan that names the cables of slow links, as `trainworks network --cables` writes it.
        resume: run of a benchmark to continue or to show; what it has measured is not measured again.
        train: then train the workload of the run file of `cluster` for 30 steps, and hold the step time against its
            plan. A cluster that the benchmark does not accept trains nothing.
        folder: folder of all runs.
        progress: receives a line for every finished part.

    Rates of a described cluster that passed or are weak teach its plans, as `read_bench(learn=True)` does.

    Raises:
        ArgumentError: an argument is not valid.
        UsageError: the cluster cannot run it, or the run is unknown.
        RunFailedError: the run failed; `resume` continues it.
        EnvironmentProblem: nothing was measured, because what measures is missing.

    Examples:
        >>> import tempfile
        >>> found = bench("memory", folder=tempfile.mkdtemp())
        >>> found.is_complete
        True
    """
    plan = read_cables(Path(cables)) if cables is not None else {}
    if train and resume is not None:
        raise ArgumentError("a benchmark that is continued trains nothing", argument="train", hint="leave out one")
    trial = _trial(cluster, folder) if train else None
    if resume is not None:
        yardstick = described_hardware(expect) if expect is not None else None
        found = find_run(resume, folder)
        is_new = found.standing()[0] is not JobState.SUCCEEDED
        run = _followed(prepare_resume(found), progress) if is_new else found
    else:
        job = bench_job(
            *kinds,
            cluster=cluster,
            nodes=nodes,
            full=full,
            built_in=built_in,
            paths=paths,
            settings=settings,
            expect=expect,
            folder=folder,
        )
        is_new, yardstick = True, job.yardstick
        if note := job.prepared.probe():
            warn(note)
        run = _followed(create_launch(job.prepared), progress)
    records = read_records(run.path)
    needs = _needs(expect or cluster, measured_paths(records))
    resources = run.resolved.run_file.resources
    asked = min((each.count for each in (resources.accelerators if resources else None) or ()), default=None)
    report = build_bench_report(run.id, records, yardstick, needs, plan, accelerators=asked)
    report.check_measured()
    learns = measured_rates(report.judged) or (yardstick and measured_curves(report.judged, yardstick))
    if is_new and yardstick is not None and learns:
        report = replace(report, learned=learn_from(report.judged, yardstick))
    if trial is not None:
        write_training(run.path, _trained(trial, report, run.path / "training", progress))
    return replace(report, training=read_training(run.path))


@dataclass(frozen=True, slots=True)
class BenchJob:
    """A benchmark before it starts."""

    prepared: PreparedRun
    kinds: tuple[BenchKind, ...]
    yardstick: ClusterDescription | None
    """Hardware that the figures will be held against; None where only the nodes tell."""

    @property
    def text(self) -> str:
        """What would be submitted."""
        return self.prepared.rendered()


def bench_job(
    *kinds: str,
    cluster: str | None = None,
    nodes: int | None = None,
    full: bool = False,
    built_in: bool = False,
    paths: Sequence[Path | str] = (),
    settings: Sequence[str] = (),
    expect: str | None = None,
    folder: Path | str = "runs",
) -> BenchJob:
    """The job of a benchmark, checked for its backend; nothing starts. Arguments and errors are those of `bench`."""
    yardstick = described_hardware(expect) if expect is not None else None
    run_file = _run_file(cluster)
    if yardstick is None and run_file.cluster.of is not None:
        yardstick = described_cluster(run_file)
    chosen = _kinds(kinds)
    folders = _folders(run_file) if cluster is not None else ()  # of checkpoints and of local data, as far as there
    own = list(dict.fromkeys(path for path in folders if path and path.is_dir()))
    request = BenchRequest(
        kinds=chosen,
        full=full,
        built_in=built_in,
        paths=tuple(str(Path(path).absolute()) for path in paths or own or [Path()]),
        settings=(BenchSetting(), *(one for text in settings for one in parse_setting(text))),
        prints_record=not shares_files(run_file.cluster.engine),
    )
    prepared = prepare(_job(run_file, request, kinds, nodes), folder=Path(folder), queued=False)
    prepared.check()
    return BenchJob(prepared, chosen, yardstick)


@dataclass(frozen=True, slots=True)
class _Trial:
    """A workload cut to a few steps, and its plan before anything is measured."""

    request: RunRequest
    planned: PlannedStep | None
    """None where only the nodes can plan it."""


def _trial(cluster: str | None, folder: Path | str) -> _Trial:
    """The workload of a run file for a few steps, without goal, messages, copies and restarts; nothing starts.

    Its plan has learned from nothing: what was measured before must not lower what the nodes are held against.

    Raises:
        ArgumentError: `cluster` names no workload to train.
        RunFileError: the run file has problems.
        UsageError: its cluster cannot run it.
        EnvironmentProblem: no layout fits.
    """
    run_file = _run_file(cluster)
    if run_file.workload is None:
        hint = "give the run file of a workload, such as `size --write` makes"
        raise ArgumentError("a training needs a workload", argument="train", hint=hint)
    data = run_file.model_dump(mode="json", exclude_unset=True) | {"recover": {"max_restarts": 0}}
    data["workload"]["train_for"] = f"{STEPS} steps"
    for key in ("goal", "profile", "notify", "track"):
        data.pop(key, None)
    for block, keys in (("checkpoint", ("copies", "memory_every")), ("job", _OF_THE_QUEUE)):
        data[block] = {key: value for key, value in data.get(block, {}).items() if key not in keys}
    request = read_run_file(to_yaml(data))
    prepared = prepare(request, folder=Path(folder), queued=False)
    prepared.check()
    found = prepared.with_forecast(learning=False).resolved.forecast
    if found is None:
        return _Trial(request, None)
    planned = PlannedStep(cluster=found.cluster, step_s=found.step_s, low_s=found.low_s, high_s=found.high_s)
    return _Trial(request, planned)


def _trained(trial: _Trial, report: BenchReport, folder: Path, progress: Progress | None) -> ShortTraining:
    """Train for a few steps, and judge the step time by the plan before submission, or else by that on the nodes."""
    none = BenchVerdict.NO_EXPECTATION
    if not report.is_accepted:
        return ShortTraining(run="", verdict=none, reason="nothing trained: the benchmark is not accepted")
    try:
        run = start_run(trial.request, folder=folder, wait=False)
    except TrainworksError as error:  # what was measured is worth its report
        return ShortTraining(run="", verdict=BenchVerdict.FAIL, reason=f"it did not start: {error.message}")
    if progress:
        progress(f"{run.path}: {STEPS} steps")
    state = run.wait()
    if (failure := failure_of(run.run_dir, state)) is not None or state is not JobState.SUCCEEDED:
        reason = failure.message if failure else f"it ended {state}"
        return ShortTraining(run=str(run.path), verdict=BenchVerdict.FAIL, reason=reason)
    planned, plan, comparison = trial.planned, run.resolved.plan, run.report().comparison
    if planned is None and plan is not None and (ends := plan.expected) is not None:
        planned = PlannedStep(cluster="", step_s=plan.step_time.total_s, low_s=ends.low_s, high_s=ends.high_s)
    step_s = comparison.step_time.measured if comparison else None
    if planned is None or step_s is None:
        return ShortTraining(run=str(run.path), verdict=none, reason="its nodes sent no steps back")
    shared = (run.others_share() or 0.0) > run.resolved.planned_others_share
    is_busy = shared or any(record.is_busy for record in report.records)
    return judge_training(str(run.path), planned, step_s, is_busy=is_busy)


def _kinds(names: Sequence[str]) -> tuple[BenchKind, ...]:
    wanted = set(names) - {"all"}
    if unknown := sorted(wanted - set(KINDS)):
        raise ArgumentError(
            f"cannot measure `{unknown[0]}`", argument="kinds", hint=f"choose of {', '.join(KINDS)} and all"
        )
    return tuple(kind for kind in KINDS if not wanted or "all" in names or kind in wanted)


def _run_file(cluster: str | None) -> RunFile:
    with argument("cluster"):
        if cluster is not None and is_run_description(cluster) and not is_stack_file(cluster):
            return load_run(cluster)[0]
        return RunFile(name="bench", run=_PROGRAM, cluster=Cluster() if cluster is None else Cluster.named(cluster))


def _folders(run_file: RunFile) -> tuple[Path | None, Path | None]:
    """Folder of the checkpoints and of the local data of a run file; None for what it does not have."""
    if run_file.workload is None:
        return None, None
    data = getattr(run_file.workload.data, "source", None)
    return Path(run_file.checkpoint.to), Path(str(data)) if data else None


def _needs(run: str | None, paths: Sequence[str]) -> dict[str, dict[Quantity, float]]:
    """Rates that each node needs of the storage of each path, for a workload on a described cluster.

    The path of the checkpoints has to take one in the time of a save, and to give the newest one back after a failure;
    that of the data has to be read while the run trains. A path that is neither is held against both.
    """
    if run is None or not Path(run).is_file() or is_stack_file(run):
        return {}
    run_file, _ = load_run(run)
    if run_file.cluster.of is None or run_file.workload is None:
        return {}
    demand, folders = storage(run_file).demand, _folders(run_file)
    rates = (
        {Quantity.STORAGE_WRITE: demand.write.value, Quantity.STORAGE_READ: demand.restart.value},
        {Quantity.STORAGE_READ: demand.read.value},
    )
    found: dict[str, dict[Quantity, float]] = {}
    for path in paths:
        own = [need for folder, need in zip(folders, rates, strict=True) if folder and str(folder.absolute()) == path]
        found[path] = {
            quantity: max(need.get(quantity, 0.0) for need in own or rates) / demand.nodes.value
            for quantity in dict.fromkeys(quantity for need in own or rates for quantity in need)
        }
    return found


def _job(run_file: RunFile, request: BenchRequest, names: Sequence[str], nodes: int | None) -> RunRequest:
    """The run: one program per node of the cluster of the run file."""
    python = run_file.cluster.slurm.python if run_file.cluster.engine == "slurm" else None
    command = process.python_module(_PROGRAM, request.model_dump_json(exclude_defaults=True), python=python)
    if request.prints_record:  # an image has a Python of its own
        command[0] = "python"
    reset = {key: RunFile.model_fields[key].get_default() for key in _OF_THE_RUN}
    queue = run_file.job.model_copy(update={key: JobOptions.model_fields[key].get_default() for key in _OF_THE_QUEUE})
    own = {"name": f"bench-{'-'.join(names) or 'all'}", "run": shlex.join(command), "job": queue}
    job = without_packages(run_file).model_copy(update=reset | own)
    return RunRequest(job.with_ranks(nodes, 1), command=command)


def _followed(launch: Launch, progress: Progress | None) -> Run:
    """Start the run and wait for its end; a node that does not share its folder has printed its record."""
    launch.start()
    seen: set[tuple[str, str]] = set()
    run = launch.run
    for _ in run.poll(since=launch.since, poll_s=0.5):
        for record in read_records(run.path) if progress else ():
            for part in record.parts:
                if progress and (record.name, part) not in seen:
                    seen.add((record.name, part))
                    progress(f"{record.name}: {part}")
    if run.has_remote_output:
        for record in records_in(run.output()):
            write_record(record_path(run.path, record.node), record)
    return run.check()


def accept_cluster(
    stack: Path | str,
    run_file: Path | str,
    verify: Callable[[], ClusterVerification],
    *,
    full: bool = False,
    folder: Path | str = "runs",
    progress: Progress | None = None,
) -> Acceptance:
    """Compare the nodes of a stack with it, benchmark all compute nodes, and train a workload on them for 30 steps.

    Each part is held against what the plan counts on: the software of the stack, the rates of its hardware, what the
    workload needs of its storage, and its step time. Nodes that differ from the stack are not measured, and a cluster
    that the benchmark does not accept trains nothing. What was measured teaches later plans of this kind of cluster.

    Args:
        stack: path of the stack file.
        run_file: path of the run file of a workload whose cluster is this one.
        verify: compares the nodes with the stack, as `verify_stack` does; called once the plan is known to fit.
        full: sizes for acceptance, up to hours, instead of about a minute.
        folder: folder of all runs.
        progress: receives a line for every finished part.

    Raises:
        ArgumentError: the run file has no workload, its cluster is this machine, or it counts on other nodes than
            those of the stack.
        UsageError: as `bench`, and what `verify` raises.
        RunFileError: the stack file or the run file has problems.
        EnvironmentProblem: as `bench`, and what `verify` raises.
        RunFailedError: the benchmark failed.
    """
    groups = list(load_stack(Path(stack))[0].groups("compute"))
    nodes = tuple(name for group in groups for name in group.names)
    named = _run_file(str(run_file))
    if named.workload is not None and named.cluster.engine == "local":
        hint = "give a run file with `cluster: {engine: slurm}`"
        raise ArgumentError("an acceptance measures the nodes of a cluster", argument="run_file", hint=hint)
    short = _trial(str(run_file), folder).request.run_file
    digests = [hashlib.sha256(Path(path).read_bytes()).hexdigest() for path in (stack, run_file)]
    has_accelerators = any(hardware_of(group).accelerators for group in groups)
    if short.cluster.of is not None:
        _check_same(described_cluster(short), read_cluster(str(stack)))
    options: dict[str, Any] = {"cluster": str(run_file), "nodes": len(nodes), "full": full, "folder": folder}
    options["expect"] = str(stack) if short.cluster.of is None and has_accelerators else None
    bench_job(**options)  # what it refuses, it refuses before a node is asked
    verification = verify()
    found = None if verification.failed else bench(**options, train=True, progress=progress)
    stack_sha256, run_file_sha256 = digests
    return Acceptance(
        time.time(), __version__, stack_sha256, run_file_sha256, verification=verification, nodes=nodes, bench=found
    )


def _check_same(planned: ClusterDescription, bought: ClusterDescription) -> None:
    """Refuse a plan that counts on other nodes or another network than the stack has."""
    same = ("num_nodes", "accelerators_per_node", "network", "node_bytes_per_s", "oversubscription")
    kinds = [(each.accelerator.name, *(getattr(each, name) for name in same)) for each in (planned, bought)]
    if kinds[0] != kinds[1]:
        said, has = (f"{each.name} over {each.nics}x {each.network}" for each in (planned, bought))
        hint = "set `cluster.of` to the stack file, and plan again"
        raise ArgumentError(f"the plan counts on {said}, the stack has {has}", argument="run_file", hint=hint)
