"""Progress that shows up on a terminal, and only when something takes long."""

from __future__ import annotations

import os
import pty
import sys

import pytest

from trainworks.report.rendering.progress_bar import waiting, working


def test_nothing_is_printed_where_nobody_watches(capsys: pytest.CaptureFixture[str]) -> None:
    with waiting("planning") as report:
        report(0.5, "planning something else")
    assert capsys.readouterr() == ("", "")


def test_an_error_passes_through() -> None:
    with pytest.raises(ZeroDivisionError), waiting("planning"):
        raise ZeroDivisionError


def test_work_of_unknown_length_is_named_on_a_terminal_alone(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with working("planning", after_s=0.0):
        pass
    assert capsys.readouterr() == ("", "")
    ours, its = pty.openpty()
    monkeypatch.setenv("TERM", "xterm")
    with os.fdopen(its, "w") as terminal:
        monkeypatch.setattr(sys, "stderr", terminal)
        shown = b""
        with working("planning", after_s=0.0):
            while b"planning" not in shown:
                shown += os.read(ours, 1000)
    os.close(ours)


def test_work_that_takes_no_time_names_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    ours, its = pty.openpty()
    monkeypatch.setenv("TERM", "xterm")
    with os.fdopen(its, "w") as terminal:
        monkeypatch.setattr(sys, "stderr", terminal)
        with working("planning", after_s=3600.0):
            pass
        terminal.write("end")
        terminal.flush()
        assert os.read(ours, 1000) == b"end"
    os.close(ours)
