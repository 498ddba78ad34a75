"""How often the hardware of a node fails, compared with what the plan assumes of every node.

    score = (1 + sum_i 2^(-age_i/H)) / (1 + T/MTTF),    T = integral of 2^(-age/H) over the time that jobs held the node

age is the time until now, H the half-life, and MTTF the mean time between failures that the plan assumes. The score is
the posterior mean of the node's failure rate over the assumed rate: with a Gamma prior of shape a = 1 and mean 1/MTTF
(so its rate parameter is b = MTTF) and Poisson failures, the mean is (a + failures)/(b + time). The half-life forgets:
a node that was repaired is as good as any other after some months.

Shape 1 lets 80 % of the nodes fail at 0.1 to 2.3 times the assumed rate, which is about as wide as the fleets that have
published theirs lie apart (`node MTTF` of the catalogue).

Source: Gelman et al., "Bayesian Data Analysis", 3rd edition, section 2.6 (Poisson with exposure); the half-life is an
assumption.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

from trainworks.record.events.log import Event
from trainworks.units import DAY_S

HALF_LIFE_S = 30 * DAY_S
"""Age at which a failure, or an hour without one, counts half."""
REMEMBERED_S = 4 * HALF_LIFE_S
"""Age from which on nothing counts: it would be a sixteenth."""
AVOID_FROM = 2.5
"""Score from which on a node is avoided. One failure never gets there; two within days do on a node with little
history, three on one that has worked for months."""
ONE_INCIDENT_S = 600.0
"""Failures of a node within this time of the one before are one: eight ranks, or two jobs, report the same one."""
HARDWARE_CAUSES = frozenset({"gpu_fault", "node_lost", "node_unhealthy", "agent_lost"})
"""Causes of `job.state` that speak of the node's hardware. A hang, a collective that timed out and a lost peer are seen
by ranks on other nodes, too; a killed rank, an error of its program and a full disk may be the job's own doing."""

_CAUSES = {"nodes_unhealthy": "node_unhealthy"}
"""Event without a cause -> cause of the failure, where it is not called like the event."""


class NodeFailure(NamedTuple):
    """A sign that the hardware of a node of a job failed."""

    at: float
    """Seconds since the epoch."""
    node: int
    """Number among the nodes of the job."""
    cause: str
    """Cause of the failure, `agent_lost`, `node_unhealthy` or `straggler`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeHistory:
    """What is known of the hardware of one node."""

    score: float
    """Failure rate over the assumed one."""
    failures: int
    """Failures that are remembered."""
    held_s: float
    """Time for which jobs have held the node, as far as it is remembered."""
    last_failed_at: float | None = None
    """Time of the newest failure that is remembered, in seconds since the epoch; None without one."""
    last_cause: str | None = None
    """Cause of that failure."""


def node_history(
    failed: Iterable[NodeFailure], held: Iterable[tuple[float, float]], *, now: float, node_mttf_s: float
) -> NodeHistory:
    """History and score of one node; without a failure and without time the score is 1.

    Failures may have any order; those close together count once, and times after `now` as now. `held` has start and end
    of each time for which a job held the node; where they overlap, the time counts once. Times are seconds since the
    epoch, and the assumed mean time between failures of a node is above 0.

    >>> round(node_history([NodeFailure(0.0, 0, "gpu_fault")], [], now=0.0, node_mttf_s=86400.0).score, 2)
    2.0
    """
    since = now - REMEMBERED_S
    failures = sorted(failed)
    ordered = [one.at for one in failures]
    times = ordered[:1] + [after for before, after in pairwise(ordered) if after - before > ONE_INCIDENT_S]
    times = [at for at in times if at >= since]  # the first of each row of failures that follow each other closely
    spans = _union((max(start, since), min(end, now)) for start, end in held)
    weight = sum(_weight(now - at) for at in times)
    scale = HALF_LIFE_S / math.log(2)
    weighted_s = sum(scale * (_weight(now - end) - _weight(now - start)) for start, end in spans)
    return NodeHistory(
        score=(1 + weight) / (1 + weighted_s / node_mttf_s),
        failures=len(times),
        held_s=sum(end - start for start, end in spans),
        last_failed_at=failures[-1].at if times else None,
        last_cause=failures[-1].cause if times else None,
    )


def _weight(age_s: float) -> float:
    return float(2 ** (-max(0.0, age_s) / HALF_LIFE_S))


def _union(spans: Iterable[tuple[float, float]]) -> list[tuple[float, float]]:
    """The spans without their overlaps; those that end before they start are left out."""
    merged: list[tuple[float, float]] = []
    for start, end in sorted(span for span in spans if span[0] < span[1]):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], end))
        else:
            merged.append((start, end))
    return merged


def hardware_failures(events: Iterable[Event]) -> list[NodeFailure]:
    """Signs of failed hardware in the events of a run, in their order.

    They are: an agent that was killed (one that ends by itself has judged its ranks), a failed health check, a
    straggler, and a failure with one of `HARDWARE_CAUSES`. After a job was resized its nodes are numbered anew; the
    numbers here are those among all its nodes.

    Raises:
        KeyError, TypeError, ValueError, IndexError: an event is not as Trainworks writes it.
    """
    found: list[NodeFailure] = []
    places: Sequence[int] | None = None
    for event in events:
        match event["kind"]:
            case "submitted":
                places = None
            case "resized":
                places = event["places"]
        numbers = _failed_nodes(event)
        if places is not None and event["kind"] != "nodes_unhealthy":
            numbers = [places[number] for number in numbers]
        cause = str(event.get("cause") or _CAUSES.get(event["kind"], event["kind"]))
        found += [NodeFailure(float(event["t"]), int(number), cause) for number in numbers]
    return found


def _failed_nodes(event: Event) -> Sequence[int]:
    """Numbers of the nodes whose hardware an event reports as failed, as they were counted at that time."""
    match event["kind"]:
        case "nodes_unhealthy":
            nodes: Sequence[int] = event["nodes"]
            return nodes
        case "straggler":
            return (event["node"],)
        case "agent_lost" if event["exit_code"] < 0:
            return (event["node"],)
        case "failure" if event.get("cause") in HARDWARE_CAUSES and event.get("node") is not None:
            return (event["node"],)
    return ()


def nodes_to_avoid(scores: Mapping[str, float], *, needed: int) -> list[str]:
    """Names of the nodes with a score of at least `AVOID_FROM`, worst first, so that `needed` others are left.

    `scores` are those of every node that the job could use; if they are as many as needed or fewer, none is avoided.
    """
    worst = sorted(scores, key=lambda name: (-scores[name], name))
    spare = max(0, len(scores) - needed)
    return [name for name in worst[:spare] if scores[name] >= AVOID_FROM]
