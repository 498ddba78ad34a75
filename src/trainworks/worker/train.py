"""One rank of a training run, from its start to its end, in the order in which things happen.

`train` is the entry. It joins the ranks (`_join`), builds what they train with (`_build`), and trains (`_run`); the
loop itself is `loop.Trainer`. Groups of processes are created at two moments alone, in an order that is the same on all
ranks: the group of all ranks in `_join`, all others with the mesh in `_build`.
"""

from __future__ import annotations

import functools
import gc
import os
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from trainworks.config.run_file import Workload
from trainworks.errors import PortInUseError
from trainworks.host.network import LOOPBACK, listen
from trainworks.host.process import die_with
from trainworks.record.events.job import StoppedEvent
from trainworks.record.events.log import Event, of_kind, read_events
from trainworks.record.events.training import AttemptEvent, CallbackStopEvent, FinishedEvent, SampleEvent
from trainworks.record.resolved import Plan, ResolvedRun
from trainworks.record.run_dir import RunDir
from trainworks.recover.memory_checkpoints import place_of_node
from trainworks.worker.callbacks import load_callbacks
from trainworks.worker.checkpoint.checkpointer import Checkpointer
from trainworks.worker.checkpoint.interval import measured_interval
from trainworks.worker.checkpoint.memory import MemoryTier
from trainworks.worker.data.card import DataFolders
from trainworks.worker.data.reader import BatchReader, Dataset
from trainworks.worker.data.tokenization import fingerprint_of
from trainworks.worker.determinism import make_deterministic, take_device
from trainworks.worker.evaluation import build_evaluator
from trainworks.worker.guard import FaultPolicy
from trainworks.worker.health.hang import HangLimits
from trainworks.worker.health.heartbeat import Heartbeat, Phase, install_stall_reporter
from trainworks.worker.health.rank_state import RankState, record_failure
from trainworks.worker.loop import Trainer, warm_up
from trainworks.worker.mesh import Mesh, join_group, open_store
from trainworks.worker.models.weights import fingerprint_of_weights
from trainworks.worker.optimizer import StepOptimizer
from trainworks.worker.parallel.build import Parallel, Setup
from trainworks.worker.profiling import StepProfiler
from trainworks.worker.stopping import StopRequest
from trainworks.worker.tasks.causal_lm import Task, generate
from trainworks.worker.tasks.open_task import open_task
from trainworks.worker.telemetry import Telemetry
from trainworks.worker.timing import Timeline, compile_gain

_TIMEOUT = timedelta(minutes=10)
"""Least timeout of a collective; the node agent detects a hang long before."""


@dataclass(frozen=True, slots=True)
class _Rank:
    rank: int
    world_size: int
    node: int
    attempt: int
    """Number of this start of the ranks."""
    rollbacks: int
    """So far, over all attempts."""
    finish_at: int | None
    """Step after which callbacks have agreed to end the run, in an attempt that did not reach its end."""
    device: torch.device
    run_dir: RunDir
    data: DataFolders
    resolved: ResolvedRun
    plan: Plan
    workload: Workload
    stop: StopRequest
    state: RankState


def train(
    run_folder: str,
    data_folder: str,
    node: int,
    agent_pid: int,
    board: str | None = None,
    evaluation_folders: Mapping[str, Path] | None = None,
) -> None:
    """Entry of every rank, started by the node agent in a process forked from one that has torch imported.

    Never returns normally on failure: the reason is written to the record, and the exit code tells the agent
    whether starting again can help.
    """
    run_dir = RunDir(Path(run_folder))
    rank = int(os.environ["RANK"])
    run_dir.note_rank_start(rank)
    _redirect_output(run_dir.rank_log(rank))
    state = RankState(Heartbeat((board, int(os.environ["LOCAL_RANK"])) if board else None))
    install_stall_reporter(state.heartbeat)
    die_with(agent_pid)
    state.heartbeat.mark(Phase.STARTING)
    try:
        data = DataFolders(Path(data_folder), evaluation_folders or {})
        joined = _join(run_dir, data, node, state)
        trainer = _build(joined)
        _run(trainer, joined)
        dist.barrier()
        trainer.checkpointer.memory.forget()
        state.parts, state.optimizer = (), None
        del trainer  # DDP before its process group: torch aborts at exit otherwise, now and then
        gc.collect()
        dist.destroy_process_group()
        sys.stdout.flush()
        sys.stderr.flush()
    except BaseException as error:
        # Ended at once: clean-up could wait for ranks that are gone.
        os._exit(record_failure(run_dir, node, error, state, rendezvous=_rendezvous()))


