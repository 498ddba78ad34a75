"""Try a model for a few steps: `python -m trainworks.worker.trial REQUEST_JSON PARENT_PID`.

Prints one Trial as JSON, or `{"error": .., "hint": .., "place": ..}`. The ranks are those of the run: same layout, same
threads, same data; nothing is written.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import socket
import statistics
import sys
import time
import traceback
from collections.abc import Iterable
from multiprocessing.connection import Connection, wait
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from trainworks.config.recovery import Guard
from trainworks.errors import TrainworksError
from trainworks.host import memory
from trainworks.host.network import LOOPBACK, listen
from trainworks.host.process import die_with, die_with_parent
from trainworks.record.step_time import StepTimeGroups
from trainworks.record.trial import Trial, TrialRequest
from trainworks.worker.data.reader import BatchReader, move_to_device
from trainworks.worker.determinism import take_device
from trainworks.worker.fork_server import import_all, rank_modules
from trainworks.worker.health.rank_failure import explain
from trainworks.worker.loop import warm_up
from trainworks.worker.loss import local_part, loss_weights
from trainworks.worker.mesh import Mesh, join_group, open_store
from trainworks.worker.models.adapters import trained_state
from trainworks.worker.optimizer import StepOptimizer
from trainworks.worker.parallel.build import Parallel, Setup, tied_embedding
from trainworks.worker.tasks.open_task import OpenedTask, open_task
from trainworks.worker.telemetry import peak_memory_bytes
from trainworks.worker.timing import StepMarks, Timeline

_SECONDS = 1.0
_MOST_STEPS, _FEWEST_STEPS = 20, 3
_FIRST = 1
"""Steps that are not counted: caches are cold, and the optimizer makes its state."""


def try_out(request: TrialRequest) -> dict[str, object]:
    """Measurements of rank 0, or the error; no process remains."""
    import_all(rank_modules(request.workload, pp=request.layout.pp))  # resident in a rank, so part of the baseline
    context = multiprocessing.get_context("fork")
    listener = listen()
    pipes = [context.Pipe(duplex=False) for _ in range(request.processes.world_size)]
    ranks = [
        context.Process(target=_rank, args=(rank, request, listener, pipe, os.getpid()))
        for rank, (_, pipe) in enumerate(pipes)
    ]
    for process, (_, writing) in zip(ranks, pipes, strict=True):
        process.start()
        writing.close()
    try:
        return _first_word([reading for reading, _ in pipes])
    finally:
        for process in ranks:
            process.kill()
            process.join()


def _first_word(pipes: list[Connection]) -> dict[str, object]:
    """The first error of any rank, else the result of rank 0."""
    waiting = list(pipes)
    said: dict[str, object] = {}
    while waiting:
        for pipe in wait(waiting):
            assert isinstance(pipe, Connection)
            waiting.remove(pipe)
            try:
                word: dict[str, object] = pipe.recv()
            except EOFError:
                word = {
                    "error": "a rank was killed, most likely because the memory is full",
                    "hint": None,
                    "cause": "oom",
                }
            if "error" in word:
                return word
            said = word if pipe is pipes[0] else said
    return said


def _rank(rank: int, request: TrialRequest, listener: socket.socket, pipe: Connection, parent: int) -> None:
    die_with(parent)
    os.dup2(2, 1)  # output of a user module goes to stderr
    try:
        trial = _measure(request, _join(rank, request, listener))
        dist.barrier()
        pipe.send(trial.model_dump(mode="json"))
    except BaseException as error:
        traceback.print_exception(error)
        failure = explain(error)
        if failure.cause != "peer_lost":  # the rank that caused it reports why
            pipe.send({"error": failure.message, "hint": failure.hint, "place": failure.place, "cause": failure.cause})
    signal.pause()  # until all have spoken: a rank that leaves takes its store along


def _join(rank: int, request: TrialRequest, listener: socket.socket) -> torch.device:
    processes, port = request.processes, listener.getsockname()[1]
    store = open_store(LOOPBACK, port, serves=rank == 0, listener=listener.detach() if rank == 0 else None)
    device = take_device(processes, request.workload.precision, rank)
    join_group(processes.backend, LOOPBACK, store, rank=rank, world_size=processes.world_size, device=device)
    return device


def _measure(request: TrialRequest, device: torch.device) -> Trial:
    started = time.perf_counter()
    workload, layout = request.workload, request.layout
    baseline = memory.resident_bytes() if device.type == "cpu" else torch.cuda.memory_allocated()
    mesh = Mesh(layout, device.type, request.shape, whole_matrices=workload.optimizer.name == "muon")
    folder = Path(request.data_folder) if request.data_folder else None
    opened = open_task(workload, mesh, data_folder=folder, shape=request.shape)
    timeline = Timeline(device)
    setup = Setup(
        mesh=mesh, device=device, precision=workload.precision, compiled=workload.compile is True, timeline=timeline
    )
    parallel = opened.task.build(setup)
    is_whole = layout.tp * layout.pp == 1
    countable = is_whole and request.shape is None and workload.compile is not True and layout.recompute == "none"
    flops = _warm_up(parallel, opened, timeline, device, counted=countable)
    optimizer = StepOptimizer(
        parallel.parts,
        mesh,
        workload.optimizer,
        num_steps=_MOST_STEPS,
        precision=workload.precision,
        device=device,
        guard=Guard(),
        build=opened.build_optimizer,
    )
    steps = _steps(request, opened, parallel, optimizer, timeline, device)
    trained = [each.local for each in optimizer.parameters]
    of_rank = _bytes([value for state in optimizer.adamw.state.values() for value in state.values()])
    held = _bytes(tensor for part in parallel.parts for tensor in trained_state(part).values())
    copy = tied_embedding(parallel.parts) if mesh.pp_rank > 0 else None  # counted on the first stage
    parameters = sum(each.numel() for part in parallel.parts for each in part.parameters() if each is not copy)
    of_stage = [parameters, held + of_rank * layout.dp_shard * layout.tp]
    whole = torch.tensor(of_stage, device=device) * layout.pp
    dist.all_reduce(whole)
    whole //= layout.world_size
    peak = torch.tensor(max(baseline, peak_memory_bytes(device)), device=device)
    dist.all_reduce(peak, dist.ReduceOp.MAX)
    return Trial(
        num_parameters=int(whole[0]),
        num_samples=len(opened.dataset),
        held_out_samples=tuple(len(each) for each in opened.held_out.values()) or None,
        flops_per_sample=flops / layout.micro_batch,
        step_time=steps,
        baseline_bytes=baseline,
        weights_bytes=_bytes(local_part(each) for part in parallel.parts for each in part.parameters()),
        gradients_bytes=_bytes(trained),
        optimizer_bytes=of_rank,
        peak_bytes=int(peak),
        checkpoint_bytes=int(whole[1]),
        own_optimizer=opened.build_optimizer is not None,
        seconds=time.perf_counter() - started,
    )


def _warm_up(parallel: Parallel, opened: OpenedTask, timeline: Timeline, device: torch.device, *, counted: bool) -> int:
    if not counted:
        warm_up(parallel, opened.task, timeline, device)
        return 0
    with FlopCounterMode(display=False) as counter:
        warm_up(parallel, opened.task, timeline, device)
    return int(counter.get_total_flops())


def _steps(
    request: TrialRequest,
    opened: OpenedTask,
    parallel: Parallel,
    optimizer: StepOptimizer,
    timeline: Timeline,
    device: torch.device,
) -> StepTimeGroups:
    """Medians over as many steps as fit into a second; all ranks make the same number."""
    seed, batch = request.workload.seed, request.workload.global_batch
    last = _FIRST + _MOST_STEPS
    reader = BatchReader.of_rank(opened.dataset, parallel.mesh, device, seed=seed, global_batch=batch, last_step=last)
    durations: list[list[float]] = []
    num_steps = _FIRST + _FEWEST_STEPS
    while len(durations) < num_steps:
        marks = StepMarks(timeline.mark())
        arrays = move_to_device(reader.next_batch(), device)
        marks.data = timeline.mark()
        scale = optimizer.loss_scale.per_micro_batch(request.layout.grad_accum_steps)
        weights = loss_weights(opened.task.num_items(arrays), timeline)
        loss = parallel.gradients(*opened.task.split(arrays), scale=scale, weights=weights)
        marks.waits = timeline.take_waits()
        marks.gradients = timeline.mark()
        optimizer.step(len(durations), loss)
        marks.optimizer = marks.end = timeline.mark()
        if device.type == "cuda":
            torch.cuda.synchronize()
        durations.append(marks.durations())
        if len(durations) == _FIRST + 1:
            wanted = min(_MOST_STEPS, max(_FEWEST_STEPS, round(_SECONDS / durations[-1][0])))
            agreed = torch.tensor(wanted, device=device)
            dist.broadcast(agreed, src=0)
            num_steps = _FIRST + int(agreed.item())
    reader.close()
    step = [statistics.median(column) for column in zip(*durations[_FIRST:], strict=True)]
    return StepTimeGroups(data_s=step[1], compute_s=step[2], communication_s=step[3], optimizer_s=step[4])


def _bytes(tensors: Iterable[object]) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors if isinstance(tensor, Tensor))


def main(request: str, parent: str) -> int:
    """Print the result."""
    die_with_parent(signal.SIGKILL, int(parent))
    try:
        word = try_out(TrialRequest.model_validate_json(request))
    except TrainworksError as error:
        word = {"error": error.message, "hint": error.hint, "place": error.place}
    print(json.dumps(word), flush=True)  # noqa: T201
    return 0


if __name__ == "__main__":
    code = main(*sys.argv[1:])
    os._exit(code)  # torch's store threads abort a process that ends in good order, now and then
