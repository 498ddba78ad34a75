"""The plan of a workload on the machine, or the nodes, that it starts on: choose its layout, measure, predict."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path

from trainworks.catalog.catalog import accelerator
from trainworks.catalog.facts import Accelerator
from trainworks.catalog.prices import known_accelerator
from trainworks.config.layout import ANY_LAYOUT, Layout, ModelSupport, ResolvedLayout
from trainworks.config.run_file import RunFile, Workload
from trainworks.errors import DiskFullError, EnvironmentProblem, LayoutError, MissingExtraError, UsageError
from trainworks.files import free_bytes
from trainworks.host.folders import FINISHED_RUNS, cache_folder, data_folder
from trainworks.host.installed import check_versions
from trainworks.host.network import Machines
from trainworks.jobs.environment import agent_environment
from trainworks.measure.calibrate import TrialOutOfMemoryError, calibrate, try_out
from trainworks.measure.model_config import check_groups, cuts_layers, has_formula, model_shape, model_support
from trainworks.measure.planning import Planning
from trainworks.measure.ranks_environment import OWN_INTERPRETER, RanksInterpreter
from trainworks.measure.worker_tasks import held_out_samples, prepared_folder, tokens_in_data
from trainworks.plan.cluster.learning import with_learning
from trainworks.plan.run.compiling import NO_COMPILER, decided_compile
from trainworks.plan.run.layout import choose_layouts, fastest, largest_micro_batch
from trainworks.plan.run.plan import (
    check_own_optimizer,
    make_measured_plan,
    make_plan,
    measured_layouts,
    plan_of_command,
)
from trainworks.plan.run.pricing import RunJob, calibration_request, run_job
from trainworks.plan.run.processes import memory_per_rank, training_processes
from trainworks.plan.run.steps import num_steps, samples_left_out, sequences_in
from trainworks.plan.uncertainty import COMMAND_PRIOR
from trainworks.record.calibration import Calibration
from trainworks.record.environment import HostFacts
from trainworks.record.measured.finished_run import OF_COMMAND, machine_of, read_finished, software_of
from trainworks.record.measured.past_run import FinishedRun
from trainworks.record.model_shape import ModelShape
from trainworks.record.resolved import FewerNodes, Plan, PlannedLayout, ResolvedRun
from trainworks.record.trial import Trial, TrialRequest
from trainworks.units import format_bytes
from trainworks.worker.fork_server import rank_modules

_USABLE_SHARE = 0.8
"""Share of a rank's memory that a plan may use; the rest is the system's and the allocator's."""

_LOGIT_BYTES = 12
"""Memory of a logit in PyTorch's cross-entropy. Count: a copy in fp32, its logarithm and its gradient."""


@dataclass(frozen=True, slots=True)
class ReadyWorkload:
    """A run with its processes and precision, whose nodes are known."""

    resolved: ResolvedRun
    workload: Workload
    interpreter: RanksInterpreter
    """Python of its ranks."""
    machines: Machines | None
    """How to start a process on the nodes; None for this machine."""
    shape: ModelShape | None
    """The shape of a preset, which can be planned and not trained; None for the model's own."""


@dataclass(frozen=True, slots=True)
class _DescribedModel:
    """A model that formulas describe, on its ranks."""

    job: RunJob
    micro_batch: int
    """Sequences of the micro-batch to measure."""
    steps: int
    samples_left_out: int


