"""One rank of a training run: meet the others, build, resume, train, leave."""

from __future__ import annotations

import functools
import gc
import os
import signal
import socket
import sys
import traceback
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

from trainworks.errors import PortInUseError
from trainworks.host.network import LOOPBACK, listen
from trainworks.host.process import die_with
from trainworks.record.events import append_event, read_events
from trainworks.record.exit_code import ExitCode
from trainworks.record.resolved import Plan, ResolvedRun
from trainworks.record.run_dir import RunDir
from trainworks.spec.run_file import Workload
from trainworks.worker.checkpoint import Checkpointer
from trainworks.worker.data import BatchReader, TokenDataset
from trainworks.worker.failure import explain
from trainworks.worker.loop import StopRequest, Trainer
from trainworks.worker.model import build_model
from trainworks.worker.optimizer import StepOptimizer
from trainworks.worker.parallel import Parallel, parallelize
from trainworks.worker.prepare import read_card
from trainworks.worker.sample import generate, unwrapped
from trainworks.worker.telemetry import Telemetry
from trainworks.worker.timing import Timeline

__all__ = ["train"]

_TIMEOUT = timedelta(minutes=10)
_SAMPLE_TOKENS = 160


@dataclass(frozen=True, slots=True)
class _Rank:
    """What this process is in the job."""

    rank: int
    world_size: int
    node: int
    device: torch.device
    run_dir: RunDir
    data_folder: Path
    stop: StopRequest


def train(run_folder: str, data_folder: str, node: int, agent_pid: int) -> None:
    """Entry of every rank, started by the node agent in a process forked from one that has torch imported.

    Never returns normally on failure: the reason is written to the record, and the exit code tells the agent
    whether starting again can help.
    """
    die_with(agent_pid)
    run_dir = RunDir(Path(run_folder))
    rank = int(os.environ["RANK"])
    _redirect_output(run_dir.rank_log(rank))
    try:
        _train(run_dir, Path(data_folder), node)
    except BaseException as error:
        _leave(run_dir, node, error)


def _train(run_dir: RunDir, data_folder: Path, node: int) -> None:
    resolved = run_dir.read_resolved()
    assert resolved.plan is not None and resolved.run_file.workload is not None
    rank = _join(resolved, run_dir, data_folder, node)
    attempt = _next_attempt(run_dir)
    trainer = _build(resolved, resolved.plan, resolved.run_file.workload, rank, attempt)
    _train_to_the_end(trainer, resolved.plan, resolved.run_file.workload, rank, attempt)
    dist.barrier()
    del trainer  # DDP before its process group: torch aborts at exit otherwise, now and then
    gc.unfreeze()
    gc.collect()
    dist.destroy_process_group()
    sys.stdout.flush()
    sys.stderr.flush()


def _train_to_the_end(trainer: Trainer, plan: Plan, workload: Workload, rank: _Rank, attempt: int) -> None:
    """Resume, train, sample; rank 0 writes down what begins and what has ended."""
    events = rank.run_dir.events_file
    steps_done = _resume(trainer, rank)
    pids = _pids_by_rank(rank)
    if rank.rank == 0:
        met = {"world_size": rank.world_size, "pids": pids}
        append_event(events, "attempt", attempt=attempt, resumed_from_step=steps_done, **met)
    step = steps_done
    if steps_done < plan.num_steps:
        trainer.warm_up()
        step = trainer.run(steps_done)
    finished = step == plan.num_steps
    if finished and workload.sample_prompt is not None:
        _write_sample(trainer.parallel, workload, rank, step)
    if rank.rank == 0:
        append_event(events, "finished" if finished else "stopped", step=step)


def _redirect_output(log: Path) -> None:
    """Everything this process prints, from C too, is appended to its own log."""
    handle = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os.dup2(handle, 1)
    os.dup2(handle, 2)
    os.close(handle)


def _join(resolved: ResolvedRun, run_dir: RunDir, data_folder: Path, node: int) -> _Rank:
    """Meet the other ranks; SIGTERM from here on asks for a clean stop."""
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    torch.set_num_threads(resolved.processes.threads_per_process)
    device = torch.device("cpu")
    if resolved.processes.device == "cuda":
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(device)
    stop = StopRequest(run_dir, watch_file=rank == 0)
    signal.signal(signal.SIGTERM, functools.partial(_note_signal, stop))
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    dist.init_process_group(
        resolved.processes.backend, store=_store(rank), rank=rank, world_size=world_size, timeout=_TIMEOUT
    )
    return _Rank(rank, world_size, node, device, run_dir, data_folder, stop)


