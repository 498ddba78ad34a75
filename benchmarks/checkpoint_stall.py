"""How long training stands still for a checkpoint: Trainworks against PyTorch's synchronous and asynchronous saves.

    torchrun --standalone --nproc-per-node 2 benchmarks/checkpoint_stall.py

One sharded decoder (FSDP2) of 0.5 GB of state is trained. In turns, a step is followed by `dcp.save`, by
`dcp.async_save` as it comes, by `dcp.async_save` with buffers that it keeps and a copy that runs beside the next
forward and backward (as Trainworks' does), by Trainworks' save, or by none. Printed are the time for which the loop
stood still, and what the save cost the loop in all: that, and how much longer the next steps took than as many without
a save.
"""

from __future__ import annotations

import argparse
import json
import shutil
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from contenders import provenance
from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions
from torch.distributed.checkpoint.state_dict_saver import AsyncSaveResponse

from trainworks.config.layout import Layout, resolve_layout
from trainworks.config.optimizer import Optimizer
from trainworks.config.recovery import Guard
from trainworks.record.run_dir import RunDir
from trainworks.record.runs_folder import create_run_dir
from trainworks.worker.checkpoint.checkpointer import Checkpointer
from trainworks.worker.checkpoint.state import whole_state
from trainworks.worker.mesh import Mesh
from trainworks.worker.models.decoder import DecoderConfig
from trainworks.worker.models.weights import draw_weights
from trainworks.worker.optimizer import StepOptimizer
from trainworks.worker.parallel.build import Setup, distribute_decoder
from trainworks.worker.timing import Timeline

MODEL = DecoderConfig(
    vocabulary=8192, hidden=512, layers=11, heads=8, kv_heads=8, head_dim=64, feed_forward=1536, max_positions=32,
    rope_frequencies=tuple(10000 ** (-i / 32) for i in range(32)),
)  # fmt: skip
FOLLOWING_STEPS = 4


class Loop:
    """A few steps of training, timed."""

    def __init__(self) -> None:
        device = torch.device("cpu")
        layout = resolve_layout(
            Layout(dp_shard=dist.get_world_size()), world_size=dist.get_world_size(), global_batch=2, micro_batch=1
        )
        mesh = Mesh(layout, "cpu")
        setup = Setup(mesh=mesh, device=device, precision="fp32", compiled=False, timeline=Timeline(device))
        self.parallel = distribute_decoder(
            MODEL, setup, positions=32, first_weights=lambda parts: draw_weights(parts, seed=1)
        )
        tokens = torch.randint(0, MODEL.vocabulary, (1, 1, 33))
        self.x, self.labels = tokens[..., :-1], tokens[..., 1:]
        self.parallel.gradients(self.x, self.labels, scale=1.0)
        self.optimizer = StepOptimizer(
            self.parallel.parts, mesh, Optimizer(), num_steps=1000, precision="fp32", device=device, guard=Guard()
        )

    def step(self, before_update: Callable[[], object] = lambda: None) -> None:
        """One optimizer step."""
        loss = self.parallel.gradients(self.x, self.labels, scale=1.0)
        before_update()
        self.optimizer.step(1, loss)

    def steps_s(self, before_update: Callable[[], object] = lambda: None) -> float:
        """Seconds of the steps after a save."""
        dist.barrier()
        started = time.perf_counter()
        for _ in range(FOLLOWING_STEPS):
            self.step(before_update)
        return time.perf_counter() - started


Way = Callable[["Loop", Checkpointer, dist.ProcessGroup, Path, int], tuple[float, float]]
"""One way to save: seconds that the loop stands still, and seconds of all that follows with it."""


def main() -> None:
    """Measure in turns, print medians."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every single result")
    options = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    folder = Path(_agreed(tempfile.mkdtemp(prefix="checkpoint-stall-")))
    loop = Loop()
    stalls, totals = measure(loop, folder, options.rounds)
    if dist.get_rank() == 0:
        report(loop, stalls, totals)
        if options.json:
            launched = provenance(f"torchrun --standalone --nproc-per-node {dist.get_world_size()}")
            content = {**launched, "ranks": dist.get_world_size(), "stall_s": stalls, "total_s": totals}
            options.json.write_text(json.dumps(content, indent=2) + "\n")
        shutil.rmtree(folder)
    dist.destroy_process_group()


def _agreed(text: str) -> str:
    """The first rank's text, on every rank."""
    texts = [text]
    dist.broadcast_object_list(texts)
    return texts[0]


