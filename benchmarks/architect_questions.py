"""Thirty questions of an architect, answered by the public Python API beside the published answer.

Each is asked twice: as a user asks, and with the program and the layout that its source prints.

    python benchmarks/architect_questions.py            prints every question with its answers
    python benchmarks/architect_questions.py --write    and writes docs/reference/architect-questions.md

The questions were chosen before any answer was computed, and none is left out. An answer with an 80 % interval is
right if the published value lies inside. Bytes have no interval: they are right within 10 %. Counts have to be exact.
"""

from __future__ import annotations

import argparse
import csv
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import yaml

import trainworks
from trainworks.config.run_file import RunFile
from trainworks.errors import TrainworksError
from trainworks.plan.cluster.plan import ClusterPlan
from trainworks.plan.flops import flops_per_token_by_convention

__all__ = ["Answer", "answer", "as_a_user", "main", "page", "questions"]

DATA = Path(__file__).parent / "data" / "architect_questions.csv"
PAGE = Path(__file__).parent.parent / "docs" / "reference" / "architect-questions.md"
GOALS = (22, 22)
"""Right answers of thirty: asked as a user asks, and with program and layout."""
TRIALS = 200
BYTES_TOLERANCE = 0.1
DAY_S, HOUR_S = 86400.0, 3600.0

_HEAD = """
<!-- Written by `python benchmarks/architect_questions.py --write`. Do not edit. -->

# Thirty questions of an architect

Each question has a published answer. Beside it stands the answer of `trainworks.plan`, `goodput`, `storage` or
`network`, with its 80 % interval. The questions were chosen before any answer was computed, and none was left out
afterwards. Time, hours and rates count as right if the published value is inside of the interval; bytes within 10 %,
which is about the error of published peaks of memory; counts only if they are equal.

Each is asked twice. **As a user asks it**, the planner sees the model, the cluster, the batch, the length and number of
samples, and the precision: no program, no compiler, and of the layout what the question's own words say, which is
ZeRO 3 in one of them. **With program and layout** it also sees the program with its year, its compiler, and those
degrees of the layout that the source prints; the rest of the layout is its own choice. After the first answers, some of
these inputs were written more completely, without a change to a question or to a published value: the sharding of the
states, the program and its year, the printed recomputation and micro-batch of three models, the recomputation of GPT-3
175B, whose source counts eight FLOPs per parameter and token, the attention kernel of MosaicML's GPT, and Falcon's
parallel attention. So the count with program and layout is not one of blind answers.

Where nobody says which program trains, the plan is the median of those of this year that may, and the interval holds
their differences. Published runs of 2020 to 2022 had slower programs, so the plan that a user gets today is faster than
what they measured.

GPU hours and days *in all* include failures and checkpoints: the interval is from the 10th to the 90th percentile of
`trainworks.goodput`. Published hours may also hold restarts by hand, evaluation and changes of the recipe, which no
plan knows.

The intervals are estimated from published tables of step times ([accuracy](accuracy.md)), whose authors chose the
configurations that they show. These questions are about whole runs, and show that the intervals are too narrow for
those.
"""


@dataclass(frozen=True, slots=True)
class Answer:
    """A question, and what the API answers to it."""

    row: dict[str, str]
    value: float | None = None
    low: float | None = None
    high: float | None = None
    refused: str = ""
    """Why there is no answer."""

    @property
    def published(self) -> float:
        """In the unit of the question."""
        return float(self.row["published"])

    @property
    def inside(self) -> bool:
        """Whether the answer is right."""
        if self.value is None:
            return False
        if self.low is not None and self.high is not None:
            return self.low <= self.published <= self.high
        tolerance = 0.0 if self.row["quantity"] == "switches" else BYTES_TOLERANCE
        return abs(self.value / self.published - 1) <= tolerance


def questions() -> list[dict[str, str]]:
    """All rows, in their order."""
    with DATA.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def as_a_user(row: dict[str, str]) -> dict[str, str]:
    """The question without help: no program, no compiler, and of the layout what the question's own words say."""
    return row | {"software": "", "compile": "", "layout": row["asked_layout"]}


def answer(row: dict[str, str]) -> Answer:
    """The answer of the API to one question, or its refusal."""
    try:
        value, low, high = _ANSWERS[row["quantity"]](row)
    except TrainworksError as error:
        return Answer(row, refused=error.message)
    return Answer(row, value, low, high)


Figures = tuple[float, float | None, float | None]
"""Value, and the ends of its interval."""


