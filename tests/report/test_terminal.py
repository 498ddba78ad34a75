"""The report in a terminal: 80 columns, readable without colour, and nothing in it is markup."""

from __future__ import annotations

import io
import re
from collections.abc import Callable
from typing import Any

from rich.console import Console

from trainworks.record.metrics import LoggedSteps, Reading, append_metrics
from trainworks.report.rendering.renderer import build_document
from trainworks.report.rendering.text import print_document, render_text
from trainworks.report.run_report import brief
from trainworks.report.runs.summary import Report

RunStart = Callable[..., Any]


def printed(report: Report, **options: Any) -> str:
    """What a terminal of 80 columns shows."""
    console = Console(file=io.StringIO(), width=80, **options)
    print_document(build_document(report), console)
    return console.file.getvalue()  # type: ignore[attr-defined, no-any-return]


def test_the_report_reads_like_the_golden_file(finished_run: Any, golden: Callable[[str, str], None]) -> None:
    text = "\n".join(line.rstrip() for line in printed(finished_run.report()).splitlines()) + "\n"
    golden("report_terminal.txt", text)


def test_no_line_is_wider_than_80_columns_on_a_wide_screen(finished_run: Any) -> None:
    console = Console(file=io.StringIO(), width=200)
    print_document(build_document(finished_run.report()), console)
    lines = console.file.getvalue().splitlines()  # type: ignore[attr-defined]
    assert max(len(line) for line in lines) <= 80


def test_colour_adds_nothing_but_colour(finished_run: Any) -> None:
    report = finished_run.report()
    coloured = printed(report, force_terminal=True, color_system="truecolor")
    assert "\x1b[" in coloured
    lines = re.sub(r"\x1b\[[\d;]*m", "", coloured).splitlines()
    assert [line.rstrip() for line in lines] == printed(report).splitlines()


def test_no_color_leaves_no_colour(finished_run: Any) -> None:
    text = printed(finished_run.report(), force_terminal=True, no_color=True)
    assert "\x1b[3" not in text.replace("\x1b[3m", "")


def test_brackets_and_escapes_of_a_run_are_shown_as_text(start_run: RunStart) -> None:
    run = start_run().launch().steps(1).fail(message="[red]not markup[/red] \x1b[2J")
    text = printed(run.report(), force_terminal=True)
    assert "[red]not markup[/red] [2J" in text
    assert "\x1b[2J" not in text


def test_a_terminal_without_block_characters_gets_ascii_bars(finished_run: Any) -> None:
    file = io.TextIOWrapper(io.BytesIO(), encoding="ascii", write_through=True)
    print_document(build_document(finished_run.report()), Console(file=file, width=80))
    assert b"####" in file.buffer.getvalue()


def test_a_failed_run_begins_with_who_failed(start_run: RunStart) -> None:
    run = start_run().launch().steps(5).fail(cause="out of memory", rank=3).status("FAILED")
    text = " ".join(printed(run.report()).split())
    assert text.startswith("Mend the cause, then `trainworks resume stdlib-lm-1`: rank 3 failed after ")
    assert "s, out of memory." in text


def test_a_failure_before_any_attempt_is_shown(start_run: RunStart) -> None:
    run = start_run().event("submitted").fail(attempt=None, rank=None, cause="environment", message="no such source")
    text = printed(run.status("FAILED").report())
    assert "node 0 failed after" in text and "environment." in text
    assert "no such source" in text


def test_a_command_is_shown_without_plan_and_ledger(start_run: RunStart) -> None:
    run = start_run(command="torchrun train.py").event("submitted").wait(5.0).status("SUCCEEDED")
    text = printed(run.report())
    assert "$ torchrun train.py" in text
    assert "Planned and measured" not in text
    assert "Where the time went" not in text


def brief_lines(report: Report) -> list[str]:
    return render_text(brief(report, f"runs/{report.run_id}", f"trainworks report {report.run_id}"), width=80).split(
        "\n"
    )


def test_a_run_ends_with_a_verdict_and_at_most_ten_lines(finished_run: Any, golden: Callable[[str, str], None]) -> None:
    lines = brief_lines(finished_run.report())
    assert len(lines) <= 10 and lines[0] == "stdlib-lm-1  SUCCEEDED after 58 s, 300 of 300 steps"
    assert max(map(len, lines)) <= 80
    golden("brief.txt", "\n".join(line.rstrip() for line in lines) + "\n")


def test_the_end_of_a_failed_run_names_who_failed_and_the_restarts_before(start_run: RunStart) -> None:
    run = start_run().launch().steps(5).fail(rank=1).attempt().steps(5).fail(cause="out of memory", rank=3)
    lines = brief_lines(run.status("FAILED").report())
    assert lines[0] == "stdlib-lm-1  FAILED after 4.19 s, 10 of 300 steps"
    assert "rank 3 failed after 4.19 s, out of memory." in " ".join(lines[1:3])
    (restarts,) = [line for line in lines if line.startswith("restarts")]
    assert restarts.endswith("1  rank 1 killed")


def test_the_end_of_a_command_without_steps_is_its_verdict_and_its_record(start_run: RunStart) -> None:
    run = start_run(command="torchrun train.py").event("submitted").wait(5.0).status("SUCCEEDED")
    first, *_, last = brief_lines(run.report())
    assert first == "stdlib-lm-1  SUCCEEDED after 5 s"
    assert last == "record: runs/stdlib-lm-1, page: report.html; more: trainworks report stdlib-lm-1"


def test_a_command_has_no_time_of_steps_and_evaluations_of_which_it_says_no_beginning(start_run: RunStart) -> None:
    run = start_run(command="python train.py").launch().event("metrics_source", source="rank-0.log")
    readings: list[Reading] = [{"step": n, "t": run.at + 90.0 * n, "loss": 2.5, "eval_loss": 2.6} for n in range(3)]
    rows = [*LoggedSteps(1).rows(readings[:2]), *LoggedSteps(2).rows(readings[2:])]
    append_metrics(run.run_dir.metrics_file, rows)
    report = run.wait(200.0).finish().report()
    assert ([row["step_s"] for row in rows], report.training.step_s) == ([0.0, 90.0, 0.0], 90.0)
    assert re.search(r"^evaluations +3 *$", printed(report), re.MULTILINE)
