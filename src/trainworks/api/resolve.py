"""Resolve a run in four steps: anchor, probe, decide, predict. The same code runs here and on the nodes of a job."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from trainworks import __version__
from trainworks.api.anchor import AnchoredRun, anchor
from trainworks.api.environments.files import read_environment, with_image
from trainworks.api.environments.planning import OWN_INTERPRETER, RanksInterpreter, ranks_interpreter
from trainworks.api.planned_model import has_formula, model_shape
from trainworks.api.worker_tasks import held_out_samples, prepared_folder, tokens_in_data
from trainworks.catalog.catalog import accelerator
from trainworks.catalog.facts import Accelerator
from trainworks.catalog.prices import known_accelerator
from trainworks.config.layout import ResolvedLayout
from trainworks.config.load import Source
from trainworks.config.run_file import RunFile, Workload
from trainworks.errors import DiskFullError, EnvironmentProblem, LayoutError, MissingExtraError, UsageError
from trainworks.files import free_bytes
from trainworks.host.folders import FINISHED_RUNS, cache_folder, data_folder
from trainworks.host.probe import probe_host
from trainworks.jobs.environment import agent_environment
from trainworks.measure.calibrate import Machines, calibrate
from trainworks.measure.trial import TrialOutOfMemoryError, try_out
from trainworks.plan.learning import with_learning
from trainworks.plan.run.fewer_nodes import plan_fewer_nodes
from trainworks.plan.run.layout import choose_layouts, fastest, largest_micro_batch
from trainworks.plan.run.module import check_own_optimizer, make_measured_plan, measured_layouts
from trainworks.plan.run.plan import make_plan
from trainworks.plan.run.precision import check_precision, default_precision
from trainworks.plan.run.pricing import RunJob, calibration_request, run_job
from trainworks.plan.run.processes import (
    ResourceError,
    as_asked,
    choose_command_processes,
    choose_workload_processes,
    memory_per_rank,
)
from trainworks.plan.run.steps import num_steps, samples_left_out, sequences_in
from trainworks.record.environment import HostFacts
from trainworks.record.measured.finished_run import machine_of, read_finished, software_of
from trainworks.record.model_shape import ModelShape
from trainworks.record.resolved import Plan, PlannedLayout, Processes, ResolvedRun
from trainworks.record.run_environment import ResolvedEnvironment
from trainworks.record.trial import Trial, TrialRequest
from trainworks.units import format_bytes

_USABLE_SHARE = 0.8
"""Share of a rank's memory that a plan may use; the rest is the system's and the allocator's."""


@dataclass(frozen=True, slots=True)
class Planning:
    """How the plan of a workload on this machine comes about."""

    again: bool = False
    """Measure again what is in the cache."""
    learning: bool = True
    """Whether finished runs on this machine correct the plan."""
    tune: int = 0
    """Layouts to train for a few steps each, of which the fastest is taken; 0 takes the best by the plan."""


AS_USUAL: Final[Planning] = Planning()


def resolve(
    run_file: RunFile,
    source: Source | None,
    *,
    run_id: str,
    runs: Path,
    command: list[str] | None = None,
    host: HostFacts | None = None,
    machines: Machines | None = None,
    shape: ModelShape | None = None,
    node_planner: str | None = None,
    planning: Planning = AS_USUAL,
    environment: ResolvedEnvironment | None = None,
) -> ResolvedRun:
    """Decide everything that the run file leaves open, and predict the run.

    Args:
        run_file: the run to resolve.
        source: text of the run file, for the place of an error.
        run_id: of the run directory.
        runs: folder of all runs.
        command: argument vector, where one is given instead of a text.
        host: all nodes of the job as one machine; when left out, this machine is probed, and a workload for another
            backend is planned later, on its nodes.
        machines: how to start a process on these nodes.
        shape: of a preset, which can be planned and not trained; the model's own when left out.
        node_planner: module that plans a workload on its nodes later, with the run directory as its argument.
        planning: what is measured for the plan.
        environment: packages of the ranks as an earlier launch recorded them; read from their file when left out.

    Raises:
        TrainworksError: the run cannot be resolved, with the line of the run file at fault.
    """
    run_file = with_image(run_file)
    anchored = anchor(run_file, source, on_nodes=host is not None, shape=shape)
    environment = environment or read_environment(run_file, source)
    probed = probe(anchored, runs, host=host, machines=machines, environment=environment)
    try:
        decided = decide(probed, run_id=run_id, command=command, node_planner=node_planner)
        return predict(decided, runs, planning)
    except LayoutError as error:
        if source is None:
            raise
        raise source.locate(error) from None