def measure(loop: Loop, folder: Path, rounds: int) -> tuple[dict[str, list[float]], dict[str, list[float]]]:
    """Stalls and totals of every way, round by round."""
    group = dist.new_group(backend="gloo")
    (folder / "runs").mkdir(exist_ok=True)
    run = _agreed(create_run_dir(folder / "runs", "stall").run_id if dist.get_rank() == 0 else "")
    ours = Checkpointer(
        RunDir(folder / "runs" / run), group, keep=2,
        template={"attempt": 1, "layout": loop.parallel.mesh.layout, "data_fingerprint": ""},
    )  # fmt: skip
    stager = DefaultStager(StagingOptions(False, False, use_async_staging=True, use_non_blocking_copy=False))
    ways: dict[str, Way | None] = {
        "none": None,
        "dcp.save": sync,
        "dcp.async_save": asynchronous,
        "dcp.async_save, cached": partial(cached, stager),
        "trainworks": product,
    }
    stalls: dict[str, list[float]] = {name: [] for name in ways}
    totals: dict[str, list[float]] = {name: [] for name in ways}
    for number in range(rounds + 1):
        for name, way in ways.items():
            loop.step()
            dist.barrier()
            stall_s, total_s = (0.0, loop.steps_s()) if way is None else way(loop, ours, group, folder, number)
            if number:  # the first round allocates what the others keep
                stalls[name].append(stall_s)
                totals[name].append(total_s)
    stager.close()
    return stalls, totals


def sync(loop: Loop, ours: Checkpointer, group: dist.ProcessGroup, folder: Path, number: int) -> tuple[float, float]:
    """PyTorch's blocking save."""
    started = time.perf_counter()
    dcp.save(
        whole_state(loop.parallel.parts, loop.optimizer), checkpoint_id=folder / f"sync-{number}", process_group=group
    )
    stall_s = time.perf_counter() - started
    return stall_s, stall_s + loop.steps_s()


def asynchronous(
    loop: Loop, ours: Checkpointer, group: dist.ProcessGroup, folder: Path, number: int
) -> tuple[float, float]:
    """PyTorch's asynchronous save, by thread."""
    started = time.perf_counter()
    state = whole_state(loop.parallel.parts, loop.optimizer)
    done = dcp.async_save(state, checkpoint_id=folder / f"async-{number}", process_group=group)
    stall_s = time.perf_counter() - started
    following_s = loop.steps_s()
    done.result()  # type: ignore[union-attr]
    return stall_s, stall_s + following_s


def cached(
    stager: DefaultStager, loop: Loop, ours: Checkpointer, group: dist.ProcessGroup, folder: Path, number: int
) -> tuple[float, float]:
    """PyTorch's asynchronous save with a stager that keeps its buffers and copies in a thread.

    The update of the next step waits for the copy; that wait is a standstill too.
    """
    started = time.perf_counter()
    state = whole_state(loop.parallel.parts, loop.optimizer)
    saving = dcp.async_save(state, checkpoint_id=folder / f"cached-{number}", process_group=group, async_stager=stager)
    stall_s = time.perf_counter() - started
    assert isinstance(saving, AsyncSaveResponse)
    waited_s = 0.0

    def await_copy() -> None:
        nonlocal waited_s
        asked = time.perf_counter()
        saving.staging_completion.result()
        waited_s += time.perf_counter() - asked

    following_s = loop.steps_s(await_copy)
    saving.upload_completion.result()
    return stall_s + waited_s, stall_s + following_s


def product(loop: Loop, ours: Checkpointer, group: dist.ProcessGroup, folder: Path, number: int) -> tuple[float, float]:
    """Trainworks' save, as its loop uses it."""
    started = time.perf_counter()
    ours.save(number, loop.parallel.parts, loop.optimizer, samples_consumed=0)
    saved_s = time.perf_counter() - started
    ours.allow_completion()
    following_s = loop.steps_s(ours.await_copy)
    ours.wait()
    return ours._stall_s, saved_s + following_s


def report(loop: Loop, stalls: dict[str, list[float]], totals: dict[str, list[float]]) -> None:
    """Medians, and ratios over the blocking save."""
    state_bytes = 12 * sum(parameter.numel() for parameter in loop.parallel.parts[0].parameters())
    undisturbed, blocking = median(totals["none"]), median(stalls["dcp.save"])
    print(f"{state_bytes / 1e9:.2f} GB of state, {dist.get_world_size()} ranks")
    print(f"{FOLLOWING_STEPS} steps take {undisturbed:.2f} s")
    print(f"{'':<24}{'stands still':>14}{'of dcp.save':>13}{'costs in all':>14}")
    for name in list(stalls)[1:]:
        stall_s, cost_s = median(stalls[name]), median(totals[name]) - undisturbed
        print(f"{name:<24}{stall_s * 1e3:>11.0f} ms{stall_s / blocking:>13.3f}{cost_s * 1e3:>11.0f} ms")


if __name__ == "__main__":
    main()
