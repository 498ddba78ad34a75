"""metrics.jsonl: one line per optimizer step, written by rank 0 once per logging interval; of a command's own program
one line per step that it logs.

A step repeated after a restart or a rollback has several lines; the last one counts, the earlier ones are lost work.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NotRequired, TypedDict

from trainworks.files import append_text

MOST_WARMUP_STEPS = 5
TOKENS_PER_STEP = "TRAINWORKS_TOKENS_PER_STEP"
"""Variable of the ranks of a command with a plan: the tokens of its steps, where the program does not say others."""


STEP_PARTS = (
    *("compute_s", "communication_s", "optimizer_s", "data_s"),
    *("checkpoint_s", "evaluation_s", "callback_s", "other_s"),
)
"""Fields of a row that add up to `step_s`; those of training first."""


class SlowestRank(TypedDict):
    """The rank that the others waited for in one logging interval."""

    rank: int
    extra_s: float
    """Seconds per step of its own work, data and compute, beyond the median of the other ranks."""
    extra_data_s: float
    """The same of its wait for data alone; negative where it waits less than the others."""


class CallbackTimes(TypedDict):
    """Callbacks of one logging interval on the rank that spent longest in them; the other ranks wait for it."""

    rank: int
    total_s: float
    """Seconds per step of all its callbacks."""
    longest: int
    """The callback that took longest: its place in `workload.callbacks`, from 0."""
    longest_s: float
    """Seconds per step of that one."""


class EvaluationResult(TypedDict):
    """What an evaluation on held-out data found; with several sets the values of the one that decides."""

    loss: NotRequired[float]
    """Mean over all items of the held-out data, or of the part of it that `eval.steps` chooses. A program of your own
    may have an accuracy alone."""
    accuracy: NotRequired[float]
    """Share of the labels that the model predicts, 0-1, of masked-lm and image-classification; with `preference` of the
    pairs, or answers, that it has right."""
    samples: NotRequired[int]
    """Sequences, images or samples that it has seen."""
    figures: NotRequired[dict[str, float]]
    """Values by name: `wiki/loss` and `wiki/accuracy` of every set, where there are several, and own metrics."""


def named_figures(result: Mapping[str, Any]) -> dict[str, float]:
    """The figures of an evaluation that are numbers, as a record of any version has them."""
    found = result.get("figures")
    numbers = found.items() if isinstance(found, dict) else ()
    return {name: float(value) for name, value in numbers if isinstance(value, int | float)}


class MetricsRow(TypedDict):
    """One optimizer step. Times are means over the ranks and add up to `step_s`.

    A row of a command has what its program says: the step, mostly a loss, and its whole time as compute.
    """

    step: int
    attempt: int
    t: float
    """End of the step, seconds since the epoch."""
    loss: NotRequired[float]
    """Mean over all tokens of the global batch, natural logarithm; absent of an evaluation or figures alone."""
    accuracy: NotRequired[float]
    """Share of the global batch that the model had right before the step, 0-1: pairs in the right order, or with KTO
    answers on the right side; of `preference`."""
    grad_norm: NotRequired[float]
    """Norm before clipping."""
    lr: NotRequired[float]
    tokens: NotRequired[int]
    num_steps: NotRequired[int]
    """Steps since the row before, whose mean this row is; 0 for an evaluation or figures alone, after the first loss.
    One where it is absent."""
    step_s: float
    data_s: NotRequired[float]
    compute_s: float
    communication_s: NotRequired[float]
    optimizer_s: NotRequired[float]
    checkpoint_s: NotRequired[float]
    """Stall of the step for a checkpoint."""
    other_s: NotRequired[float]
    """Logging and all time outside the other terms."""
    callback_s: NotRequired[float]
    """Time of the user's callbacks after this step, as far as nothing was computed meanwhile; absent without any."""
    evaluation_s: NotRequired[float]
    """Time of the evaluation after this step; absent without one."""
    evaluation: NotRequired[EvaluationResult]
    """Result of that evaluation."""
    skipped: NotRequired[str]
    """Reason for a step without update of the weights: `nonfinite`, `spike`, or `loss_scale` (fp16, not a fault)."""
    figures: NotRequired[dict[str, float]]
    """Values by name that a command's own program says beside the loss, or alone."""
    overflow: NotRequired[float]
    """Share of the copies of tokens for which no rank had room, 0-1, mean over the ranks; with `expert_capacity`."""
    memory_peak_bytes: NotRequired[int]
    """Largest peak over the ranks so far: of the accelerator with the driver's context, as nvidia-smi counts it, or
    resident on a CPU; on the last row of an interval."""
    slowest: NotRequired[SlowestRank]
    """On the last row of an interval, with more than one rank; absent in records of older versions."""
    callbacks: NotRequired[CallbackTimes]
    """On the last row of an interval of a run with callbacks."""


