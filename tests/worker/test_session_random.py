"""A loop with a session draws after a resume what it would have drawn without a stop."""

from __future__ import annotations

import os
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

from tests.threads import remaining_threads
from tests.worker.ranks import on_ranks
from trainworks.record.run_dir import RunDir
from trainworks.record.runs_folder import create_run_dir
from trainworks.worker import session


def draws(folder: str, seed: int, stop_at: int | None) -> list[float]:
    """What each step of a loop draws, by its number; the loop seeds once, before its session."""
    os.environ["TRAINWORKS_RUN_DIR"] = folder
    torch.manual_seed(seed)
    model = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    training = session.start(model, optimizer, num_steps=6, checkpoint_every=6, log_every=1)
    drawn = []
    for step in training:
        drawn.append(torch.rand(1).item())
        training.log(loss=0.0)
        if step == stop_at:
            RunDir(Path(folder)).stop_file.touch()
    return drawn


def test_the_generators_of_a_loop_go_on_where_they_were(tmp_path: Path) -> None:
    whole, stopped = (create_run_dir(tmp_path, name) for name in ("whole", "stopped"))
    (expected,) = on_ranks(1, draws, str(whole.path), 4, None)
    (before,) = on_ranks(1, draws, str(stopped.path), 4, 3)
    stopped.stop_file.unlink()
    (after,) = on_ranks(1, draws, str(stopped.path), 99, None)
    assert (len(before), before + after) == (3, expected)


def test_other_ranks_draw_anew_and_each_for_itself(tmp_path: Path) -> None:
    run_dir = create_run_dir(tmp_path, "grown")
    on_ranks(1, draws, str(run_dir.path), 4, 3)
    run_dir.stop_file.unlink()
    first, second = on_ranks(2, draws, str(run_dir.path), 4, None)
    assert len(first) == len(second) == 3
    assert not set(first) & set(second)


def gloo_threads(folder: str) -> tuple[int, int]:
    """Threads of process groups before a loop and after it."""
    started = dist.ProcessGroupGloo._Options()._threads + 1  # for the work, and for the network
    before = remaining_threads("gloo", started)  # each names itself, perhaps later than this thread goes on
    draws(folder, 4, None)
    return before, remaining_threads("gloo", before)


def test_a_loop_leaves_no_thread_that_ends_with_python(tmp_path: Path) -> None:
    """A thread that releases a tensor while Python ends aborts the process, about once in forty loops under load."""
    for before, after in on_ranks(2, gloo_threads, str(create_run_dir(tmp_path, "whole").path)):
        assert before == after > 0