def _note_signal(stop: StopRequest, number: int, frame: object) -> None:
    stop.signalled = True


def _store(rank: int) -> dist.Store:
    """The store of this group of workers; rank 0 serves it, on the loopback address."""
    port = int(os.environ["MASTER_PORT"])
    listener = _listener(port) if rank == 0 else None
    return dist.TCPStore(
        LOOPBACK,
        port,
        is_master=rank == 0,
        wait_for_workers=False,
        master_listen_fd=listener,
        timeout=_TIMEOUT,
    )


def _listener(port: int) -> int:
    """The port that the agent found free a moment ago; if somebody took it, the next attempt gets another."""
    try:
        return listen(port).detach()
    except PortInUseError as error:
        raise ConnectionError(error.message) from None


def _next_attempt(run_dir: RunDir) -> int:
    """The number of this attempt, counted by rank 0 from the record."""
    seen = [1 + sum(event["kind"] == "attempt" for event in read_events(run_dir.events_file))]
    dist.broadcast_object_list(seen, src=0)
    return seen[0]


def _pids_by_rank(rank: _Rank) -> list[int]:
    pids = [0] * rank.world_size
    dist.all_gather_object(pids, os.getpid())
    return pids


def _build(resolved: ResolvedRun, plan: Plan, workload: Workload, rank: _Rank, attempt: int) -> Trainer:
    timeline = Timeline(rank.device)
    card = read_card(rank.data_folder)
    dataset = TokenDataset(rank.data_folder, card, workload.data.sequence_length)
    model = build_model(workload.model, plan.model, seed=workload.seed)
    if workload.compile:
        for block in model.blocks:
            block.compile()
    parallel = parallelize(model, plan.layout, device=rank.device, precision=workload.precision, timeline=timeline)
    optimizer = StepOptimizer(
        parallel.module,
        workload.optimizer,
        num_steps=plan.num_steps,
        precision=workload.precision,
        device=rank.device,
    )
    checkpointer = Checkpointer(
        rank.run_dir,
        dist.new_group(backend="gloo"),
        keep=resolved.run_file.checkpoint.keep,
        template={"attempt": attempt, "layout": plan.layout, "data_fingerprint": card.fingerprint},
    )
    telemetry = Telemetry(rank.run_dir, attempt=attempt, tokens_per_step=plan.tokens_per_step, device=rank.device)
    reading = functools.partial(
        BatchReader,
        dataset,
        seed=workload.seed,
        global_batch=workload.global_batch,
        micro_batch=plan.layout.micro_batch,
        dp_rank=rank.rank,
        dp=plan.layout.dp,
        last_step=plan.num_steps,
    )
    return Trainer(
        plan=plan,
        global_batch=workload.global_batch,
        device=rank.device,
        parallel=parallel,
        optimizer=optimizer,
        read_from=lambda step: reading(first_step=step),
        timeline=timeline,
        telemetry=telemetry,
        checkpointer=checkpointer,
        stop=rank.stop,
    )


def _resume(trainer: Trainer, rank: _Rank) -> int:
    """Load the newest complete checkpoint, if there is one; returns the steps that it holds.

    Dropout needs another random stream on every rank, the weights the same one: ranks part ways here.
    """
    torch.manual_seed(torch.initial_seed() + 1 + rank.rank)
    found = trainer.checkpointer.newest()
    if found is None:
        return 0
    manifest, folder = found
    trainer.checkpointer.load(manifest, folder, trainer.parallel.module, trainer.optimizer)
    return manifest.step


def _write_sample(parallel: Parallel, workload: Workload, rank: _Rank, step: int) -> None:
    prompt = workload.sample_prompt or ""
    text = generate(
        unwrapped(parallel.module),
        rank.data_folder,
        prompt,
        num_tokens=_SAMPLE_TOKENS,
        window=workload.data.sequence_length,
        device=rank.device,
    )
    if rank.rank == 0:
        append_event(rank.run_dir.events_file, "sample", step=step, prompt=prompt, text=text)


def _leave(run_dir: RunDir, node: int, error: BaseException) -> None:
    """Write down why this rank ends, and end it at once: no clean-up may wait for ranks that are gone."""
    failure = explain(error)
    try:
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
            message=failure.message,
            hint=failure.hint,
            traceback="".join(traceback.format_exception(error)),
        )
        traceback.print_exception(error)
        sys.stderr.flush()
    except Exception:
        failure.exit_code = ExitCode.ENVIRONMENT  # not even the record can be written
    os._exit(failure.exit_code)
