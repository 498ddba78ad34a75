"""events.jsonl: written by many, read while it is written, never in half lines."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainworks.record.events import append_event, read_events, read_lines_from
from trainworks.record.run_dir import RunDir

APPEND_200 = """
import sys
from pathlib import Path
from trainworks.record.events import append_event
for number in range(200):
    append_event(Path(sys.argv[1]), "sample", number=number, text="x" * (number * 37 % 5000))
"""
LINES = st.lists(
    st.one_of(st.just('{"kind": "state"}'), st.just('{"kind": "st'), st.just(""), st.just("[1]"), st.just("\x00\x00")),
    max_size=8,
)


@pytest.fixture
def events(run_dir: RunDir) -> Path:
    """The file of events of a new run."""
    return run_dir.events_file


def test_an_event_carries_its_kind_its_time_and_its_writer(events: Path) -> None:
    append_event(events, "stopped", step=7)
    (event,) = read_events(events)
    assert event == {
        "t": pytest.approx(events.stat().st_mtime, abs=5),
        "kind": "stopped",
        "writer": os.getpid(),
        "step": 7,
    }


def test_concurrent_writers_never_interleave(events: Path) -> None:
    writers = [subprocess.Popen([sys.executable, "-c", APPEND_200, events]) for _ in range(4)]
    assert [writer.wait() for writer in writers] == [0, 0, 0, 0]
    numbers = {writer.pid: [] for writer in writers}
    for event in read_events(events):
        numbers[event["writer"]].append((event["number"], len(event["text"])))
    assert all(seen == [(n, n * 37 % 5000) for n in range(200)] for seen in numbers.values())


def test_a_torn_last_line_is_left_out(events: Path) -> None:
    append_event(events, "stopped", step=7)
    with events.open("a") as file:
        file.write('{"kind": "finis')
    assert [event["kind"] for event in read_events(events)] == ["stopped"]


def test_an_event_after_a_torn_line_is_read(events: Path) -> None:
    events.write_text('{"kind": "finis')
    append_event(events, "stopped", step=7)
    assert [event["kind"] for event in read_events(events)] == ["stopped"]


def test_a_run_without_events_has_none(events: Path) -> None:
    assert read_events(events) == []


def test_a_line_is_read_once_it_is_complete(events: Path) -> None:
    events.write_text('{"a": 1}\n{"b"')
    rows, offset = read_lines_from(events, 0)
    with events.open("a") as file:
        file.write(": 2}\n")
    assert (rows, read_lines_from(events, offset)[0]) == ([{"a": 1}], [{"b": 2}])


@given(LINES, st.integers(0, 60))
def test_reading_in_two_parts_is_reading_once(
    tmp_path_factory: pytest.TempPathFactory, lines: list[str], cut: int
) -> None:
    data = "".join(line + "\n" for line in lines).encode()
    path = tmp_path_factory.mktemp("events") / "events.jsonl"
    path.write_bytes(data[:cut])
    first, offset = read_lines_from(path, 0)
    path.write_bytes(data)
    second, end = read_lines_from(path, offset)
    assert (first + second, end) == (read_lines_from(path, 0)[0], len(data))


@given(st.text(), st.floats(allow_nan=False))
def test_any_text_and_number_comes_back(tmp_path_factory: pytest.TempPathFactory, text: str, number: float) -> None:
    path = tmp_path_factory.mktemp("events") / "events.jsonl"
    append_event(path, "sample", text=text, number=number)
    (event,) = read_events(path)
    assert (event["text"], event["number"]) == (text, number)


def test_each_event_is_one_line(events: Path) -> None:
    append_event(events, "failure", traceback="first\nsecond\r\nthird\u2028fourth")
    assert len(events.read_text().splitlines()) == 1
    assert json.loads(events.read_text())["traceback"] == "first\nsecond\r\nthird\u2028fourth"
