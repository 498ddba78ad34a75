"""events.jsonl: written by many, read while it is written, never in half lines."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import get_args, get_type_hints

import pytest
from hypothesis import given
from hypothesis import strategies as st

import trainworks
from trainworks.record.events.job import StoppedEvent
from trainworks.record.events.log import Event, append_event, of_kind, read_events, read_lines_from
from trainworks.record.run_dir import RunDir

APPEND_200 = """
import sys
from pathlib import Path
from trainworks.record.events.log import append_event
for number in range(200):
    append_event(Path(sys.argv[1]), {"kind": "sample", "number": number, "text": "x" * (number * 37 % 5000)})
"""
LINES = st.lists(
    st.one_of(st.just('{"kind": "state"}'), st.just('{"kind": "st'), st.just(""), st.just("[1]"), st.just("\x00\x00")),
    max_size=8,
)


KINDS = {get_args(event.__annotations__["kind"])[0]: event for event in get_args(Event)}
JSON = st.none() | st.booleans() | st.integers() | st.text() | st.lists(st.text())
CHANGES = st.lists(st.fixed_dictionaries({"key": st.text(), "before": JSON, "after": JSON}))
SOURCE = Path(trainworks.__file__).parent


def whole_event(kind: str) -> st.SearchStrategy[Event]:
    """Events of a kind, with all of its fields."""
    fields = {name: hint for name, hint in get_type_hints(KINDS[kind]).items() if name not in ("t", "writer")}
    return st.fixed_dictionaries(
        {name: CHANGES if name == "changes" else st.from_type(hint).map(as_json) for name, hint in fields.items()}
    )


def as_json(value: object) -> object:
    """A value of an event; of all the mappings that hypothesis knows, JSON has the dict alone."""
    return dict(value) if isinstance(value, Mapping) else value


def kinds_written(file: Path) -> Iterator[str]:
    """Kinds of the events that a file makes."""
    text = file.read_text(encoding="utf-8")
    if "trainworks.record.events" not in text:
        return
    for node in ast.walk(ast.parse(text)):
        pairs: list[tuple[str | None, ast.expr]] = []
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id.endswith("Event"):
            pairs = [(keyword.arg, keyword.value) for keyword in node.keywords]
        elif isinstance(node, ast.Dict):
            pairs = [(getattr(key, "value", None), value) for key, value in zip(node.keys, node.values, strict=True)]
        yield from (value.value for name, value in pairs if name == "kind" and isinstance(value, ast.Constant))


@pytest.fixture
def events(run_dir: RunDir) -> Path:
    """The file of events of a new run."""
    return run_dir.events_file


def test_an_event_carries_its_kind_its_time_and_its_writer(events: Path) -> None:
    before = time.time()
    append_event(events, {"kind": "stopped", "step": 7})
    after = time.time()
    (event,) = read_events(events)
    assert before <= event.pop("t") <= after
    assert event == {"kind": "stopped", "writer": os.getpid(), "step": 7}


def test_concurrent_writers_never_interleave(events: Path) -> None:
    writers = [subprocess.Popen([sys.executable, "-c", APPEND_200, events]) for _ in range(4)]
    assert [writer.wait() for writer in writers] == [0, 0, 0, 0]
    numbers = {writer.pid: [] for writer in writers}
    for event in read_events(events):
        numbers[event["writer"]].append((event["number"], len(event["text"])))
    assert all(seen == [(n, n * 37 % 5000) for n in range(200)] for seen in numbers.values())


def test_a_torn_last_line_is_left_out(events: Path) -> None:
    append_event(events, {"kind": "stopped", "step": 7})
    with events.open("a") as file:
        file.write('{"kind": "finis')
    assert [event["kind"] for event in read_events(events)] == ["stopped"]


def test_an_event_after_a_torn_line_is_read(events: Path) -> None:
    events.write_text('{"kind": "finis')
    append_event(events, {"kind": "stopped", "step": 7})
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


@given(st.one_of(map(whole_event, KINDS)))
def test_an_event_of_any_kind_comes_back(tmp_path_factory: pytest.TempPathFactory, written: Event) -> None:
    path = tmp_path_factory.mktemp("events") / "events.jsonl"
    append_event(path, written)
    (event,) = read_events(path)
    assert of_kind([event], KINDS[written["kind"]]) == [event]
    assert json.dumps({name: event[name] for name in written}) == json.dumps(written)


def test_the_source_appends_the_declared_kinds_and_no_others() -> None:
    assert {kind for file in SOURCE.rglob("*.py") for kind in kinds_written(file)} == set(KINDS)


def test_kinds_and_fields_of_other_versions_are_kept(events: Path) -> None:
    rows = [
        {"kind": "from_a_newer_version", "x": [1]},
        {"kind": "stopped", "step": 7, "new": None},
        {"kind": "failure"},
    ]
    events.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert read_events(events) == rows
    assert of_kind(rows, StoppedEvent) == rows[1:2]


def test_a_line_without_a_kind_is_left_out(events: Path) -> None:
    events.write_text('{"t": 1}\n{"kind": "stopped"}\n')
    assert read_events(events) == [{"kind": "stopped"}]


def test_each_event_is_one_line(events: Path) -> None:
    append_event(events, {"kind": "failure", "traceback": "first\nsecond\r\nthird\u2028fourth"})
    assert len(events.read_text().splitlines()) == 1
    assert json.loads(events.read_text())["traceback"] == "first\nsecond\r\nthird\u2028fourth"