def plan_workload(ready: ReadyWorkload, runs: Path, planning: Planning) -> ResolvedRun:
    """Choose layout and steps, measure what the cache lacks, and predict the run.

    Args:
        ready: the run without its plan.
        runs: folder of all runs, whose disk has to hold a checkpoint.
        planning: what is measured for the plan.

    Raises:
        MissingExtraError: torch or transformers is not installed.
        UsageError: the model cannot be trained; or layouts are to be tuned, and the model is measured or its ranks are
            elsewhere.
        LayoutError: the layout does not fit the ranks or the batch.
        EnvironmentProblem: a package is too old, or the model does not fit.
        DiskFullError: a checkpoint does not fit on the disk.
    """
    resolved, workload = ready.resolved, ready.workload
    if missing := [package for package in ("torch", "transformers") if package not in resolved.host.packages]:
        raise MissingExtraError(missing[0], "train")
    check_versions(resolved.host.packages, "train")
    if workload.task != "causal-lm" or (ready.shape is None and not has_formula(workload)):
        written = resolved.run_file.layout
        is_cut = workload.task == "causal-lm" and cuts_layers(written)
        packages, python = resolved.host.packages, ready.interpreter.python
        support = model_support(workload, packages, python=python) if is_cut else None
        layouts = measured_layouts(workload, written, world_size=resolved.processes.world_size, support=support)
        planning.refuse_tuning()
        layouts = chain(list(islice(layouts, 1)), layouts)  # a layout is refused before data are tokenized
        changes: dict[str, object] = {"plan": _plan_by_trial(ready, layouts, planning)}
    else:
        described = _described(ready, planning)
        if ready.machines is not None:
            planning.refuse_tuning()
        changes = _plan_by_calibration(ready, described, planning)
    resolved = resolved.model_copy(update=changes)
    assert resolved.plan is not None
    finished = _finished(resolved) if planning.learning else []
    plan = with_learning(resolved.plan, finished, software=software_of(resolved))
    _check_disk(plan.checkpoint_bytes, runs)
    return resolved.model_copy(update={"plan": plan})


def plan_command(resolved: ResolvedRun, shape: ModelShape, planning: Planning) -> ResolvedRun:
    """The command with the plan of what it trains, by the measured rates of this machine.

    It is as the worker would train it, eager where the run file does not say more, in a wider interval.

    Raises:
        MissingExtraError: torch is not installed, which measures the machine.
        LayoutError: the layout does not fit the ranks or the batch.
        EnvironmentProblem: no layout fits.
    """
    if "torch" not in resolved.host.packages:
        raise MissingExtraError("torch", "train")
    run_file, processes = resolved.run_file.as_planned, training_processes(resolved.run_file, resolved.processes)
    workload, software = run_file.workload, run_file.software
    assert workload is not None
    compiled = workload.compile is True or (software is not None and software.compiled is True)
    workload = workload.model_copy(update={"compile": compiled})
    run_file = run_file.model_copy(update={"workload": workload})
    planned = resolved.model_copy(update={"run_file": run_file, "processes": processes})
    ready = ReadyWorkload(planned, workload, OWN_INTERPRETER, None, shape)
    found = _plan_by_calibration(ready, _described(ready, planning), planning)
    plan, finished = found["plan"], _finished(resolved) if planning.learning else []
    assert isinstance(plan, Plan)
    num_logits = plan.layout.micro_batch * workload.data.sequence_length * shape.vocabulary // plan.layout.tp
    plan = plan_of_command(plan, resolved.run_file, least_logits_bytes=_LOGIT_BYTES * num_logits)
    plan = with_learning(plan, finished, software=software_of(resolved), prior=COMMAND_PRIOR)
    return resolved.model_copy(update={"plan": plan, "calibration": found["calibration"]})


def _described(ready: ReadyWorkload, planning: Planning) -> _DescribedModel:
    """The micro-batch to measure, and the steps."""
    resolved, workload = ready.resolved, ready.workload
    shape = ready.shape or model_shape(workload)
    if not shape.causal:
        raise UsageError(f"`{workload.model.hf}` can be planned for a described cluster, not trained, by this version")
    if ready.shape is None:
        check_groups(workload, shape, resolved.host.packages, python=ready.interpreter.python)
    memory = memory_per_rank(resolved.host, resolved.processes)
    job = run_job(workload, shape, resolved.processes, memory_per_rank_bytes=memory, support=_support(ready, shape))
    size = largest_micro_batch(job, resolved.run_file.layout)
    tokens = tokens_in_data(workload, planning.announce)
    steps = num_steps(workload, tokens_in_data=tokens)
    sequences = None if tokens is None else sequences_in(workload.data, tokens)
    return _DescribedModel(job, size, steps, samples_left_out(workload, samples=sequences))