def _run_file(row: dict[str, str]) -> RunFile:
    """The run of a question."""
    model = yaml.safe_load(f"{{{row['model']}}}")
    image, masked = model.get("preset") == "resnet-50", model.get("architecture") == "bert"
    data: dict[str, Any] = {"image_size": 224} if image else {"sequence_length": int(row["sequence_length"])}
    if row["vocabulary"]:
        data["vocabulary"] = int(row["vocabulary"])
    workload = {
        "task": "image-classification" if image else "masked-lm" if masked else "causal-lm",
        "model": model,
        "data": data,
        "precision": row["precision"],
        "global_batch": int(row["global_batch"]),
        "train_for": row["train_for"],
    }
    if row["compile"]:
        workload["compile"] = row["compile"] == "yes"
    run: dict[str, Any] = {"name": row["id"], "workload": workload, "cluster": row["cluster"]}
    if row["software"]:
        run["software"] = yaml.safe_load(row["software"])
    if row["layout"]:
        run["layout"] = yaml.safe_load(f"{{{row['layout']}}}")
    return RunFile.model_validate(run)


def _plan(row: dict[str, str]) -> ClusterPlan:
    return trainworks.plan(_run_file(row), on=row["cluster"], without_learning=True)


def _step(row: dict[str, str], of_step: Callable[[ClusterPlan, float], float]) -> Figures:
    """A figure of the step time of the proposed layout; a rate falls where the time rises."""
    plan = _plan(row)
    best = plan.best[0]
    value, *ends = (of_step(plan, seconds) for seconds in (best.step_time_s, best.low_s, best.high_s))
    return value, min(ends), max(ends)


def _tokens(plan: ClusterPlan) -> float:
    return float(plan.global_batch * plan.job.sequence_length)


def _devices(plan: ClusterPlan) -> int:
    return plan.job.cluster.num_accelerators


def _tflops(row: dict[str, str]) -> Figures:
    def rate(plan: ClusterPlan, step_s: float) -> float:
        convention: Any = row["convention"]
        flops = flops_per_token_by_convention(convention, plan.job.shape, plan.job.sequence_length)
        return flops * _tokens(plan) / step_s / _devices(plan) / 1e12

    return _step(row, rate)


def _mfu_percent(plan: ClusterPlan, step_s: float) -> float:
    best = plan.best[0]
    return 100 * best.mfu * best.step_time_s / step_s


def _with_failures(row: dict[str, str], scale: Callable[[int], float]) -> Figures:
    """Wall time of the run with its failures: median, 10th and 90th percentile."""
    run = _run_file(row)
    forecast = trainworks.goodput(run, on=row["cluster"], trials=TRIALS)
    factor = scale(forecast.job.cluster.num_accelerators)
    value, low, high = (factor * forecast.outcome.quantile_s(share) for share in (0.5, 0.1, 0.9))
    return value, low, high


def _checkpoint_tb(row: dict[str, str]) -> Figures:
    stored = trainworks.storage(_run_file(row), on=row["cluster"])
    return stored.demand.checkpoint.value / 1e12, None, None


def _states_gb(row: dict[str, str]) -> Figures:
    memory = _plan(row).best[0].memory
    return (memory.weights_bytes + memory.gradients_bytes + memory.optimizer_bytes) / 1e9, None, None


def _switches(row: dict[str, str]) -> Figures:
    design = trainworks.network(on=row["cluster"], topology="rail-optimised", spare_slots=1).design
    return float(design.num_switches), None, None


_ANSWERS: dict[str, Callable[[dict[str, str]], Figures]] = {
    "step_s": lambda row: _step(row, lambda plan, step_s: step_s),
    "days": lambda row: _step(row, lambda plan, step_s: plan.steps * step_s / DAY_S),
    "gpu_hours": lambda row: _step(row, lambda plan, step_s: plan.steps * step_s * _devices(plan) / HOUR_S),
    "tokens_per_s": lambda row: _step(row, lambda plan, step_s: _tokens(plan) / step_s),
    "tokens_per_s_per_gpu": lambda row: _step(row, lambda plan, step_s: _tokens(plan) / step_s / _devices(plan)),
    "samples_per_s": lambda row: _step(row, lambda plan, step_s: plan.global_batch / step_s),
    "mfu": lambda row: _step(row, _mfu_percent),
    "tflops": _tflops,
    "days_with_failures": lambda row: _with_failures(row, lambda devices: 1 / DAY_S),
    "gpu_hours_with_failures": lambda row: _with_failures(row, lambda devices: devices / HOUR_S),
    "checkpoint_tb": _checkpoint_tb,
    "states_gb": _states_gb,
    "switches": _switches,
}


def _written(value: float | None) -> str:
    """Three digits, without an exponent."""
    if value is None:
        return ""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


Asked = tuple[Answer, Answer]
"""The answers to a question as a user asks it, and with program and layout."""


