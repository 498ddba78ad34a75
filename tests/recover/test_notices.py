"""A notice is answered by a checkpoint if the measured save fits into the time left, else by none."""

from __future__ import annotations

import pytest

from trainworks.recover.decisions import answer_notice

SPOT = {"kind": "notice", "node": 1, "cloud": "aws", "what": "spot interruption (terminate)", "ends": True}


def saved(step: int, seconds: float) -> dict:
    """A `checkpoint` event."""
    return {"kind": "checkpoint", "step": step, "stall_s": 0.0, "write_s": seconds}


@pytest.mark.parametrize(
    ("left_s", "saves_s", "interval_s", "grace_s", "saves"),
    [
        (120.0, [10.0], 1.0, 120.0, True),  # AWS
        (30.0, [20.0], 1.0, 120.0, True),  # GCP, Azure: 1 + 1 + 25 s
        (30.0, [25.0], 1.0, 120.0, False),  # 1 + 1 + 31.25 s
        (30.0, [20.0], 10.0, 120.0, False),  # the ranks agree on a step too late
        (120.0, [20.0], 1.0, 20.0, False),  # the user's own limit
        (30.0, [90.0, 5.0, 5.0, 5.0], 1.0, 120.0, True),  # the last three count
        (30.0, [5.0, 90.0, 5.0], 1.0, 120.0, False),  # the longest of them
        (30.0, [], 1.0, 120.0, True),  # never measured: tried
        (-5.0, [0.1], 0.0, 120.0, False),  # the node should be gone
    ],
)
def test_the_decision(left_s, saves_s, interval_s, grace_s, saves) -> None:
    events = [saved(10 * (index + 1), each) for index, each in enumerate(saves_s)]
    notice = SPOT | {"deadline_at": 1000.0 + left_s}
    answer = answer_notice(notice, events, now=1000.0, logging_interval_s=interval_s, grace_s=grace_s)
    assert answer["saves"] is saves


def test_the_words_say_what_is_done_and_why() -> None:
    arguments = {"now": 1000.0, "logging_interval_s": 1.0, "grace_s": 120.0}
    notice = SPOT | {"deadline_at": 1030.0}
    assert answer_notice(notice, [saved(400, 4.0)], **arguments)["message"] == (
        "AWS: spot interruption (terminate) of node 1 in 30 s; saving, which needs up to 7 s"
    )
    assert answer_notice(notice, [saved(400, 40.0)], **arguments)["message"] == (
        "AWS: spot interruption (terminate) of node 1 in 30 s; no emergency checkpoint, which needs up to 52 s: "
        "it continues from step 400"
    )
    assert answer_notice(notice, [], **arguments)["message"].endswith(
        "in 30 s; saving, though no save was measured yet"
    )


def test_without_a_deadline_the_grace_of_the_job_is_the_limit() -> None:
    notice = SPOT | {"deadline_at": None}
    answer = answer_notice(notice, [], now=1000.0, logging_interval_s=1.0, grace_s=60.0)
    assert answer["left_s"] == 60.0
