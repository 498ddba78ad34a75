"""Logs: in the order of time over all ranks, filtered, and as JSON."""

from __future__ import annotations

import json
import resource
from pathlib import Path

import pytest
from typer.testing import CliRunner

import trainworks
from tests.report.conftest import RunWriter
from trainworks.cli.app import app
from trainworks.errors import ArgumentError
from trainworks.observe.log_lines import RunLogs, level_of, time_of
from trainworks.record.run_dir import RunDir

RANK_0 = """\
starting
2026-11-23 10:00:01,000 INFO step 1
2026-11-23 10:00:03,000 WARNING loss is high
  because of this batch
"""
RANK_1 = """\
2026-11-23T10:00:02+00:00 INFO step 1
Traceback (most recent call last):
  File "train.py", line 3
ValueError: bad batch
2026-11-23 10:00:04 DEBUG never reached
"""


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunWriter:
    """Two ranks that write times, in UTC."""
    monkeypatch.setenv("TZ", "UTC")
    run = RunWriter(tmp_path / "runs", None, "train")
    run.launch().finish()
    run.run_dir.rank_log(0).write_text(RANK_0, encoding="utf-8")
    run.run_dir.rank_log(1).write_text(RANK_1, encoding="utf-8")
    return run


def texts(run: RunWriter, **options: object) -> list[str]:
    lines = trainworks.logs(str(run.run_dir.path), **options)  # type: ignore[arg-type]
    return [f"{line.source} {line.text}" for line in lines]


def test_lines_of_all_ranks_come_in_the_order_of_time(run: RunWriter) -> None:
    order = [line.split()[0] for line in texts(run)]
    assert order == ["rank-0", "rank-0", *["rank-1"] * 4, "rank-0", "rank-0", "rank-1"]


def test_the_order_within_a_log_stays_when_its_clock_goes_back(run: RunWriter) -> None:
    run.run_dir.rank_log(1).write_text("2026-11-23 10:00:09 a\n2026-11-23 10:00:00 b\n", encoding="utf-8")
    assert [line[-1] for line in texts(run, rank=1)] == ["a", "b"]


def test_attempts_without_written_times_are_ordered_by_the_starts_of_the_ranks(tmp_path: Path) -> None:
    run = RunWriter(tmp_path, None, "train")
    run.launch().finish()
    for start in ("first", "second"):
        for rank in (1, 0):
            run.run_dir.note_rank_start(rank)
            with run.run_dir.rank_log(rank).open("a", encoding="utf-8") as log:
                log.write(f"{start}\n")
    assert texts(run) == ["rank-0 first", "rank-1 first", "rank-0 second", "rank-1 second"]


def test_a_record_of_an_older_version_is_read(tmp_path: Path) -> None:
    run = RunWriter(tmp_path, None, "train")
    run.launch().finish()
    run.run_dir.rank_log(0).write_text("one\ntwo\n", encoding="utf-8")
    run.run_dir.rank_log(0).with_suffix(".starts").write_text("0\n4\n", encoding="utf-8")
    assert texts(run, attempt=2) == ["rank-0 two"]


def test_errors_have_their_traceback(run: RunWriter) -> None:
    assert texts(run, level="error") == [f"rank-1 {line}" for line in RANK_1.splitlines()[1:4]]


def test_a_level_includes_those_above_it(run: RunWriter) -> None:
    assert len(texts(run, level="warning")) == 5


def test_a_pattern_and_a_time_both_hold(run: RunWriter) -> None:
    assert texts(run, grep="step|batch", since="2026-11-23 10:00:02.5") == ["rank-0   because of this batch"]


def test_a_duration_counts_back_from_now(run: RunWriter) -> None:
    run.run_dir.rank_log(0).write_text("2001-01-01 00:00:00 old\n2999-01-01 00:00:00 new\n", encoding="utf-8")
    assert texts(run, rank=0, since="10m") == ["rank-0 2999-01-01 00:00:00 new"]


def test_all_adds_agents_and_supervisor(run: RunWriter) -> None:
    run.run_dir.node_log(0).write_text("agent\n", encoding="utf-8")
    run.run_dir.supervisor_log.write_text("supervisor\n", encoding="utf-8")
    assert {line.split()[0] for line in texts(run, everything=True)} == {"rank-0", "rank-1", "node-0", "supervisor"}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"grep": "("}, "is not a regular expression"),
        ({"since": "yesterday"}, "neither a duration nor a time"),
        ({"level": "loud"}, "no level `loud`"),
    ],
    ids=["grep", "since", "level"],
)
def test_what_cannot_be_read_is_refused(run: RunWriter, options: dict[str, str], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        texts(run, **options)


def test_the_first_rank_to_write_does_not_count_as_alone(run: RunWriter) -> None:
    assert run.run_dir.read_resolved().processes.world_size == 2
    run.run_dir.rank_log(1).unlink()
    lines = list(RunLogs(run.run_dir).new_lines(everything=True))
    assert [(line.source, line.is_alone) for line in lines] == [("rank-0", False)] * 4


def test_json_has_an_object_per_line(run: RunWriter) -> None:
    answer = CliRunner().invoke(app, ["logs", str(run.run_dir.path), "--json", "--level", "error", "--rank", "1"])
    first, *_ = (json.loads(line) for line in answer.stdout.splitlines())
    assert first == {"at": time_of(RANK_1), "source": "rank-1", "level": "error", "text": RANK_1.splitlines()[1]}


@pytest.mark.parametrize(
    ("line", "level"),
    [
        ("ada:1:2 [0] NCCL WARN Call to connect failed", "warning"),
        ("E1123 10:00:00.123456 9 net.cc:7] refused", "error"),
        ("UserWarning: slow", "warning"),
        ("torch.OutOfMemoryError: CUDA out of memory", "error"),
        ("an error in the words of a sentence", None),
    ],
)
def test_levels_of_common_programs(line: str, level: str | None) -> None:
    assert level_of(line) == level


def test_a_line_of_a_day_that_does_not_exist_has_no_time() -> None:
    assert time_of("2026-02-31 10:00:00 x") is None


def test_a_run_may_have_more_logs_than_a_process_may_open(tmp_path: Path) -> None:
    run_dir = RunDir(tmp_path)
    run_dir.logs.mkdir()
    lines = "".join(f"line {number}\n" for number in range(10_000))
    run_dir.rank_log(0).write_text(lines)
    for rank in range(1, 40):
        run_dir.rank_log(rank).write_text("hello\n")
    most, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (len(list(Path("/proc/self/fd").iterdir())) + 20, hard))
    try:
        found = [line.text for line in RunLogs(run_dir).new_lines(everything=True)]
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
    assert (len(found), found.count("hello")) == (10_039, 39)
    assert [text for text in found if text != "hello"] == lines.splitlines()