def _redirect_output(log: Path) -> None:
    """Append all output of this process, also from C, to its log."""
    handle = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os.dup2(handle, 1)
    os.dup2(handle, 2)
    os.close(handle)


def _join(run_dir: RunDir, data: DataFolders, node: int, state: RankState) -> _Rank:
    """Join the group of all ranks; from now on SIGTERM requests a clean stop."""
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    resolved = run_dir.read_resolved()
    resolved = resolved.on_nodes(world_size // resolved.processes.processes_per_node)
    plan, workload = resolved.plan, resolved.workload
    assert plan is not None and workload is not None
    if workload.deterministic:
        make_deterministic()
    state.device = device = take_device(resolved.processes, workload.precision, int(os.environ["LOCAL_RANK"]))
    stop = StopRequest(run_dir, watch_file=rank == 0)
    signal.signal(signal.SIGTERM, stop.note_signal)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    address, port = _master()
    state.heartbeat.mark(Phase.RENDEZVOUS)
    try:  # rank 0 serves the store; if the port that the agent chose is taken by now, the next attempt gets another one
        listener = listen(port, address).detach() if rank == 0 else None
    except PortInUseError as error:
        raise ConnectionError(error.message) from None
    store = open_store(address, port, serves=rank == 0, listener=listener, timeout=_TIMEOUT)
    timeout = _timeout(resolved, plan)
    backend = resolved.processes.backend
    join_group(backend, address, store, rank=rank, world_size=world_size, timeout=timeout, device=device)
    events = read_events(run_dir.events_file)
    kinds = Counter(event["kind"] for event in events)
    seen: list[Any] = [1 + kinds["attempt"], kinds["rollback"], _finish_at(events)]
    dist.broadcast_object_list(seen, src=0)  # rank 0 counts in its record, as another node may see an older one
    attempt, rollbacks, finish_at = seen
    return _Rank(
        rank,
        world_size,
        node,
        attempt,
        rollbacks,
        finish_at,
        device,
        run_dir,
        data,
        resolved,
        plan,
        workload,
        stop,
        state,
    )


def _finish_at(events: list[Event]) -> int | None:
    """The step after which callbacks end the run; a resume with changes, such as a longer run, does without."""
    kinds = [event["kind"] for event in events]
    since = len(kinds) - kinds[::-1].index("changed") if "changed" in kinds else 0
    stops = of_kind(events[since:], CallbackStopEvent)
    return stops[-1]["step"] if stops else None


def _timeout(resolved: ResolvedRun, plan: Plan) -> timedelta:
    """Longest time of a collective."""
    silence_s = resolved.run_file.recover.hang_timeout
    if silence_s == "auto":
        silence_s = HangLimits().step_limit_s([plan.step_time.total_s])
    return max(_TIMEOUT, timedelta(seconds=3 * silence_s))


def _master() -> tuple[str, int]:
    """Address of rank 0's node, and the port of its store; without an agent all ranks are on this machine."""
    return os.environ.get("MASTER_ADDR", LOOPBACK), int(os.environ["MASTER_PORT"])


def _rendezvous() -> str:
    return "{}:{}".format(*_master())


def _build(rank: _Rank) -> Trainer:
    """Everything that this rank trains with, in the order in which one part needs another."""
    resolved, plan, workload, device, state = rank.resolved, rank.plan, rank.workload, rank.device, rank.state
    timeline = Timeline(device)
    state.heartbeat.mark(Phase.GROUPS)
    mesh = Mesh(plan.layout, device.type, plan.model, whole_matrices=workload.optimizer.name == "muon")
    mesh.check_links(device, _timeout(resolved, plan))
    state.heartbeat.mark(Phase.DATASET)
    opened = open_task(
        workload, mesh, data_folder=rank.data.train, evaluation_folders=rank.data.evaluation, shape=plan.model
    )
    parallel = _build_model(opened.task, mesh, timeline, rank)
    optimizer = state.optimizer = StepOptimizer(
        parallel.parts,
        mesh,
        workload.optimizer,
        num_steps=plan.num_steps,
        precision=workload.precision,
        device=device,
        guard=resolved.run_file.guard,
        build=opened.build_optimizer,
    )
    checkpointer = _build_checkpointer(opened.dataset, mesh.checkpoint_group, rank)
    telemetry = Telemetry(
        rank.run_dir,
        attempt=rank.attempt,
        tokens_per_step=plan.tokens_per_step,
        num_stages=plan.layout.pp,
        device=device,
        loss_scaling=optimizer.loss_scale.enabled,
    )
    profile = resolved.run_file.profile
    return Trainer(
        plan=plan,
        seed=workload.seed,
        global_batch=workload.global_batch,
        device=device,
        task=opened.task,
        parallel=parallel,
        optimizer=optimizer,
        read_from=_reading(opened.dataset, mesh, rank),
        timeline=timeline,
        telemetry=telemetry,
        checkpointer=checkpointer,
        interval=measured_interval(resolved, plan, rank.run_dir, checkpointer) if rank.rank == 0 else None,
        fault_policy=FaultPolicy(resolved.run_file.guard, rank.run_dir, attempt=rank.attempt, rollbacks=rank.rollbacks),
        profiler=StepProfiler(rank.run_dir, device=device, num_steps=plan.num_steps, from_run_file=profile),
        stop=rank.stop,
        heartbeat=state.heartbeat,
        callbacks=load_callbacks(workload.callbacks, Path(resolved.working_folder)),
        evaluator=build_evaluator(
            workload,
            opened,
            parallel,
            device,
            timeline,
            state.heartbeat,
            data_folder=rank.data.train,
            modules_folder=Path(resolved.working_folder),
        ),
        finish_at=rank.finish_at,
    )


def _build_model(task: Task, mesh: Mesh, timeline: Timeline, rank: _Rank) -> Parallel:
    """The model as this rank trains it, after a warm-up step."""
    workload, device, heartbeat = rank.workload, rank.device, rank.state.heartbeat
    reads_files = workload.model.hf is not None or workload.model.module is not None
    heartbeat.mark(Phase.LOADING if reads_files else Phase.BUILD)
    setup = Setup(
        mesh=mesh, device=device, precision=workload.precision, compiled=workload.compile is True, timeline=timeline
    )
    setup = replace(setup, progress=functools.partial(heartbeat.mark, Phase.BUILD))
    parallel = task.build(setup)
    rank.state.parts = parallel.parts
    heartbeat.mark(Phase.COMPILE if workload.compile is True else Phase.FIRST_STEP)
    begin = time.perf_counter()
    warm_up(parallel, task, timeline, device)
    if workload.compile is True:
        first_s = time.perf_counter() - begin
        compiled = compile_gain(lambda: warm_up(parallel, task, timeline, device), device, first_s=first_s)
        if rank.rank == 0:
            rank.run_dir.note(compiled)
    heartbeat.mark(Phase.LOADING)
    return parallel


def _build_checkpointer(dataset: Dataset, group: dist.ProcessGroup, rank: _Rank) -> Checkpointer:
    """Checkpoints on disk and in memory, with what their manifests say of this run."""
    settings, model, base = rank.resolved.run_file.checkpoint, rank.workload.model, None
    memory = MemoryTier(
        rank.run_dir,
        settings.memory_every,
        group,
        place=place_of_node(rank.node, read_events(rank.run_dir.events_file)),
        ranks_per_node=rank.resolved.processes.processes_per_node,
    )
    if rank.workload.is_fine_tuned and model.hf is not None:  # checkpoints do not hold the frozen weights of `model.hf`
        from trainworks.worker.models.transformer import checkpoint_folder  # noqa: PLC0415  # such a run has it

        base = fingerprint_of_weights(checkpoint_folder(model.hf))
    return Checkpointer(
        rank.run_dir,
        group,
        keep=settings.keep,
        tier=memory,
        template={
            "attempt": rank.attempt,
            "layout": rank.plan.layout,
            "data_fingerprint": dataset.fingerprint,
            "tokenization": fingerprint_of(rank.data.train),
            "base_fingerprint": base,
        },
    )


def _reading(dataset: Dataset, mesh: Mesh, rank: _Rank) -> Callable[[int], BatchReader]:
    """Function that starts reading at a batch; rollbacks skip batches, so a run may read more of them than steps."""
    last, size = rank.plan.num_steps, rank.workload.global_batch
    start = functools.partial(
        BatchReader.of_rank, dataset, mesh, rank.device, seed=rank.workload.seed, global_batch=size
    )
    return lambda batch: start(first_step=batch, last_step=batch + last)


def _run(trainer: Trainer, rank: _Rank) -> None:
    """Resume, train, sample; rank 0 records the start and the end."""
    num_steps, heartbeat = rank.plan.num_steps, rank.state.heartbeat
    step = steps_done = _resume(trainer, rank)
    pids = [0] * rank.world_size
    dist.all_gather_object(pids, os.getpid())
    if rank.rank == 0:
        rank.run_dir.note(
            AttemptEvent(
                kind="attempt",
                attempt=rank.attempt,
                world_size=rank.world_size,
                resumed_from_step=steps_done,
                layout=rank.plan.layout.model_dump(mode="json"),
                pids=pids,
                rendezvous=_rendezvous(),
                allocator=os.environ.get("PYTORCH_ALLOC_CONF", os.environ.get("PYTORCH_CUDA_ALLOC_CONF", "")),
            )
        )
    if steps_done < num_steps:
        step = trainer.run(steps_done)
    heartbeat.mark(Phase.FINISHING, step)
    if trainer.is_finished(step) and (prompt := rank.workload.sample_prompt) is not None:
        window = rank.workload.data.sequence_length
        text = generate(trainer.parallel, rank.data.train, prompt, window=window, device=rank.device)
        if rank.rank == 0:
            rank.run_dir.note(SampleEvent(kind="sample", step=step, prompt=prompt, text=text))
    if rank.rank == 0:
        _note_end(trainer, rank, step)


def _note_end(trainer: Trainer, rank: _Rank, step: int) -> None:
    """Record how the training ended: finished, perhaps before its last planned step, or stopped."""
    finished = trainer.is_finished(step)
    end: FinishedEvent | StoppedEvent = (
        FinishedEvent(kind="finished", step=step) if finished else StoppedEvent(kind="stopped", step=step)
    )
    if end["kind"] == "finished" and step < rank.plan.num_steps:
        if trainer.has_stalled:
            end["early"] = True
        else:
            end["asked"] = True
    if trainer.callbacks:
        end["callbacks_s"] = trainer.callbacks.take_seconds()
    rank.run_dir.note(end)


def _resume(trainer: Trainer, rank: _Rank) -> int:
    """Load the newest loadable checkpoint, if any; returns its step."""
    rank.state.heartbeat.mark(Phase.LOADING)
    manifest = trainer.checkpointer.load_newest(trainer.parallel.parts, trainer.state)
    if manifest is None:
        return 0
    if trainer.evaluator is not None:
        trainer.evaluations = trainer.evaluator.evaluations_until(manifest.step, rank.run_dir)
    trainer.batches_left_out = manifest.samples_consumed // trainer.global_batch - manifest.step
    return manifest.step