def _ours(found: Answer) -> str:
    ends = "" if found.low is None else f"{_written(found.low)} to {_written(found.high)}"
    return f"{found.refused or _written(found.value)} | {ends} | {'yes' if found.inside else '**no**'}"


def _row(number: int, asked: Asked) -> str:
    plain, named = asked
    question, published = plain.row["question"], _written(plain.published)
    return f"| {number} | {question} | {published} | {_ours(plain)} | {_ours(named)} |"


def page(found: Sequence[Asked]) -> str:
    """docs/reference/architect-questions.md."""
    ways = ("As a user asks", "With program and layout")
    counts = "\n".join(_count(*each) for each in zip(ways, zip(*found, strict=True), GOALS, strict=True))
    sections = [_HEAD, counts, "\n".join(_table(found)), _OUTSIDE, "\n".join(_reasons(found))]
    return "\n\n".join(section.strip("\n") for section in [*sections, _SOURCES, "\n".join(_sources(found))]) + "\n"


def _count(way: str, found: Sequence[Answer], goal: int) -> str:
    """How many of the answers are right, how wide their intervals are, and in which direction they are off."""
    compared = [one for one in found if one.low and one.high and one.value]
    factors = [(one.value or 0.0) / one.published for one in compared]
    widths = [(one.high or 0.0) / (one.low or 1.0) for one in compared]
    faster = sum((factor > 1) == (one.row["quantity"] in _RATES) for one, factor in zip(compared, factors, strict=True))
    off = median(abs(factor - 1) for factor in factors)
    wide = sum(one.inside and width > _WIDE for one, width in zip(compared, widths, strict=True))
    return (
        f"- {way}, **{sum(one.inside for one in found)} of {len(found)} published answers are met**; goal: {goal}. "
        f"Of the {len(compared)} answers with an interval, {faster} are faster than was published; the median is "
        f"{off:.0%} off. The upper end of the interval is {median(widths):.1f} times the lower one in the median, and "
        f"more than {_WIDE} times in {wide} of the answers that are met."
    )


_WIDE = 3
"""Ends of an interval, one over the other, above which it says little."""
_RATES = ("tflops", "mfu", "tokens_per_s", "tokens_per_s_per_gpu", "samples_per_s")
"""Quantities that rise where the step time falls."""
_OUTSIDE = """
## Answers outside

Whether a step of ours is wrong, or what the run did beside its steps. Published shares of productive time do not give
a distribution of the latter: runs that restart by themselves have 0.90 to 0.99, as the simulation gives the runs above,
and runs that people restarted 0.59 to 0.78, without a word on how long that took (`benchmarks/data/goodput.csv`).
"""
_SOURCES = """
## Sources and assumptions

`in the fit` says whether the coefficients or the formulas were made with the published row in view.
"""


def _table(found: Sequence[Asked]) -> Iterator[str]:
    yield "| | question | published | as a user asks | 80 % interval | inside | with both | 80 % interval | inside |"
    yield "|---|---|---|---|---|---|---|---|---|"
    yield from (_row(number, one) for number, one in enumerate(found, 1))


def _reasons(found: Sequence[Asked]) -> Iterator[str]:
    yield "| | outside | |"
    yield "|---|---|---|"
    for number, (plain, named) in enumerate(found, 1):
        if not named.inside:
            yield f"| {number} | {'with both' if plain.inside else 'both ways'} | {named.row['outside']} |"
        elif not plain.inside:
            yield f"| {number} | as a user asks | inside where the program and the layout are named |"


def _sources(found: Sequence[Asked]) -> Iterator[str]:
    columns = ("source", "confidence", "in_fit", "software", "layout", "asked_layout", "assumed")
    yield "| | source | confidence | in the fit | program | layout as printed | layout in the question | assumed |"
    yield "|---|---|---|---|---|---|---|---|"
    for number, (_, named) in enumerate(found, 1):
        cells = (named.row[name] for name in columns)
        yield f"| {number} | {' | '.join(cells)} |"


def main(arguments: Sequence[str] | None = None) -> int:
    """Print every question with its answers; with `--write`, write the page, too."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help=f"write docs/reference/{PAGE.name}")
    parser.add_argument("--only", default="", help="questions whose id has this text")
    options = parser.parse_args(arguments)
    found = []
    for row in questions():
        if options.only not in row["id"]:
            continue
        found.append((answer(as_a_user(row)), answer(row)))
        print(_row(len(found), found[-1]), flush=True)
    plain, named = (sum(one.inside for one in each) for each in zip(*found, strict=True))
    print(f"as a user asks {plain}, with program and layout {named} of {len(found)}; goals: {GOALS} of 30")
    if options.write:
        PAGE.write_text(page(found), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