@dataclass(frozen=True, slots=True)
class ProbedRun:
    """A run and the machine, or the nodes of its job, that it starts on."""

    anchored: AnchoredRun
    host: HostFacts
    machines: Machines | None
    is_planned_later: bool
    """Whether the nodes are not known yet: what the run file requests stands in for them."""
    environment: ResolvedEnvironment | None = None
    interpreter: RanksInterpreter = OWN_INTERPRETER
    """Python of a workload that is planned now."""


def probe(
    anchored: AnchoredRun,
    runs: Path,
    *,
    host: HostFacts | None,
    machines: Machines | None,
    environment: ResolvedEnvironment | None = None,
) -> ProbedRun:
    """Probe this machine and build the environment of a workload, unless the nodes of the job come later."""
    run_file = anchored.run_file
    if host is None and run_file.cluster.engine != "local":
        return ProbedRun(anchored, as_asked(run_file), machines, is_planned_later=True, environment=environment)
    interpreter = ranks_interpreter(environment if run_file.workload else None)
    host = interpreter.seen_by(host or probe_host(runs))
    return ProbedRun(anchored, host, machines, False, environment, interpreter)


@dataclass(frozen=True, slots=True)
class DecidedRun:
    """A run with its processes and precision, and what is left to measure for its plan."""

    resolved: ResolvedRun
    machines: Machines | None
    layouts: tuple[ResolvedLayout, ...] = ()
    """Layouts to measure in this order, of which the first that fits runs; empty where formulas describe the model."""
    job: RunJob | None = None
    """A model that formulas describe, on its ranks; None for one that is measured in a few steps."""
    micro_batch: int = 0
    """Sequences of the micro-batch to measure for the job."""
    steps: int = 0
    interpreter: RanksInterpreter = OWN_INTERPRETER
    samples_left_out: int = 0


def decide(probed: ProbedRun, *, run_id: str, command: list[str] | None, node_planner: str | None = None) -> DecidedRun:
    """Choose processes, precision, layout and steps.

    Raises:
        UsageError: the run requests what the machine does not have, or its model cannot be trained.
        LayoutError: the layout does not fit the ranks or the batch.
        MissingExtraError: torch or transformers is not installed.
    """
    anchored, host = probed.anchored, probed.host
    run_file, source = anchored.run_file, anchored.source
    processes = _with_nccl(_processes(run_file, source, host), run_file, source)
    if not probed.is_planned_later:
        run_file = _with_precision(run_file, source, host, processes.device)
    workload = run_file.workload
    resolved = ResolvedRun(
        run_id=run_id,
        created_at=time.time(),
        trainworks=__version__,
        run_file=run_file,
        command=tuple(command) if command else None,
        working_folder=str(anchored.working_folder),
        environment=probed.environment,
        processes=processes,
        host=host,
        planner=(node_planner,) if node_planner and workload is not None and probed.is_planned_later else (),
    )
    if workload is None or probed.is_planned_later:
        return DecidedRun(resolved, probed.machines)
    if missing := [package for package in ("torch", "transformers") if package not in host.packages]:
        raise MissingExtraError(missing[0], "train")
    if workload.task != "causal-lm" or (anchored.shape is None and not has_formula(workload)):
        layouts = measured_layouts(workload, run_file.layout, world_size=processes.world_size)
        return DecidedRun(resolved, probed.machines, tuple(layouts), interpreter=probed.interpreter)
    return _described_model(resolved, workload, probed)


def _described_model(resolved: ResolvedRun, workload: Workload, probed: ProbedRun) -> DecidedRun:
    """Layout and steps of a model that formulas describe."""
    shape = probed.anchored.shape or model_shape(workload)
    if not shape.causal:
        raise UsageError(f"`{workload.model.hf}` can be planned for a described cluster, not trained, by this version")
    written = resolved.run_file.layout
    memory = memory_per_rank(resolved.host, resolved.processes)
    job = run_job(workload, shape, resolved.processes, memory_per_rank_bytes=memory, layout=written)
    size = largest_micro_batch(job, written)
    tokens = tokens_in_data(workload)
    steps = num_steps(workload, tokens_in_data=tokens)
    sequences = None if tokens is None else sequences_in(workload.data, tokens)
    left_out = samples_left_out(workload, samples=sequences)
    return DecidedRun(
        resolved,
        probed.machines,
        job=job,
        micro_batch=size,
        steps=steps,
        samples_left_out=left_out,
        interpreter=probed.interpreter,
    )


