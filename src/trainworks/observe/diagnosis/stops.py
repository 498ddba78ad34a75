"""Causes that keep the run from training at all: start, checkpoints, evaluation, restarts, thrown-away steps, gaps."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import pairwise

import numpy as np

from trainworks.observe.diagnosis.lost_time import LostTime
from trainworks.observe.diagnosis.run_facts import Cause, RunFacts
from trainworks.plan.reliability.checkpoint_interval import optimal_interval_s
from trainworks.plan.reliability.defaults import usual_node_mttf
from trainworks.record.events import training
from trainworks.record.events.job import FailureEvent
from trainworks.record.events.log import E, Event, of_kind
from trainworks.record.history import History
from trainworks.record.ledger import first_start_s
from trainworks.record.metric_columns import Floats
from trainworks.recover.failures import is_consequence
from trainworks.units import format_duration

_RARER = 1.2
"""Ratio of the best checkpoint interval to the present one from which a change is worth it."""
_WAITS_WORTH = 0.1
"""Share of the time of callbacks from which the waits for them are worth a line."""
_EVALUATION_SHARE = 0.05
"""Time of evaluations over that of the steps up to which they are not too frequent: an assumption."""


def lost_to_start(facts: RunFacts) -> LostTime | None:
    """Time from each launch to its first step, the first of them paid once; unknown for a command without steps."""
    lost_s = facts.ledger.start_s
    if lost_s <= 0 or not (facts.resolved.is_workload or facts.rows):
        return None
    return LostTime(
        name="start",
        title="The accelerators idle before the first step",
        lost_s=lost_s,
        once_s=first_start_s(facts.history),
        evidence=(_start_times(facts), *_start_parts(facts)),
        remedy="Prepare the data before the run, keep the caches of data and compiled code, and start fewer times.",
        setting="trainworks data prepare run.yaml" if facts.history.of_kind(training.DataReadyEvent) else None,
    )


def _start_times(facts: RunFacts) -> str:
    """How often the start was paid."""
    launches, first_s = len(facts.history.launches), first_start_s(facts.history)
    if launches == 1:
        return "paid once: a longer run pays no more for its start"
    again_s = facts.ledger.start_s - first_s
    return f"the first of {launches} launches took {format_duration(first_s)}, the others {format_duration(again_s)}"


def _start_parts(facts: RunFacts) -> Iterator[str]:
    """Parts of the start that the events of the first launch tell apart."""
    launch = facts.history.launches[0]
    ready = _first(launch.events, training.DataReadyEvent)
    if ready and not ready.get("cached") and ready.get("seconds"):
        yield f"preparing the data took {format_duration(float(ready['seconds']))}"
    compiled = _first(launch.events, training.CompiledEvent)
    if compiled:
        yield f"compiling took {format_duration(float(compiled['compile_s']))}"
    met = _first(launch.events, training.AttemptEvent)
    if met:
        yield f"all ranks had met {format_duration(max(0.0, float(met['t']) - launch.start_at))} after the launch"
    if not met or not len(launch.steps):
        return
    if (later_s := float(launch.steps["t"][0] - launch.steps["step_s"][0]) - float(met["t"])) > 0:
        yield f"the first step began {format_duration(later_s)} later"


def _first(events: Sequence[Event], kind: type[E]) -> E | None:
    return next(iter(of_kind(events, kind)), None)


def lost_to_checkpoints(facts: RunFacts) -> LostTime | None:
    """Time that steps stood still for checkpoints, and what the best interval of Young and Daly would save."""
    saved, lost_s = len(facts.history.of_kind(training.CheckpointEvent)), facts.ledger.checkpoint_s
    if not saved or lost_s <= 0:
        return None
    stall_s = lost_s / saved
    every_s = max(facts.steps_s / saved, 1e-9)
    mttf_s, source = _time_to_failure(facts)
    best_s = optimal_interval_s(stall_s=stall_s, mttf_s=mttf_s)
    gain = _overhead(every_s, stall_s, mttf_s) - _overhead(best_s, stall_s, mttf_s)
    is_too_often = best_s > _RARER * every_s and gain > 0
    return LostTime(
        name="checkpoints",
        title="Training stops for checkpoints",
        lost_s=lost_s,
        evidence=(
            f"{saved:,} checkpoints, one every {format_duration(every_s)} of training, stop the steps for "
            f"{format_duration(stall_s)} each",
            f"with a failure every {format_duration(mttf_s)} ({source}) the best interval is {format_duration(best_s)}",
        ),
        remedy="Save less often: the interval of Young and Daly loses least."
        if is_too_often
        else "Keep the interval, and write faster: a local disk first, or storage with more bandwidth.",
        setting=_interval(facts, best_s) if is_too_often else None,
        saves_s=gain * facts.steps_s if is_too_often else None,
    )


def lost_to_evaluation(facts: RunFacts) -> LostTime | None:
    """Time of evaluations on held-out data, and what rarer ones would save."""
    lost_s, workload = facts.ledger.evaluation_s, facts.resolved.run_file.workload
    settings = workload.eval if workload else None
    if settings is None or lost_s <= 0:
        return None
    taken_s = facts.rows["evaluation_s"][np.isfinite(facts.rows["evaluation_s"])]
    planned = facts.plan.evaluation if facts.plan else None
    rarer = math.ceil(lost_s / (_EVALUATION_SHARE * max(facts.steps_s, 1e-9)))
    every = min(rarer * settings.every_steps, facts.plan.num_steps) if facts.plan else rarer * settings.every_steps
    is_too_often = every > settings.every_steps
    return LostTime(
        name="evaluation",
        title="Training stops for evaluations",
        lost_s=lost_s,
        evidence=(
            f"{len(taken_s):,} evaluations, one every {settings.every_steps:,} steps, "
            f"take {format_duration(float(np.median(taken_s)))} each",
            *((f"planned {format_duration(planned.evaluation_s)} each",) if planned else ()),
        ),
        remedy="Evaluate less often with `eval.every`, or on fewer batches with `eval.steps`.",
        setting=f"workload: {{eval: {{every: {every} steps}}}}" if is_too_often else None,
        saves_s=lost_s * (1 - settings.every_steps / every) if is_too_often else None,
    )


def lost_to_callbacks(facts: RunFacts) -> LostTime | None:
    """Time of the user's callbacks after the steps, and the waits of the other ranks for them."""
    waits_s, workload = facts.shares.callback_waits_s, facts.resolved.run_file.workload
    lost_s = facts.ledger.callback_s + waits_s
    if workload is None or not workload.callbacks or lost_s <= 0:
        return None
    in_steps, at_end = facts.callback_times(len(workload.callbacks))
    costliest = max(range(len(in_steps)), key=lambda place: in_steps[place] + at_end[place])
    evidence = [
        *_callback_times(workload.callbacks, in_steps / max(1, len(facts.rows)), "a step"),
        *_callback_times(workload.callbacks, at_end, "after the last step"),
    ]
    if waits_s > _WAITS_WORTH * lost_s:
        evidence.append(f"ranks wait {format_duration(waits_s)} for the callbacks of another rank")
    return LostTime(
        name="callbacks",
        title=f"The callback `{workload.callbacks[costliest]}` holds up the run",
        lost_s=lost_s,
        evidence=tuple(evidence),
        remedy="Let it work on fewer steps, or in a thread. On an accelerator, reading a loss waits for the device.",
    )


