"""A bar that shows up where somebody watches, and only when something takes long."""

from __future__ import annotations

import pytest

from trainworks.report.rendering.progress_bar import waiting


def test_nothing_is_printed_where_nobody_watches(capsys: pytest.CaptureFixture[str]) -> None:
    with waiting("planning") as report:
        report(0.5, "planning something else")
    assert capsys.readouterr() == ("", "")


def test_an_error_passes_through() -> None:
    with pytest.raises(ZeroDivisionError), waiting("planning"):
        raise ZeroDivisionError
