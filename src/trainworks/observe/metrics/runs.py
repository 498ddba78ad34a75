"""Metrics of runs: what the record says of a run at one moment, and what its plan predicted."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Literal

from trainworks.catalog.exchange import usd_of
from trainworks.jobs.state import JobState
from trainworks.observe.metrics.family import MetricFamily, MetricKind, MetricSample
from trainworks.plan.cost.energy import run_energy
from trainworks.record.measured.step_anchor import AnchoredStep
from trainworks.record.metrics import STEP_PARTS, EvaluationResult, MetricsRow, SlowestRank, named_figures
from trainworks.record.resolved import Plan, ResolvedRun
from trainworks.record.step_time import StepTimeGroups
from trainworks.units import HOUR_S

_Value = float | Mapping[str, float] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSnapshot:
    """A run at one moment. Figures are None until they are recorded; times are seconds since the epoch."""

    run: str
    """Value of the label `run`: the run id, or the path where two runs have the same id."""
    state: JobState
    resolved: ResolvedRun
    deadline_at: float | None = None
    """Latest acceptable time of the last step."""
    attempt_at: float | None = None
    """Start of the latest attempt."""
    attempts: int = 0
    failures: int = 0
    """Starts of the ranks that ended in a failure."""
    recent: Sequence[MetricsRow] = ()
    """Last steps of the latest attempt, oldest first."""
    step_s: float | None = None
    """Mean duration of these steps."""
    tokens_per_s: float | None = None
    """Throughput over them."""
    eta_s: float | None = None
    """Time from the last one to the end of the run at their pace; without checkpoints, restarts and waits to come."""
    anchored: AnchoredStep | None = None
    """The step of the plan, anchored on the first quiet ones; None before there were any."""
    slowest: SlowestRank | None = None
    """The rank that the others waited for in the last logging interval."""
    memory_peak_bytes: int | None = None
    evaluation: tuple[int, EvaluationResult] | None = None
    """Step and result of the last evaluation on held-out data."""
    figures: Mapping[str, float] = field(default_factory=dict)
    """Last values of what a command says beside its loss, by name."""
    checkpoint_step: int | None = None
    checkpoint_at: float | None = None
    checkpoint_bytes: int | None = None
    failed_checkpoints: int = 0
    goodput: float | None = None
    energy_j: float | None = None
    """Energy of the accelerators."""
    spent_s: Mapping[str, float] = field(default_factory=dict)
    """The time ledger: seconds by category."""
    first_start_s: float = 0.0
    """Time from the first launch to its first step: what a run pays once."""
    others_share: float | None = None
    """Share of the cores of the busiest node that other programs used lately."""

    @property
    def plan(self) -> Plan | None:
        """The plan; None for a command."""
        return self.resolved.plan

    @property
    def latest(self) -> MetricsRow | None:
        """The last recorded step."""
        return self.recent[-1] if self.recent else None

    @property
    def slowdown(self) -> float:
        """Recent over planned time of a step, 1 at least: factor of an interval that the plan counts in steps."""
        return 1.0 if self.plan is None else max(1.0, (self.step_s or 0.0) / self.plan.step_time.total_s)

    @property
    def planned_goodput(self) -> float | None:
        """Goodput that the run would have by now without restarts, lost steps, gaps, and saves beyond the plan.

            useful / (useful * (1 + planned saves / planned steps) + start + evaluation)

        with the useful time, the first start and the evaluations as measured: a short run and a slow machine reach it,
        too. None without a plan or a ledger.
        """
        plan, spent = self.plan, self.spent_s
        if plan is None or not spent:
            return None
        steps_s = plan.num_steps * plan.step_time.total_s
        saves_s = plan.run_time_s - steps_s - (plan.evaluation.total_s if plan.evaluation else 0.0)
        useful_s = sum(spent[part.removesuffix("_s")] for part in StepTimeGroups.model_fields)
        whole_s = useful_s * (1 + max(0.0, saves_s) / steps_s) + self.first_start_s + spent.get("evaluation", 0.0)
        return useful_s / whole_s if whole_s > 0 else None

    @property
    def unsaved_since(self) -> float | None:
        """End of the last work that a checkpoint holds: its time, or the start of the attempt if that is later.

        None before the first step of an attempt: it has done no work yet.
        """
        if self.latest is None or self.latest["t"] < (self.attempt_at or 0.0):
            return None
        return max([at for at in (self.checkpoint_at, self.attempt_at) if at is not None], default=None)

    @property
    def expected_finish_at(self) -> float | None:
        """Time of the last step at the present pace."""
        return None if self.latest is None or self.eta_s is None else self.latest["t"] + self.eta_s

    @property
    def cost_usd(self) -> float | None:
        """Price of the accelerators for the time that the run held them.

        cost = USD per accelerator hour * accelerators * (wall clock - idle) / 3600

        None without a price, without accelerators or without a ledger.
        """
        if self.resolved.hour_price is None or not self.spent_s:
            return None
        held_s = sum(self.spent_s.values()) - self.spent_s.get("idle", 0.0)
        return usd_of(self.resolved.hour_price) * held_s / HOUR_S


@dataclass(frozen=True, slots=True)
class _RunMetric:
    family: MetricFamily
    read: Callable[[RunSnapshot], _Value]
    """The value; or values by the last label, if the family has one more than `run`."""


def _metric(
    name: str,
    read: Callable[[RunSnapshot], _Value],
    text: str,
    source: str,
    *,
    kind: MetricKind = "gauge",
    label: str = "",
) -> _RunMetric:
    labels = ("run", label) if label else ("run",)
    return _RunMetric(MetricFamily(f"trainworks_run_{name}", text, kind, labels, source), read)


def _number(row: Mapping[str, object] | None, key: str) -> float | None:
    value = (row or {}).get(key)
    return float(value) if isinstance(value, int | float) else None


def _latest(key: str) -> Callable[[RunSnapshot], float | None]:
    return lambda run: _number(run.latest, key)


def _slowest(key: Literal["rank", "extra_s"]) -> Callable[[RunSnapshot], float | None]:
    return lambda run: None if run.slowest is None else run.slowest[key]


def _held_out(key: str) -> Callable[[RunSnapshot], float | None]:
    return lambda run: _number(run.evaluation[1] if run.evaluation else None, key)


def _planned(read: Callable[[Plan], _Value]) -> Callable[[RunSnapshot], _Value]:
    return lambda run: None if run.plan is None else read(run.plan)


def _anchored(key: Literal["step_s", "low_s", "high_s", "step"]) -> Callable[[RunSnapshot], float | None]:
    return lambda run: None if run.anchored is None else float(getattr(run.anchored, key))


def _parts(run: RunSnapshot) -> Mapping[str, float]:
    """Mean of every part over the recent steps."""
    sums = {part: sum(_number(row, part) or 0.0 for row in run.recent) for part in STEP_PARTS if run.recent}
    return {part.removesuffix("_s"): total / len(run.recent) for part, total in sums.items()}


def _checkpoint_interval(run: RunSnapshot) -> float | None:
    plan = run.plan
    if plan is None or plan.checkpoint_every_s is not None:
        return None if plan is None else plan.checkpoint_every_s
    steps = plan.checkpoint_every_steps
    return None if steps is None else steps * plan.step_time.total_s * run.slowdown


def _training_step(run: RunSnapshot) -> float | None:
    parts = _parts(run) if run.recent else {}
    return sum(parts[part.removesuffix("_s")] for part in StepTimeGroups.model_fields) if parts else None


def _data_wait(run: RunSnapshot) -> float | None:
    step_s = _training_step(run)
    return _parts(run)["data"] / step_s if step_s else None


def _planned_energy(run: RunSnapshot) -> float | None:
    power_w = run.resolved.power_limit_w
    return None if run.plan is None or power_w is None else run_energy(run.plan, power_w).value


_RECENT = "metrics.jsonl: up to 50 steps of the last 5 s"
_INTERVAL = "metrics.jsonl: `slowest` of the last interval"
_PLAN = "resolved.json: the plan"
_ANCHOR = "anchor.json"
_EVENTS = "events.jsonl"
_LEDGER = "the time ledger of `trainworks report`"
RUN_INFO = MetricFamily(
    "trainworks_run_info",
    "Facts of a run that do not change; the value is 1.",
    labels=("run", "name", "model", "layout", "precision", "accelerator"),
    source="resolved.json",
)
RUN_STATE = MetricFamily(
    "trainworks_run_state", "State of a run; the value is 1.", labels=("run", "state"), source="status.json"
)
_METRICS = (
    _metric("step", _latest("step"), "Last recorded optimizer step.", "metrics.jsonl"),
    _metric(
        "planned_log_interval_seconds",
        lambda run: run.resolved.longest_pause_s * run.slowdown or None,
        "Planned time between two writes of steps to the record, at the recent pace where that is slower.",
        _PLAN,
    ),
    _metric("planned_steps", _planned(attrgetter("num_steps")), "Optimizer steps of the whole run.", _PLAN),
    _metric("last_step_timestamp_seconds", _latest("t"), "Time of the last recorded step.", "metrics.jsonl"),
    _metric("loss", _latest("loss"), "Loss of the last step, mean over the tokens, in nats.", "metrics.jsonl"),
    _metric(
        "accuracy", _latest("accuracy"), "Share that the last step of `preference` had right, 0 to 1.", "metrics.jsonl"
    ),
    _metric("held_out_loss", _held_out("loss"), "Loss of the last evaluation on held-out data.", "metrics.jsonl"),
    _metric("held_out_accuracy", _held_out("accuracy"), "Accuracy of the last evaluation, 0 to 1.", "metrics.jsonl"),
    _metric(
        "held_out_figure",
        lambda run: named_figures(run.evaluation[1]) if run.evaluation else {},
        "Figure of the last evaluation by its name: `wiki/loss` of a set, where there are several.",
        "metrics.jsonl",
        label="name",
    ),
    _metric(
        "held_out_step",
        lambda run: run.evaluation[0] if run.evaluation else None,
        "Step of the last evaluation on held-out data.",
        "metrics.jsonl",
    ),
    _metric(
        "figure",
        attrgetter("figures"),
        "Last value that a command says beside its loss, by its name.",
        "metrics.jsonl",
        label="name",
    ),
    _metric("gradient_norm", _latest("grad_norm"), "Gradient norm of the last step before clipping.", "metrics.jsonl"),
    _metric("learning_rate", _latest("lr"), "Learning rate of the last step.", "metrics.jsonl"),
    _metric("tokens_per_second", attrgetter("tokens_per_s"), "Throughput of the whole job.", _RECENT),
    _metric("planned_tokens_per_second", _planned(attrgetter("tokens_per_s")), "Planned throughput.", _PLAN),
    _metric(
        "mfu_ratio",
        lambda run: None if run.plan is None or run.tokens_per_s is None else run.plan.mfu(run.tokens_per_s),
        "Model FLOPs utilization, 0 to 1.",
        _RECENT,
    ),
    _metric(
        "planned_mfu_ratio", _planned(lambda plan: plan.mfu(plan.tokens_per_s)), "Planned utilization, 0 to 1.", _PLAN
    ),
    _metric("step_seconds", attrgetter("step_s"), "Mean time of a step.", _RECENT),
    _metric(
        "training_step_seconds",
        _training_step,
        "Mean time of the parts of a step that the plan has: without checkpoint, evaluation, callbacks and logging.",
        _RECENT,
    ),
    _metric("planned_step_seconds", _planned(attrgetter("step_time.total_s")), "Planned time of a step.", _PLAN),
    _metric(
        "planned_step_low_seconds",
        _planned(lambda plan: plan.expected.low_s if plan.expected else None),
        "Lower end of the 80 % interval of a step.",
        _PLAN,
    ),
    _metric(
        "planned_step_high_seconds",
        _planned(lambda plan: plan.expected.high_s if plan.expected else None),
        "Upper end of the 80 % interval of a step.",
        _PLAN,
    ),
    _metric("anchored_step_seconds", _anchored("step_s"), "Step of the first quiet window of the run.", _ANCHOR),
    _metric("anchored_step_low_seconds", _anchored("low_s"), "Lower end of its 80 % interval.", _ANCHOR),
    _metric("anchored_step_high_seconds", _anchored("high_s"), "Upper end of its 80 % interval.", _ANCHOR),
    _metric("anchored_at_step", _anchored("step"), "Last step of that window.", _ANCHOR),
    _metric("step_part_seconds", _parts, "Mean time of a part of a step; the parts add up.", _RECENT, label="part"),
    _metric(
        "planned_step_part_seconds",
        _planned(lambda plan: {name.removesuffix("_s"): s for name, s in plan.groups.model_dump().items()}),
        "Planned time of a part of a step; the parts add up.",
        _PLAN,
        label="part",
    ),
    _metric(
        "data_wait_ratio",
        _data_wait,
        "Share of `training_step_seconds` for which the ranks wait for their batch, mean over the ranks, 0 to 1.",
        _RECENT,
    ),
    _metric("slowest_rank", _slowest("rank"), "Rank that the others waited for in the last interval.", _INTERVAL),
    _metric(
        "slowest_rank_extra_seconds",
        _slowest("extra_s"),
        "Time per step of the slowest rank's own work beyond the median of the others.",
        _INTERVAL,
    ),
    _metric("memory_peak_bytes", attrgetter("memory_peak_bytes"), "Peak memory of the fullest rank.", "metrics.jsonl"),
    _metric(
        "planned_memory_bytes", _planned(attrgetter("memory.total_bytes")), "Planned peak of the fullest rank.", _PLAN
    ),
    _metric("goodput_ratio", attrgetter("goodput"), "Productive time over time holding accelerators, 0 to 1.", _LEDGER),
    _metric(
        "planned_goodput_ratio",
        attrgetter("planned_goodput"),
        "Goodput that the run would have without restarts, lost steps, gaps, and saves beyond the plan, 0 to 1.",
        f"{_LEDGER}, and the plan",
    ),
    _metric(
        "other_load_ratio",
        attrgetter("others_share"),
        "Share of the cores of the run's busiest node that other programs used lately, 0 to 1.",
        "usage/, from the kernel",
    ),
    _metric(
        "planned_other_load_ratio",
        lambda run: None if run.plan is None else run.resolved.planned_others_share,
        "Largest share for other programs with which the plan holds: as calibrated, or what the ranks leave free.",
        "resolved.json",
    ),
    _metric("spent_seconds", attrgetter("spent_s"), "Time since the launch by category.", _LEDGER, label="category"),
    _metric("energy_joules", attrgetter("energy_j"), "Energy of the accelerators so far.", "usage/, from the driver"),
    _metric(
        "planned_energy_joules",
        _planned_energy,
        "Power limit of the accelerators by what the plan has them do, for the planned run time.",
        _PLAN,
    ),
    _metric("checkpoint_step", attrgetter("checkpoint_step"), "Step of the newest intact checkpoint.", _EVENTS),
    _metric(
        "checkpoint_timestamp_seconds", attrgetter("checkpoint_at"), "Time of the newest intact checkpoint.", _EVENTS
    ),
    _metric("checkpoint_bytes", attrgetter("checkpoint_bytes"), "Size of the last checkpoint.", _EVENTS),
    _metric(
        "planned_checkpoint_bytes", _planned(attrgetter("checkpoint_bytes")), "Planned size of a checkpoint.", _PLAN
    ),
    _metric(
        "unsaved_since_timestamp_seconds",
        attrgetter("unsaved_since"),
        "Time from which on work is in no checkpoint: the newest checkpoint, or a later start of the ranks.",
        _EVENTS,
    ),
    _metric(
        "planned_checkpoint_interval_seconds",
        _checkpoint_interval,
        "Planned time from a checkpoint to the next; of an interval in steps at the recent pace, where that is slower.",
        _PLAN,
    ),
    _metric(
        "checkpoint_failures_total", attrgetter("failed_checkpoints"), "Failed checkpoints.", _EVENTS, kind="counter"
    ),
    _metric("attempts_total", attrgetter("attempts"), "Starts of the ranks.", _EVENTS, kind="counter"),
    _metric("failures_total", attrgetter("failures"), "Starts of the ranks that failed.", _EVENTS, kind="counter"),
    _metric(
        "expected_finish_timestamp_seconds",
        attrgetter("expected_finish_at"),
        "Time of the last step at the present pace.",
        _RECENT,
    ),
    _metric("deadline_timestamp_seconds", attrgetter("deadline_at"), "Latest acceptable end.", "run file: `goal`"),
    _metric("cost_usd", attrgetter("cost_usd"), "Price of the accelerators so far.", f"{_LEDGER}, and the run file"),
    _metric(
        "budget_usd",
        lambda run: usd_of(run.resolved.run_file.goal.budget),
        "Highest acceptable price.",
        "run file: `goal`",
    ),
)
RUN_FAMILIES = (RUN_INFO, RUN_STATE, *(metric.family for metric in _METRICS))


def run_samples(run: RunSnapshot) -> Iterator[MetricSample]:
    """Every metric of a run that has a value now."""
    yield _info(run)
    yield RUN_STATE.sample(1, run.run, run.state)
    for metric in _METRICS:
        value = metric.read(run)
        if isinstance(value, Mapping):
            yield from (metric.family.sample(each, run.run, key) for key, each in value.items())
        elif value is not None:
            yield metric.family.sample(value, run.run)


def _info(run: RunSnapshot) -> MetricSample:
    resolved, plan, workload = run.resolved, run.plan, run.resolved.run_file.as_planned.workload
    accelerators = resolved.host.accelerators
    return RUN_INFO.sample(
        1,
        run.run,
        resolved.run_file.name,
        workload.model.title if workload else "",
        plan.layout.describe() if plan else "",
        str(workload.precision) if workload else "",
        accelerators[0].name if accelerators else "",
    )
