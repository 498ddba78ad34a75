"""Metrics that a program of your own writes to the record of its run."""

from __future__ import annotations

import os
import sys
import time
from functools import cache
from pathlib import Path
from typing import SupportsFloat

from trainworks.record.events.training import MetricsSourceEvent
from trainworks.record.metrics import FIGURE, TOKENS_PER_STEP, LoggedSteps, append_metrics
from trainworks.record.run_dir import RunDir

_RANKS = ("RANK", "OMPI_COMM_WORLD_RANK", "JAX_PROCESS_ID", "SLURM_PROCID")


def log(
    *,
    step: int,
    loss: SupportsFloat | None = None,
    lr: SupportsFloat | None = None,
    grad_norm: SupportsFloat | None = None,
    tokens: int | None = None,
    eval_loss: SupportsFloat | None = None,
    eval_accuracy: SupportsFloat | None = None,
    **figures: SupportsFloat | None,
) -> None:
    """Record metrics of one step of a command; outside of a run, and on other ranks than the first, do nothing.

    The row is on its way to the disk when the call returns, whole or not at all, so a killed program loses none. A
    value that is not a number is left out, and a line on stderr says so: no value ends a training.

    Args:
        step: optimizer step, which grows; a step that was recorded before is left out.
        loss: of training; a tensor, too, which is waited for.
        lr: learning rate.
        grad_norm: before clipping.
        tokens: tokens or samples per step, of all ranks together; with `trains` in the run file by default its tokens.
        eval_loss: on held-out data, after this step.
        eval_accuracy: 0-1, beside `eval_loss` in the same call, or alone.
        figures: any other numbers of the step, by name.

    >>> log(step=10, loss=2.31, reward=0.5)
    """
    rank = next((os.environ[name] for name in _RANKS if name in os.environ), "0")
    if "TRAINWORKS_COMMAND" not in os.environ or rank != "0":
        return
    values = {"step": step, "loss": loss, "lr": lr, "grad_norm": grad_norm, "tokens": tokens}
    values |= {"eval_loss": eval_loss, "eval_accuracy": eval_accuracy}
    values |= {FIGURE + name: value for name, value in figures.items()}
    said = {name: number for name, value in values.items() if (number := _number(name, value)) is not None}
    if "step" not in said or said.keys() <= {"step", "lr", "grad_norm", "tokens"}:
        return
    try:
        run_dir, steps = _run()
        append_metrics(run_dir.metrics_file, steps.rows([said | {"t": time.time()}]))
    except OSError as error:
        _warn(f"the record takes no metrics: {error}")


def _number(name: str, value: SupportsFloat | None) -> float | None:
    if value is None:
        return None
    try:
        return int(value) if name == "step" else float(value)  # type: ignore[call-overload]
    except (TypeError, ValueError, OverflowError, RuntimeError):  # RuntimeError: a tensor of several values
        _warn(f"`{name.removeprefix(FIGURE)}` is a {type(value).__name__}, not a number, and is left out")
        return None


@cache
def _warn(text: str) -> None:
    sys.stderr.write(f"trainworks.log: {text}\n")


@cache
def _run() -> tuple[RunDir, LoggedSteps]:
    run_dir = RunDir(Path(os.environ["TRAINWORKS_RUN_DIR"]))
    run_dir.note(MetricsSourceEvent(kind="metrics_source", source="trainworks.log"))
    tokens = os.environ.get(TOKENS_PER_STEP)
    return run_dir, LoggedSteps(int(os.environ.get("TRAINWORKS_ATTEMPT", "1")), int(tokens) if tokens else None)