def predict(decided: DecidedRun, runs: Path, planning: Planning) -> ResolvedRun:
    """Measure what the cache lacks, and plan the run; a run without a plan is returned as it is.

    Args:
        decided: the run with its layouts.
        runs: folder of all runs, whose disk has to hold a checkpoint.
        planning: what is measured for the plan.

    Raises:
        UsageError: layouts are to be tuned, and the model is measured or its ranks are elsewhere.
        EnvironmentProblem: the model does not fit.
        DiskFullError: a checkpoint does not fit on the disk.
    """
    resolved, workload = decided.resolved, decided.resolved.run_file.workload
    _check_tuning(decided, planning)
    if workload is None or not (decided.layouts or decided.job):
        return resolved
    if decided.job is None:
        changes: dict[str, object] = {"plan": _plan_by_trial(decided, workload, again=planning.again)}
    else:
        changes = _plan_by_calibration(decided, decided.job, planning)
    resolved = _with_learning(resolved.model_copy(update=changes), learning=planning.learning)
    assert resolved.plan is not None
    _check_disk(resolved.plan.checkpoint_bytes, runs)
    return resolved


def _check_tuning(decided: DecidedRun, planning: Planning) -> None:
    """Refuse to tune what has no layouts to compare here."""
    if planning.tune and (decided.job is None or decided.machines is not None):
        raise UsageError(
            "`--tune` trains layouts of a `causal-lm` on this machine",
            hint="leave it out; a job for another cluster is planned on its nodes, and other models are measured",
        )


def _with_learning(resolved: ResolvedRun, *, learning: bool) -> ResolvedRun:
    """The plan after learning from finished runs on this kind of machine."""
    assert resolved.plan is not None
    finished = read_finished(data_folder(FINISHED_RUNS), machine_of(resolved.host)) if learning else []
    plan = with_learning(resolved.plan, finished, software=software_of(resolved))
    return resolved.model_copy(update={"plan": plan})


def _plan_by_calibration(decided: DecidedRun, job: RunJob, planning: Planning) -> dict[str, object]:
    """The plan of a model that formulas describe, from the measured rates of the machine."""
    resolved, written = decided.resolved, decided.resolved.run_file.layout
    host, processes = resolved.host, resolved.processes
    request = calibration_request(
        job.shape,
        processes,
        micro_batch=decided.micro_batch * job.workload.sequences_per_sample,
        sequence_length=job.sequence_length,
        precision=job.precision,
        machines=processes.nodes if decided.machines else 1,
    )
    calibration = calibrate(
        request,
        host,
        cache_folder("calibration"),
        environment=agent_environment(processes),
        again=planning.again,
        machines=decided.machines,
        python=decided.interpreter.python,
    )
    job = job.calibrated(calibration)
    compared = choose_layouts(job, written)
    if planning.tune:
        compared = _tuned(compared, decided, job, planning)
    plan = make_plan(
        resolved.run_file,
        job.shape,
        fastest(compared).layout,
        processes,
        calibration,
        steps=decided.steps,
        samples_left_out=decided.samples_left_out,
        held_out_samples=held_out_samples(job.workload),
        compared=compared,
        accelerator=_catalogued(host),
    )
    room = memory_per_rank(host, processes)
    fewer = plan_fewer_nodes(resolved.run_file, job, processes, calibration, memory_bytes=room, steps=decided.steps)
    return {"plan": plan, "calibration": calibration, "fewer": fewer}


def _tuned(
    compared: tuple[PlannedLayout, ...], decided: DecidedRun, job: RunJob, planning: Planning
) -> tuple[PlannedLayout, ...]:
    """The same layouts, the first of them with the step time of a few steps; one that runs out of memory has none."""
    folder = prepared_folder(job.workload)
    measured = []
    for one in compared[: planning.tune]:
        request = TrialRequest(
            workload=job.workload.model_copy(update={"eval": None}),
            layout=one.layout,
            processes=decided.resolved.processes,
            shape=job.shape,
            data_folder=folder,
        )
        trial = _trial(request, decided, again=planning.again)
        measured.append(one.model_copy(update={"measured_s": trial.step_time.total_s if trial else None}))
    return (*measured, *compared[planning.tune :])