def _callback_times(names: Sequence[str], seconds: Floats, when: str) -> list[str]:
    """The callbacks that took time, the longest first."""
    named = sorted(zip(seconds.tolist(), names, strict=True), reverse=True)
    return [f"`{name}` takes {format_duration(taken_s)} {when}" for taken_s, name in named if taken_s > 0]


def _interval(facts: RunFacts, best_s: float) -> str:
    step_s = facts.median_of("step_s") - facts.median_of("checkpoint_s")
    if step_s <= 0:
        return f"checkpoint: {{every: {round(best_s)}s}}"
    return f"checkpoint: {{every: {max(1, round(best_s / step_s))} steps}}"


def _overhead(interval_s: float, stall_s: float, mttf_s: float) -> float:
    """Expected share of the training time lost to saving and to repeated steps: C / tau + tau / 2M (Young 1974)."""
    return stall_s / interval_s + interval_s / (2 * mttf_s)


def _time_to_failure(facts: RunFacts) -> tuple[float, str]:
    """Mean time between failures of the job: measured if it failed, else that of the planner."""
    failures = _failures(facts)
    if failures:
        return facts.ledger.held_s / len(failures), "measured in this run"
    given = facts.resolved.run_file.recover.node_mttf
    nodes = facts.resolved.processes.nodes
    return usual_node_mttf(None, given).value / nodes, "given" if given else "the planner's assumption"


def _failures(facts: RunFacts) -> list[FailureEvent]:
    """Root failures, one of each start of the ranks."""
    roots: dict[object, FailureEvent] = {}
    for event in facts.history.of_kind(FailureEvent):
        if not is_consequence(event):
            roots.setdefault((event.get("attempt"), event.get("rendezvous")), event)
    return list(roots.values())


