"""The score of a node: what its hardware has done under jobs, against what the plan assumes of every node."""

from __future__ import annotations

import math
from typing import Any

import pytest

from trainworks.recover.node_history import (
    AVOID_FROM,
    HALF_LIFE_S,
    ONE_INCIDENT_S,
    REMEMBERED_S,
    NodeFailure,
    hardware_failures,
    node_history,
    nodes_to_avoid,
)
from trainworks.units import DAY_S

NOW = 1e9
MTTF_S = 150 * DAY_S
ALWAYS = [(0.0, NOW)]


def lost(*times: float) -> list[NodeFailure]:
    return [NodeFailure(at, 0, "node_lost") for at in times]


@pytest.mark.parametrize(
    ("failed_ago_s", "held", "score"),
    [
        ([], [], 1.0),
        ([0.0], [], 2.0),
        ([HALF_LIFE_S], [], 1.5),
        ([HALF_LIFE_S, 0.0], [], 2.5),
        ([REMEMBERED_S + 1], [], 1.0),
        ([-60.0], [], 2.0),
        # a month's work in the last month: (1 - 1/2) half-lives / ln 2
        ([], [(NOW - HALF_LIFE_S, NOW)], 1 / (1 + 0.5 * HALF_LIFE_S / math.log(2) / MTTF_S)),
        ([0.0], [(NOW - HALF_LIFE_S, NOW)], 2 / (1 + 0.5 * HALF_LIFE_S / math.log(2) / MTTF_S)),
        ([], [(NOW - HALF_LIFE_S, NOW)] * 2, 1 / (1 + 0.5 * HALF_LIFE_S / math.log(2) / MTTF_S)),
        ([], ALWAYS, 1 / (1 + (15 / 16) * HALF_LIFE_S / math.log(2) / MTTF_S)),
        ([], [(NOW, NOW - DAY_S), (NOW + DAY_S, NOW + 2 * DAY_S)], 1.0),
    ],
    ids=[
        "nothing-known",
        "one-now",
        "one-half-life-ago",
        "an-old-and-a-new-one",
        "forgotten",
        "a-clock-ahead",
        "work-without-failure",
        "work-and-a-failure",
        "two-jobs-at-once",
        "work-forever",
        "times-that-make-no-sense",
    ],
)
def test_the_score(failed_ago_s: list[float], held: list[tuple[float, float]], score: float) -> None:
    history = node_history(lost(*(NOW - ago for ago in failed_ago_s)), held, now=NOW, node_mttf_s=MTTF_S)
    assert history.score == pytest.approx(score)


def test_what_is_remembered_is_counted() -> None:
    failed = [*lost(NOW - 3 * ONE_INCIDENT_S, NOW - REMEMBERED_S - DAY_S), NodeFailure(NOW, 0, "gpu_fault")]
    history = node_history(failed, [*ALWAYS, (NOW - 60.0, NOW)], now=NOW, node_mttf_s=MTTF_S)
    assert (history.failures, history.held_s) == (2, REMEMBERED_S)
    assert (history.last_failed_at, history.last_cause) == (NOW, "gpu_fault")
    forgotten = node_history(lost(NOW - REMEMBERED_S - DAY_S), [], now=NOW, node_mttf_s=MTTF_S)
    assert (forgotten.failures, forgotten.last_failed_at, forgotten.last_cause) == (0, None, None)


def test_a_row_of_failures_is_one_incident() -> None:
    row = lost(*(NOW - number * 0.9 * ONE_INCIDENT_S for number in range(8)))
    assert node_history(row, [], now=NOW, node_mttf_s=MTTF_S).failures == 1


def test_one_failure_is_never_enough_to_avoid_a_node_and_two_at_once_are() -> None:
    assert node_history(lost(NOW), [], now=NOW, node_mttf_s=MTTF_S).score < AVOID_FROM
    twice = node_history(lost(NOW - DAY_S, NOW), [(NOW - DAY_S, NOW)], now=NOW, node_mttf_s=MTTF_S)
    assert twice.score >= AVOID_FROM
    days = [lost(*(NOW - day * DAY_S for day in range(count))) for count in (2, 3)]
    worked = [node_history(failed, ALWAYS, now=NOW, node_mttf_s=MTTF_S) for failed in days]
    assert worked[0].score < AVOID_FROM <= worked[1].score


def event(kind: str, **fields: Any) -> dict[str, Any]:
    return {"t": 5.0, "kind": kind} | fields


@pytest.mark.parametrize(
    ("written", "nodes"),
    [
        ([event("agent_lost", node=1, exit_code=-9)], [1]),
        ([event("agent_lost", node=1, exit_code=1)], []),
        ([event("nodes_unhealthy", nodes=[0, 2], message="no GPU")], [0, 2]),
        ([event("straggler", rank=9, node=1)], [1]),
        ([event("failure", node=3, cause="gpu_fault")], [3]),
        ([event("failure", node=3, cause="node_lost", rank=None)], [3]),
        *(
            ([event("failure", node=3, cause=cause)], [])
            for cause in ("user_error", "oom", "diverged", "hang", "nccl_timeout", "peer_lost", "killed", "disk_full")
        ),
        ([event("notice_answered", node=0)], []),
        ([event("resized", places=[0, 2, 3]), event("straggler", node=1)], [2]),
        ([event("resized", places=[1, 2]), event("nodes_unhealthy", nodes=[0])], [0]),
        ([event("resized", places=[0, 2]), event("submitted"), event("straggler", node=1)], [1]),
        ([event("failure", cause="gpu_fault"), event("failure", cause="gpu_fault", node=None)], []),
    ],
)
def test_only_signs_of_failed_hardware_count(written: list[dict[str, Any]], nodes: list[int]) -> None:
    assert [failure.node for failure in hardware_failures(written)] == nodes


def test_a_failure_has_the_cause_that_its_event_names() -> None:
    written = [
        event("agent_lost", node=1, exit_code=-9),
        event("nodes_unhealthy", nodes=[0]),
        event("straggler", node=1),
        event("failure", node=3, cause="gpu_fault"),
    ]
    causes = [failure.cause for failure in hardware_failures(written)]
    assert causes == ["agent_lost", "node_unhealthy", "straggler", "gpu_fault"]


@pytest.mark.parametrize(
    ("scores", "needed", "avoided"),
    [
        ({"a": 1.0, "b": 3.0, "c": 4.0}, 1, ["c", "b"]),
        ({"a": 1.0, "b": 3.0, "c": 4.0}, 2, ["c"]),
        ({"a": 1.0, "b": 3.0, "c": 4.0}, 3, []),
        ({"a": 1.0, "b": 3.0, "c": 4.0}, 9, []),
        ({"a": 2.0, "b": 2.4}, 0, []),
        ({"b": 3.0, "a": 3.0}, 1, ["a"]),
        ({}, 0, []),
    ],
)
def test_enough_nodes_are_left(scores: dict[str, float], needed: int, avoided: list[str]) -> None:
    assert nodes_to_avoid(scores, needed=needed) == avoided