def _support(ready: ReadyWorkload, shape: ModelShape) -> ModelSupport:
    """What the worker can do with the model, where that matters: if several ranks may cut it, experts have a balance
    loss, or packed rows take the memory of an attention that depends on who computes it.
    """
    matters = shape.experts or ready.workload.model.balance_loss or ready.workload.data.pack
    if ready.shape is not None or (ready.resolved.processes.world_size == 1 and not matters):
        return ANY_LAYOUT
    return model_support(ready.workload, ready.resolved.host.packages, python=ready.interpreter.python)


def _finished(resolved: ResolvedRun) -> list[FinishedRun]:
    """Finished runs on this kind of machine, of workloads or of this command; other programs count their own steps."""
    found, own = read_finished(data_folder(FINISHED_RUNS), machine_of(resolved.host)), software_of(resolved)
    return [run for run in found if run.software == own or not run.software.startswith(OF_COMMAND)]


def _plan_by_calibration(ready: ReadyWorkload, described: _DescribedModel, planning: Planning) -> dict[str, object]:
    """The plan of a model that formulas describe, from the measured rates of the machine."""
    resolved, written, job = ready.resolved, ready.resolved.run_file.layout, described.job
    host, processes = resolved.host, resolved.processes
    request = calibration_request(
        job.shape,
        processes,
        micro_batch=described.micro_batch * job.workload.sequences_per_sample,
        sequence_length=job.sequence_length,
        precision=job.precision,
        machines=processes.nodes if ready.machines else 1,
        modules=rank_modules(job.workload, pp=written.pp if written else 1),
    )
    calibration = calibrate(
        request,
        host,
        cache_folder("calibration"),
        environment=agent_environment(processes),
        again=planning.again,
        machines=ready.machines,
        python=ready.interpreter.python,
        announce=planning.announce,
    )
    job = job.calibrated(calibration)
    past = [run for run in _finished(resolved) if run.software == software_of(resolved)] if planning.learning else []
    job, compared = _with_compile_decided(job, written, _compile_obstacle(resolved), steps=described.steps, past=past)
    if planning.tune:
        compared = _tuned(compared, ready, job, planning)
    plan = make_plan(
        _as_decided(resolved, job),
        job.shape,
        fastest(compared).layout,
        processes,
        calibration,
        steps=described.steps,
        samples_left_out=described.samples_left_out,
        held_out_samples=held_out_samples(job.workload, planning.announce),
        compared=compared,
        accelerator=_catalogued(host),
        support=job.support,
        compile_choice=job.compile_choice,
    )
    fewer = _plan_fewer_nodes(resolved, described.job, calibration, steps=described.steps, past=past)
    return {"plan": plan, "calibration": calibration, "fewer": fewer}


def _with_compile_decided(
    job: RunJob, written: Layout | None, obstacle: str, *, steps: int, past: Sequence[FinishedRun]
) -> tuple[RunJob, tuple[PlannedLayout, ...]]:
    """The job without `compile: auto`, and its best layouts."""
    compared = choose_layouts(job, written)
    if not job.leaves_compile_open:
        return job, compared
    job = decided_compile(job, fastest(compared).layout, steps=steps, past=past, obstacle=obstacle)
    return job, choose_layouts(job, written) if job.workload.compile is True else compared


def _compile_obstacle(resolved: ResolvedRun) -> str:
    """What keeps blocks of any model eager in this run; empty where nothing does."""
    said = resolved.run_file.software
    if said is not None and said.compiled is False:
        return "`software.compiled` is false"
    return "" if resolved.host.builds_kernels else NO_COMPILER