Reading = dict[str, float]
"""What a program says of one step: `step`, `t`, `loss`, `lr`, `grad_norm`, `tokens`, `eval_loss`, `eval_accuracy`,
`eval_runtime`, own figures behind `FIGURE`; and how its output counts: `total` of the counter, `epoch`."""
FIGURE = "figures/"
"""Begins the name of an own figure in a reading."""


class LoggedSteps:
    """Rows of the record from what a program says of its steps, every one or some of them.

    A step has the mean time since the step before, as compute; that of the first one is not known. Of a reading that
    repeats a step of its attempt the evaluation alone counts. Before the first loss an evaluation, or a figure alone,
    is a step, too. An accuracy that is said behind the loss of an evaluation belongs to it. A step of the training
    whose tokens are not said has those of the plan, where there is one.
    """

    def __init__(self, attempt: int, tokens: int | None = None) -> None:
        self._attempt, self._tokens = attempt, tokens
        self._trained, self._step, self._newest, self._t, self._evaluation_s = -1, -1, -1, 0.0, 0.0
        self._said: MetricsRow | None = None  # with an evaluation or figures
        self._written: MetricsRow | None = None  # the same, of an earlier call: in the record by now

    def rows(self, readings: Iterable[Reading]) -> list[MetricsRow]:
        """Rows of readings in the order of their times."""
        self._written = self._said
        return [row for each in readings if (row := self._row(each)) is not None]

    def _row(self, reading: Reading) -> MetricsRow | None:
        step, t, trains = int(reading["step"]), reading["t"], "loss" in reading
        is_repeated = trains and step == self._trained
        if is_repeated:
            reading, trains = {name: value for name, value in reading.items() if name.startswith("eval_")}, False
        if step < self._newest or (is_repeated and not reading):
            return None
        opens, is_first = trains or (self._trained < 0 and step > self._newest), self._step < 0
        num_steps = 0 if not opens else 1 if is_first else max(1, step - self._step)
        row = MetricsRow(step=step, attempt=self._attempt, t=t, num_steps=num_steps, step_s=0.0, compute_s=0.0)
        self._describe(row, reading, t - self._t if not opens and step == self._step else 0.0)
        if not trains and self._said is not None and self._said["step"] == step and self._is_in(row, self._said):
            return None
        self._said = row if "evaluation" in row or "figures" in row else self._said
        self._newest = step
        if not opens:
            self._evaluation_s += row["step_s"]
            return row
        if not is_first:
            row["compute_s"] = max(0.0, t - self._t - self._evaluation_s - row["step_s"]) / num_steps
            row["step_s"] += row["compute_s"]
        self._trained = step if trains else self._trained
        self._step, self._t, self._evaluation_s = step, t, 0.0
        return row

    def _describe(self, row: MetricsRow, reading: Reading, spent_s: float) -> None:
        """Put the values of a reading into its row; an evaluation has the time that the program says, or `spent_s`."""
        for name in sorted({"loss", "lr", "grad_norm", "tokens"} & reading.keys()):
            row[name] = reading[name]  # type: ignore[literal-required]
        if row.get("num_steps") and self._tokens is not None:
            row.setdefault("tokens", self._tokens)
        found: Any = {name: reading[f"eval_{name}"] for name in ("loss", "accuracy") if f"eval_{name}" in reading}
        if found:
            row["evaluation"] = found
            row["step_s"] = row["evaluation_s"] = reading.get("eval_runtime", spent_s)
        if figures := {name.removeprefix(FIGURE): reading[name] for name in reading if name.startswith(FIGURE)}:
            row["figures"] = figures

    def _is_in(self, row: MetricsRow, before: MetricsRow) -> bool:
        """Join what a program says of one evaluation in several lines; whether the row before could still take it.

        A row that was handed over stays as it is, and a later evaluation of the same step has its values, too.
        """
        known, found = before.get("evaluation", {}), row.get("evaluation", {})
        if not found.keys().isdisjoint(known):
            return False
        is_open = before is not self._written and ("evaluation" in before or not found)
        target = before if is_open else row
        if found:
            target["evaluation"] = EvaluationResult(**known, **found)  # type: ignore[typeddict-item]
        if is_open and "figures" in row:
            before["figures"] = before.get("figures", {}) | row["figures"]
        return is_open


def append_metrics(path: Path, rows: Iterable[MetricsRow]) -> None:
    """Append the rows of one interval in one write."""
    append_text(path, "".join(json.dumps(row) + "\n" for row in rows))


def warmup_steps(num_steps: int) -> int:
    """First steps that the medians leave out: five, but never more than a quarter of what there is.

    >>> warmup_steps(300), warmup_steps(8), warmup_steps(3)
    (5, 2, 0)
    """
    return min(MOST_WARMUP_STEPS, num_steps // 4)
