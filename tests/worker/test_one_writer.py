"""Of two attempts of one run, the one that started last writes the record; the other writes nothing more."""

from __future__ import annotations

import os
import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.backends.beds import wait_until
from tests.fakes import read_rows
from tests.worker.harness import TinyRun, events
from trainworks.errors import SupersededError
from trainworks.host import process
from trainworks.measure.drill.outcome import check_record
from trainworks.record.events.log import append_event, read_events
from trainworks.record.exit_code import ExitCode
from trainworks.record.fence import AttemptFence, agent_is_superseded

OWN = {"kind": "attempt", "rendezvous": "a:1"}
OTHER = {"kind": "attempt", "rendezvous": "b:1"}
LAUNCH = {"kind": "submitted"}


@pytest.mark.parametrize(
    ("record", "is_superseded"),
    [
        ([OTHER], False),
        ([OTHER, OWN], False),
        ([LAUNCH, OWN], False),
        ([OWN, {"kind": "failure"}], False),
        ([OWN, OTHER], True),
        ([OWN, LAUNCH], True),
        ([OWN, OTHER, {"kind": "checkpoint"}], True),
    ],
)
def test_an_attempt_is_given_up_if_another_start_follows_it(
    tmp_path: Path, record: list[dict[str, Any]], is_superseded: bool
) -> None:
    fence = AttemptFence(tmp_path / "events", rendezvous="a:1")
    for event in record:
        append_event(tmp_path / "events", event)
        found = fence.is_superseded
    assert found is is_superseded
    if is_superseded:
        with pytest.raises(SupersededError):
            fence.check()


@pytest.mark.parametrize(
    ("since", "is_superseded"),
    [
        ([], False),
        ([{"kind": "agent_started", "node": 1, "writer": 7}], False),
        ([{"kind": "agent_started", "node": 0, "writer": 8}], False),
        ([{"kind": "agent_started", "node": 1, "writer": 8}], True),
        ([{"kind": "submitted", "writer": 9}], True),
    ],
)
def test_an_agent_is_given_up_if_another_one_of_its_node_follows(
    since: list[dict[str, Any]], is_superseded: bool
) -> None:
    assert agent_is_superseded(since, 1, 7) is is_superseded


def test_an_attempt_that_was_out_of_reach_and_returns_writes_nothing_more(new_run) -> None:
    run: TinyRun = new_run(workload__train_for="100000 steps", checkpoint__every="6 steps")
    with ThreadPoolExecutor(1) as thread:
        first = thread.submit(run.train, until=run.step_is_recorded(12), kill=signal.SIGSTOP)
        wait_until(lambda: run.step_is_recorded(12)() and are_stopped(run))
        returned: list[int] = []

        def is_over() -> bool:
            """Let the first attempt go on once the second trains; end the second after the first."""
            if not returned and any(row["attempt"] == 2 for row in read_rows(run.run_dir.metrics_file)):
                returned.extend(events(run, "attempt")[0]["pids"])
                for pid in returned:
                    os.kill(pid, signal.SIGCONT)
            return first.done()

        run.train(until=is_over)
        assert int(ExitCode.SUPERSEDED) in set(first.result())
    first_attempt, second = events(run, "attempt")
    assert (first_attempt["attempt"], second["attempt"]) == (1, 2)
    record = read_events(run.run_dir.events_file)
    assert [e for e in record if e["t"] > second["t"] and e["writer"] in first_attempt["pids"]] == []
    assert check_record(read_rows(run.run_dir.metrics_file), 0).steps_twice == 0


def are_stopped(run: TinyRun) -> bool:
    """Whether all ranks of the first attempt are."""
    return all(process.state(pid) == "T" for pid in events(run, "attempt")[0]["pids"])