def _as_decided(resolved: ResolvedRun, job: RunJob) -> RunFile:
    """The run file with the workload of the job, in which nothing is left to the plan."""
    return resolved.run_file.model_copy(update={"workload": job.workload})


def _plan_fewer_nodes(
    resolved: ResolvedRun, job: RunJob, calibration: Calibration, *, steps: int, past: Sequence[FinishedRun]
) -> tuple[FewerNodes, ...]:
    """The best plan for each smaller number of nodes down to `job.min_nodes`, on which the run may continue.

    The global batch stays. Numbers without a layout that fits are left out. A layout of the run file is one for all
    nodes, so it is searched anew.
    """
    run_file, processes = resolved.run_file, resolved.processes
    memory, obstacle = memory_per_rank(resolved.host, processes), _compile_obstacle(resolved)
    found = []
    for count in range(run_file.job.min_nodes or processes.nodes, processes.nodes):
        ranks = processes.model_copy(update={"nodes": count})
        smaller = run_job(
            job.workload,
            job.shape,
            ranks,
            calibration=calibration,
            memory_per_rank_bytes=memory,
            support=job.support,
        )
        with suppress(LayoutError, EnvironmentProblem):
            smaller, compared = _with_compile_decided(smaller, None, obstacle, steps=steps, past=past)
            layout = fastest(compared).layout
            plan = make_plan(
                _as_decided(resolved, smaller),
                job.shape,
                layout,
                ranks,
                calibration,
                steps=steps,
                support=job.support,
                compile_choice=smaller.compile_choice,
            )
            found.append(FewerNodes(processes=ranks, plan=plan))
    return tuple(found)


def _tuned(
    compared: tuple[PlannedLayout, ...], ready: ReadyWorkload, job: RunJob, planning: Planning
) -> tuple[PlannedLayout, ...]:
    """The same layouts, the first of them with the step time of a few steps; one that runs out of memory has none."""
    folder = prepared_folder(job.workload, planning.announce)
    measured = []
    for one in compared[: planning.tune]:
        request = TrialRequest(
            workload=job.workload.model_copy(update={"eval": None}),
            layout=one.layout,
            processes=ready.resolved.processes,
            shape=job.shape,
            data_folder=folder,
        )
        trial = _trial(request, ready, planning)
        measured.append(one.model_copy(update={"measured_s": trial.step_time.total_s if trial else None}))
    return (*measured, *compared[planning.tune :])


def _trial(request: TrialRequest, ready: ReadyWorkload, planning: Planning) -> Trial | None:
    """A few steps of the model; None if its layout needs too much memory."""
    interpreter, written = ready.interpreter, ready.resolved.run_file.written_envs  # a module may read them
    environment = agent_environment(ready.resolved.processes) | written
    cache, host = cache_folder("trials", *interpreter.cache), ready.resolved.host
    try:
        return try_out(
            request,
            host,
            cache,
            environment=environment,
            again=planning.again,
            python=interpreter.python,
            announce=planning.announce,
        )
    except TrialOutOfMemoryError:
        return None


def _plan_by_trial(ready: ReadyWorkload, layouts: Iterable[ResolvedLayout], planning: Planning) -> Plan:
    """The plan of the first layout that fits, from a few steps of the model itself."""
    resolved, workload = ready.resolved, ready.workload
    host, processes = resolved.host, resolved.processes
    usable = _USABLE_SHARE * memory_per_rank(host, processes)
    largest = 0
    folder = prepared_folder(workload, planning.announce)
    held_out = held_out_samples(workload, planning.announce)
    tried = workload if workload.task == "module" else workload.model_copy(update={"eval": None})
    for layout in layouts:
        request = TrialRequest(workload=tried, layout=layout, processes=processes, data_folder=folder)
        trial = _trial(request, ready, planning)
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
