"""One rank of a training run: join the process group, build, resume, train, end."""

from __future__ import annotations

import gc
import os
import socket
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist

from trainworks.config.run_file import Workload
from trainworks.host.process import die_with
from trainworks.record.events import append_event, read_events
from trainworks.record.exit_code import ExitCode
from trainworks.record.fence import AttemptFence
from trainworks.record.resolved import Plan, ResolvedRun
from trainworks.record.run_dir import RunDir
from trainworks.recover.memory_checkpoints import place_of_node
from trainworks.worker.callbacks import load_callbacks
from trainworks.worker.checkpoint.checkpointer import Checkpointer
from trainworks.worker.checkpoint.interval import measured_interval
from trainworks.worker.checkpoint.memory import MemoryTier
from trainworks.worker.data.card import DataFolders
from trainworks.worker.data.reader import BatchReader, Dataset, Staging
from trainworks.worker.data.tokenization import fingerprint_of
from trainworks.worker.evaluation import build_evaluator
from trainworks.worker.guard import FaultPolicy
from trainworks.worker.health.heartbeat import Heartbeat, Phase
from trainworks.worker.health.out_of_memory import RankState, memory_at_failure
from trainworks.worker.health.rank_failure import explain, fingerprint
from trainworks.worker.health.stall_reporter import install_stall_reporter
from trainworks.worker.loop import Trainer, warm_up
from trainworks.worker.mesh import Mesh
from trainworks.worker.models.weights import fingerprint_of_weights
from trainworks.worker.optimizer import StepOptimizer
from trainworks.worker.parallel.build import Parallel, Setup
from trainworks.worker.process_group import JoinedRank, join, pids_by_rank, rendezvous
from trainworks.worker.profiling import StepProfiler
from trainworks.worker.sample import generate
from trainworks.worker.tasks.causal_lm import Task
from trainworks.worker.tasks.open_task import open_task
from trainworks.worker.telemetry import Telemetry
from trainworks.worker.timing import Timeline, compile_gain

_SAMPLE_TOKENS = 160


def train(
    run_folder: str,
    data_folder: str,
    node: int,
    agent_pid: int,
    board: str | None = None,
    evaluation_folder: str = "",
) -> None:
    """Entry of every rank, started by the node agent in a process forked from one that has torch imported.

    Never returns normally on failure: the reason is written to the record, and the exit code tells the agent
    whether starting again can help.
    """
    run_dir = RunDir(Path(run_folder))
    rank = int(os.environ["RANK"])
    run_dir.note_rank_start(rank)
    _redirect_output(run_dir.rank_log(rank))
    rank_state = RankState(Heartbeat((board, int(os.environ["LOCAL_RANK"])) if board else None))
    install_stall_reporter(rank_state.heartbeat)
    die_with(agent_pid)
    rank_state.heartbeat.mark(Phase.STARTING)
    try:
        data = DataFolders(Path(data_folder), Path(evaluation_folder) if evaluation_folder else None)
        _train(run_dir, data, node, rank_state)
    except BaseException as error:
        _leave(run_dir, node, error, rank_state)