def _trial(request: TrialRequest, decided: DecidedRun, *, again: bool) -> Trial | None:
    """A few steps of the model; None if its layout needs too much memory."""
    environment, interpreter = agent_environment(decided.resolved.processes), decided.interpreter
    cache, host = cache_folder("trials", *interpreter.cache), decided.resolved.host
    try:
        return try_out(request, host, cache, environment=environment, again=again, python=interpreter.python)
    except TrialOutOfMemoryError:
        return None


def _plan_by_trial(decided: DecidedRun, workload: Workload, *, again: bool) -> Plan:
    """The plan of the first layout that fits, from a few steps of the model itself."""
    resolved = decided.resolved
    host, processes = resolved.host, resolved.processes
    usable = _USABLE_SHARE * memory_per_rank(host, processes)
    largest = 0
    folder = prepared_folder(workload)
    held_out = held_out_samples(workload)
    tried = workload if workload.task == "module" else workload.model_copy(update={"eval": None})
    for layout in decided.layouts:
        request = TrialRequest(workload=tried, layout=layout, processes=processes, data_folder=folder)
        trial = _trial(request, decided, again=again)
        if trial is None:
            continue
        plan = make_measured_plan(
            resolved.run_file, layout, processes, trial, held_out_samples=held_out, accelerator=_catalogued(host)
        )
        largest = plan.memory.total_bytes
        if largest <= usable:
            check_own_optimizer(workload, trial)
            return plan
    raise EnvironmentProblem(
        f"the model does not fit: {format_bytes(largest) if largest else 'more memory than there is'} per rank, "
        f"{format_bytes(usable)} usable",
        hint="set a smaller `layout.micro_batch`, shard the model over more ranks, or start fewer ranks per node",
    )


def _processes(run_file: RunFile, source: Source | None, host: HostFacts) -> Processes:
    choose = choose_workload_processes if run_file.workload else choose_command_processes
    try:
        return choose(run_file, host)
    except ResourceError as error:
        place = source.place(("resources", error.field)) if source else None
        raise UsageError(error.message, place=place, hint=error.hint) from None


def _with_nccl(processes: Processes, run_file: RunFile, source: Source | None) -> Processes:
    """The same processes with the NCCL settings of the cluster, where the run file describes it."""
    described = run_file.cluster.of
    if described is None:
        return processes
    from trainworks.catalog.cluster import parse_cluster  # noqa: PLC0415  # a catalogue that few runs need
    from trainworks.plan.network.nccl import nccl_environment  # noqa: PLC0415

    try:
        cluster = parse_cluster(described)
    except UsageError as error:
        place = source.place(("cluster", "of")) if source else None
        raise UsageError(error.message, place=place, hint=error.hint) from None
    return processes.model_copy(update={"nccl_environment": nccl_environment(cluster, processes)})


def _with_precision(run_file: RunFile, source: Source | None, host: HostFacts, device: str) -> RunFile:
    """The same run file with a precision that the machine has."""
    workload = run_file.workload
    if workload is None:
        return run_file
    if "precision" in workload.model_fields_set:
        check_precision(workload.precision, host, source)
        return run_file
    chosen = workload.model_copy(update={"precision": default_precision(host, device)})
    return run_file.model_copy(update={"workload": chosen})


def _catalogued(host: HostFacts) -> Accelerator | None:
    """The accelerator of the machine in the catalogue; None without one, or where the catalogue lacks it."""
    name = known_accelerator(host.accelerators[0].name) if host.accelerators else None
    return None if name is None else accelerator(name)


def _check_disk(checkpoint_bytes: int, runs: Path) -> None:
    """Refuse a run that cannot save one checkpoint."""
    if (free := free_bytes(runs)) < checkpoint_bytes:
        raise DiskFullError(
            f"one checkpoint takes {format_bytes(checkpoint_bytes)}, `{runs}` has {format_bytes(free)} free",
            hint="free some space or point `checkpoint.to` at another disk",
        )
