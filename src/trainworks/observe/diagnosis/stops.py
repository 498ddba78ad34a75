"""Causes that keep the run from training at all: start, checkpoints, evaluation, restarts, thrown-away steps, gaps."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise

import numpy as np

from trainworks.observe.diagnosis.lost_time import LostTime
from trainworks.observe.diagnosis.run_facts import Cause, RunFacts
from trainworks.plan.reliability.checkpoint_interval import optimal_interval_s
from trainworks.plan.reliability.defaults import usual_node_mttf
from trainworks.plan.run.plan import USUAL_START_S
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


def first_start(facts: RunFacts) -> LostTime | None:
    """The start that a run pays once, by its parts; its gain is what it took beyond the planner's usual start.

    None where a command records no steps: then it is not known when it began to work.
    """
    taken_s = first_start_s(facts.history)
    if taken_s <= 0 or not (facts.resolved.is_workload or facts.rows):
        return None
    parts = dict(_start_parts(facts))
    longest = max(parts, key=parts.__getitem__, default="")
    action, remedy, setting = _START_REMEDIES.get(longest, _START_REMEDIES[""])
    beyond_s = max(0.0, taken_s - USUAL_START_S)
    usual = f"a plan counts on {format_duration(USUAL_START_S)}; paid once: a longer run pays no more for its start"
    return LostTime(
        name="start",
        title="The start takes longer than planned" if beyond_s > 0 else "The accelerators idle before the first step",
        lost_s=taken_s,
        evidence=(*(f"{part} took {format_duration(seconds)}" for part, seconds in parts.items()), usual),
        action=action,
        remedy=remedy,
        setting=setting,
        saves_s=beyond_s,
    )


_MEETING, _PREPARING, _COMPILING = "launching the ranks until all had met", "preparing the data", "compiling"
_START_REMEDIES: Mapping[str, tuple[str, str, str | None]] = {
    _MEETING: (
        "Look at imports, name resolution and the disk of the packages",
        "Ranks meet once they have imported everything and have found the address of the first one.",
        'python -X importtime -c "import torch"',
    ),
    _PREPARING: ("Prepare the data before the run", "The run then uses it.", "trainworks data prepare run.yaml"),
    _COMPILING: ("Keep the cache of compiled code between runs", "", None),
    "": (
        "Look at what opens the data and builds the model",
        "A profile of the first step shows what it waits for.",
        None,
    ),
}
"""What to do about the longest part of a start."""


def lost_to_starts(facts: RunFacts) -> LostTime | None:
    """Time from each later launch to its first step."""
    first_s = first_start_s(facts.history)
    lost_s, launches = facts.ledger.start_s - first_s, len(facts.history.launches)
    if lost_s <= 0 or launches == 1 or not (facts.resolved.is_workload or facts.rows):
        return None
    return LostTime(
        name="start",
        title="The run starts again and again",
        lost_s=lost_s,
        evidence=(
            f"the first of {launches} launches took {format_duration(first_s)}, the others {format_duration(lost_s)}",
        ),
        action="Start fewer times",
        remedy="Keep the caches of data and compiled code between launches.",
        saves_s=lost_s,
    )


def _start_parts(facts: RunFacts) -> Iterator[tuple[str, float]]:
    """Parts of the first start that its events tell apart, and their seconds."""
    launch = facts.history.launches[0]
    ready = _first(launch.events, training.DataReadyEvent)
    prepared_s = float(ready["seconds"]) if ready and not ready.get("cached") and ready.get("seconds") else 0.0
    compiled = _first(launch.events, training.CompiledEvent)
    compiled_s = float(compiled["compile_s"]) if compiled else 0.0
    met = _first(launch.events, training.AttemptEvent)
    if met:
        yield _MEETING, max(0.0, float(met["t"]) - launch.start_at)
    if prepared_s > 0:
        yield _PREPARING, prepared_s
    if compiled_s > 0:
        yield _COMPILING, compiled_s
    if not met or not len(launch.steps):
        return
    later_s = float(launch.steps["t"][0] - launch.steps["step_s"][0]) - float(met["t"])
    if (rest_s := later_s - prepared_s - compiled_s) > 0:
        yield "what came before the first step then", rest_s


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
        action="Save less often" if is_too_often else "Keep the interval, and write faster",
        remedy="The interval of Young and Daly loses least."
        if is_too_often
        else "Write to a local disk first, or to storage with more bandwidth.",
        setting=_interval(facts, best_s) if is_too_often else None,
        saves_s=min(lost_s, gain * facts.steps_s) if is_too_often else None,
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
        action=f"Evaluate every {every:,} steps" if is_too_often else "Evaluate on fewer batches with `eval.steps`",
        remedy=f"They then take {_EVALUATION_SHARE:.0%} of the time of the steps; `eval.steps` makes each shorter."
        if is_too_often
        else "",
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
        action=f"Take `{workload.callbacks[costliest]}` off the steps",
        remedy="Let it work on fewer steps, or in a thread. On an accelerator, reading a loss waits for the device.",
        saves_s=lost_s,
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
        action="Remove the cause of the failures",
        remedy="The report names the first one of each attempt.",
        setting=f"trainworks report {facts.resolved.run_id}",
        saves_s=lost_s,
    )


def _begun_anew(history: History) -> tuple[str, str, str | None] | None:
    """Evidence, action and setting where an attempt of a command began at the first step again; None where none did.

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
            return did, "Let the program save its step beside its weights, and print it beside its loss", None
        did = "the program loaded nothing that it had saved"
        remedy = "Let the program save its state, and load it on a restart, by its argument for that if it has one"
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
        action = "Let the program save its state more often"
        if (found := _begun_anew(facts.history)) is not None:
            did, action, setting = found
            evidence.append(f"a restart began at the first step again: {did}")
        return LostTime(
            name="lost_steps",
            title=title,
            lost_s=lost_s,
            evidence=tuple(evidence),
            action=action,
            remedy="A restart repeats the steps since the state was saved.",
            setting=setting,
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
        action="Save more often" if is_too_rare else "Remove the cause of the failures",
        remedy="The interval of Young and Daly loses least."
        if is_too_rare
        else "The checkpoint interval is right for this rate.",
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
        action="Profile some steps, and look at what Python does between them",
        setting="profile: 20:25" if facts.resolved.is_workload else None,
    )


STOP_CAUSES: tuple[Cause, ...] = (
    lost_to_checkpoints,
    lost_to_evaluation,
    lost_to_callbacks,
    lost_to_starts,
    lost_to_restarts,
    lost_to_repeated_steps,
    lost_to_gaps,
)
"""Causes that stop the steps, in the order of the phases of a run."""