def _train(run_dir: RunDir, data: DataFolders, node: int, rank_state: RankState) -> None:
    resolved = run_dir.read_resolved()
    resolved = resolved.on_nodes(int(os.environ["WORLD_SIZE"]) // resolved.processes.processes_per_node)
    assert resolved.plan is not None and resolved.run_file.workload is not None
    rank = join(resolved, run_dir, data, node, rank_state)
    attempt, rollbacks = _so_far(run_dir)
    fault_policy = FaultPolicy(resolved.run_file.guard, run_dir, attempt=attempt, rollbacks=rollbacks)
    trainer = _build(resolved, resolved.plan, resolved.run_file.workload, rank, attempt, fault_policy)
    _train_to_the_end(trainer, resolved.plan, resolved.run_file.workload, rank, attempt)
    dist.barrier()
    trainer.checkpointer.memory.forget()
    rank.state.parts, rank.state.optimizer = (), None
    del trainer  # DDP before its process group: torch aborts at exit otherwise, now and then
    gc.collect()
    dist.destroy_process_group()
    sys.stdout.flush()
    sys.stderr.flush()


def _train_to_the_end(trainer: Trainer, plan: Plan, workload: Workload, rank: JoinedRank, attempt: int) -> None:
    """Resume, train, sample; rank 0 records the start and the end."""
    events = rank.run_dir.events_file
    steps_done = _resume(trainer, rank)
    pids = pids_by_rank(rank)
    if rank.rank == 0:
        met = {"world_size": rank.world_size, "layout": plan.layout.describe(), "pids": pids}
        append_event(events, "attempt", attempt=attempt, resumed_from_step=steps_done, **met, rendezvous=rendezvous())
    step = steps_done
    if steps_done < plan.num_steps:
        step = trainer.run(steps_done)
    rank.state.heartbeat.mark(Phase.FINISHING, step)
    finished = step == plan.num_steps or trainer.has_stalled
    if finished and workload.sample_prompt is not None:
        _write_sample(trainer.parallel, workload, rank, step)
    if rank.rank == 0:
        about: dict[str, object] = {"early": True} if step < plan.num_steps and finished else {}
        if trainer.callbacks:
            about["callbacks_s"] = trainer.callbacks.take_seconds()
        append_event(events, "finished" if finished else "stopped", step=step, **about)


def _redirect_output(log: Path) -> None:
    """Append all output of this process, also from C, to its log."""
    handle = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os.dup2(handle, 1)
    os.dup2(handle, 2)
    os.close(handle)


def _so_far(run_dir: RunDir) -> tuple[int, int]:
    """Number of this attempt, and rollbacks so far, counted by rank 0 from the record."""
    kinds = Counter(event["kind"] for event in read_events(run_dir.events_file))
    seen = [1 + kinds["attempt"], kinds["rollback"]]
    dist.broadcast_object_list(seen, src=0)
    return seen[0], seen[1]


def _build(
    resolved: ResolvedRun, plan: Plan, workload: Workload, rank: JoinedRank, attempt: int, fault_policy: FaultPolicy
) -> Trainer:
    timeline = Timeline(rank.device)
    mesh = Mesh(plan.layout, rank.device.type, plan.model)
    opened = open_task(
        workload,
        mesh,
        data_folder=rank.data.train,
        evaluation_folder=rank.data.evaluation,
        shape=plan.model,
    )
    task, dataset = opened.task, opened.dataset
    parallel = _build_model(task, workload, mesh, timeline, rank)
    optimizer = StepOptimizer(
        parallel.parts,
        mesh,
        workload.optimizer,
        num_steps=plan.num_steps,
        precision=workload.precision,
        device=rank.device,
        guard=resolved.run_file.guard,
        build=opened.build_optimizer,
    )
    rank.state.optimizer = optimizer
    checkpointer = _checkpointer(resolved, plan, rank, attempt, dataset, mesh.checkpoint_group)
    return Trainer(
        plan=plan,
        seed=workload.seed,
        global_batch=workload.global_batch,
        device=rank.device,
        task=task,
        parallel=parallel,
        optimizer=optimizer,
        read_from=_reading(dataset, workload, plan, mesh, rank.device),
        timeline=timeline,
        telemetry=_telemetry(plan, rank, attempt, loss_scaling=optimizer.loss_scale.enabled),
        checkpointer=checkpointer,
        interval=measured_interval(resolved, plan, rank.run_dir, checkpointer) if rank.rank == 0 else None,
        fault_policy=fault_policy,
        profiler=StepProfiler(
            rank.run_dir, device=rank.device, num_steps=plan.num_steps, from_run_file=resolved.run_file.profile
        ),
        stop=rank.stop,
        heartbeat=rank.state.heartbeat,
        callbacks=load_callbacks(workload.callbacks, Path(resolved.working_folder)),
        evaluator=build_evaluator(workload, opened, parallel, rank.device, timeline, rank.state.heartbeat),
    )


def _telemetry(plan: Plan, rank: JoinedRank, attempt: int, *, loss_scaling: bool) -> Telemetry:
    return Telemetry(
        rank.run_dir,
        attempt=attempt,
        tokens_per_step=plan.tokens_per_step,
        num_stages=plan.layout.pp,
        device=rank.device,
        loss_scaling=loss_scaling,
    )


def _checkpointer(
    resolved: ResolvedRun, plan: Plan, rank: JoinedRank, attempt: int, dataset: Dataset, group: dist.ProcessGroup
) -> Checkpointer:
    settings = resolved.run_file.checkpoint
    memory = MemoryTier(
        rank.run_dir,
        settings.memory_every,
        group,
        place=place_of_node(rank.node, read_events(rank.run_dir.events_file)),
        ranks_per_node=resolved.processes.processes_per_node,
    )
    return Checkpointer(
        rank.run_dir,
        group,
        keep=settings.keep,
        memory=memory,
        template={
            "attempt": attempt,
            "layout": plan.layout,
            "data_fingerprint": dataset.fingerprint,
            "tokenization": fingerprint_of(rank.data.train),
            "base_fingerprint": _base_fingerprint(resolved.run_file.workload),
        },
    )


def _base_fingerprint(workload: Workload | None) -> str | None:
    """Fingerprint of the frozen weights of `model.hf`, which checkpoints do not hold; None where all weights train."""
    if workload is None or not workload.is_fine_tuned or workload.model.hf is None:
        return None
    from trainworks.worker.models.transformer import checkpoint_folder  # noqa: PLC0415  # such a run has it

    return fingerprint_of_weights(checkpoint_folder(workload.model.hf))


def _build_model(task: Task, workload: Workload, mesh: Mesh, timeline: Timeline, rank: JoinedRank) -> Parallel:
    """The model as this rank trains it, after a warm-up step."""
    setup = Setup(
        mesh=mesh,
        device=rank.device,
        precision=workload.precision,
        compiled=workload.compile,
        timeline=timeline,
    )
    parallel = task.build(setup)
    rank.state.parts = parallel.parts
    rank.state.heartbeat.mark(Phase.COMPUTE)
    begin = time.perf_counter()
    warm_up(parallel, task, timeline, rank.device)
    if workload.compile:
        first_s = time.perf_counter() - begin
        gain = compile_gain(lambda: warm_up(parallel, task, timeline, rank.device), rank.device, first_s=first_s)
        if rank.rank == 0:
            append_event(rank.run_dir.events_file, "compiled", **gain)
    return parallel


def _reading(
    dataset: Dataset, workload: Workload, plan: Plan, mesh: Mesh, device: torch.device
) -> Callable[[int], BatchReader]:
    """Function that starts reading at a batch; rollbacks skip batches, so a run may read more of them than steps."""

    def read_from(batch: int) -> BatchReader:
        return BatchReader(
            dataset,
            seed=workload.seed,
            global_batch=workload.global_batch,
            micro_batch=plan.layout.micro_batch,
            dp_rank=mesh.dp_rank,
            dp=plan.layout.dp,
            first_step=batch,
            last_step=batch + plan.num_steps,
            staging=Staging(device),
        )

    return read_from


def _resume(trainer: Trainer, rank: JoinedRank) -> int:
    """Load the newest loadable checkpoint, if any; returns its step."""
    rank.state.heartbeat.mark(Phase.LOADING)
    manifest = trainer.checkpointer.load_newest(trainer.parallel.parts, trainer.optimizer)
    if manifest is None:
        return 0
    if trainer.evaluator is not None:
        trainer.evaluations = trainer.evaluator.evaluations_until(manifest.step, rank.run_dir)
    trainer.batches_left_out = manifest.samples_consumed // trainer.global_batch - manifest.step
    return manifest.step


def _write_sample(parallel: Parallel, workload: Workload, rank: JoinedRank, step: int) -> None:
    prompt = workload.sample_prompt or ""
    text = generate(
        parallel,
        rank.data.train,
        prompt,
        num_tokens=_SAMPLE_TOKENS,
        window=workload.data.sequence_length,
        device=rank.device,
    )
    if rank.rank == 0:
        append_event(rank.run_dir.events_file, "sample", step=step, prompt=prompt, text=text)


def _leave(run_dir: RunDir, node: int, error: BaseException, rank_state: RankState) -> None:
    """Record why this rank fails, and end it at once: clean-up could wait for ranks that are gone."""
    failure = explain(error)
    try:
        if AttemptFence(run_dir.events_file, rendezvous=rendezvous()).is_superseded:
            traceback.print_exception(error)
            os._exit(ExitCode.SUPERSEDED)
        last = rank_state.heartbeat.last
        memory = memory_at_failure(error, rank_state).model_dump() if failure.cause == "oom" else None
        if failure.cause == "disk_full":
            run_dir.release_reserve()
        append_event(
            run_dir.events_file,
            "failure",
            rank=int(os.environ["RANK"]),
            node=node,
            host=socket.gethostname(),
            pid=os.getpid(),
            cause=failure.cause,
            exit_code=int(failure.exit_code),
            signal=None,
            message=f"{failure.place}: {failure.message}" if failure.place else failure.message,
            hint=failure.hint,
            traceback="".join(traceback.format_exception(error)),
            step=last.step,
            phase=last.phase.text,
            memory=memory,
            fingerprint=fingerprint(error),
            rendezvous=rendezvous(),
        )
        traceback.print_exception(error)
        sys.stderr.flush()
    except Exception:
        failure.exit_code = ExitCode.ENVIRONMENT  # not even the record can be written
    os._exit(failure.exit_code)