def lost_to_restarts(facts: RunFacts) -> LostTime | None:
    """Time from failures to the steps after them."""
    lost_s, failures = facts.ledger.restart_s, _failures(facts)
    if lost_s <= 0:
        return None
    causes = Counter(str(event.get("cause") or "unknown") for event in failures)
    named = ", ".join(f"{count} x {cause}" for cause, count in causes.most_common())
    evidence = [f"failures: {named}"] if failures else []
    rollbacks = len(facts.history.of_kind(training.RollbackEvent))
    evidence += [f"rollbacks after bad steps: {rollbacks}"] if rollbacks else []
    if failures:
        evidence.append(f"from a failure to the next step: {format_duration(lost_s / len(failures))} on average")
    return LostTime(
        name="restarts",
        title="The run restarts after failures",
        lost_s=lost_s,
        evidence=tuple(evidence),
        remedy="Remove the cause of the failures: the report names the first one of each attempt.",
        setting=f"trainworks report {facts.resolved.run_id}",
    )


def _begun_anew(history: History) -> tuple[str, str, str | None] | None:
    """Evidence, remedy and setting where an attempt of a command began at the first step again; None where none did.

    It loaded its weights where its loss begins nearer to the last one of the attempt before than to the first one.
    """
    attempts = [
        launch.steps.where(launch.steps["attempt"] == number)
        for launch in history.launches
        for number in np.unique(launch.steps["attempt"])
    ]
    for before, again in pairwise(attempts):
        if again["step"].min() > attempts[0]["step"].min():
            continue
        at_first, last, begun = (each["loss"][np.isfinite(each["loss"])] for each in (attempts[0], before, again))
        if len(last) and len(begun) and abs(begun[0] - last[-1]) < abs(begun[0] - at_first[0]):
            did = f"its loss went on from {last[-1]:.4g}, so it loaded its weights, and does not load, or say, its step"
            return did, "Let the program save its step beside its weights, and print it beside its loss.", None
        did = "the program loaded nothing that it had saved"
        remedy = "Let the program save its state, and load it on a restart, by its argument for that if it has one."
        return did, remedy, "run: python train.py $(test -f last.pt && echo --resume last.pt)"
    return None


def lost_to_repeated_steps(facts: RunFacts) -> LostTime | None:
    """Time of steps whose work was thrown away."""
    lost_s, repeated = facts.ledger.lost_s, int(facts.history.lost.num_steps.sum())
    if lost_s <= 0:
        return None
    title = "Steps were thrown away and trained again"
    undone = f"{repeated:,} steps were undone by restarts or rollbacks"
    saved = facts.history.of_kind(training.CheckpointEvent)
    if not facts.resolved.is_workload and not saved:
        evidence, setting = [undone], None
        remedy = "Let the program save its state more often: a restart repeats the steps since then."
        if (found := _begun_anew(facts.history)) is not None:
            did, remedy, setting = found
            evidence.append(f"a restart began at the first step again: {did}")
        return LostTime(
            name="lost_steps", title=title, lost_s=lost_s, evidence=tuple(evidence), remedy=remedy, setting=setting
        )
    mttf_s, source = _time_to_failure(facts)
    stall_s = facts.ledger.checkpoint_s / len(saved) if saved else 0.0
    best_s = optimal_interval_s(stall_s=max(stall_s, 1e-3), mttf_s=mttf_s)
    every_s = facts.steps_s / max(1, len(saved))
    is_too_rare = every_s > _RARER * best_s
    return LostTime(
        name="lost_steps",
        title=title,
        lost_s=lost_s,
        evidence=(
            undone,
            f"a checkpoint every {format_duration(every_s)} of training; with a failure every "
            f"{format_duration(mttf_s)} ({source}) the best interval is {format_duration(best_s)}",
        ),
        remedy="Save more often: the interval of Young and Daly loses least."
        if is_too_rare
        else "Remove the cause of the failures; the checkpoint interval is right for this rate.",
        setting=_interval(facts, best_s) if is_too_rare else None,
        saves_s=max(0.0, 1 - best_s / every_s) * lost_s if is_too_rare else None,
    )


def lost_to_gaps(facts: RunFacts) -> LostTime | None:
    """Time outside all terms of the steps: logging, Python, pauses between the steps."""
    lost_s = facts.shares.gaps_s
    if lost_s <= 0:
        return None
    return LostTime(
        name="other",
        title="Logging, and gaps between the steps",
        lost_s=lost_s,
        evidence=(f"a step spends {format_duration(facts.median_of('other_s'))} outside its terms (median)",),
        remedy="Profile some steps, and look at what Python does between them.",
        setting="profile: 20:25" if facts.resolved.is_workload else None,
    )


STOP_CAUSES: tuple[Cause, ...] = (
    lost_to_checkpoints,
    lost_to_evaluation,
    lost_to_callbacks,
    lost_to_start,
    lost_to_restarts,
    lost_to_repeated_steps,
    lost_to_gaps,
)
"""Causes that stop the steps, in the order of the phases of a run."""
