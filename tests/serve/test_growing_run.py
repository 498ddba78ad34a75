"""A run that grows while it is watched: what is read piece by piece, and a report that takes long."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.report.conftest import RunWriter, make_plan
from trainworks.api.observing import run_views
from trainworks.api.observing.run_views import RunView
from trainworks.api.run_handle import Run

pieces = st.lists(st.tuples(st.sampled_from(["steps", "evaluation", "restart"]), st.integers(0, 5)), max_size=12)


def write(writer: RunWriter, kind: str, number: int) -> None:
    if kind == "restart":
        writer.wait(1.0).attempt(from_step=max(0, writer.step - number))
    elif kind == "evaluation":
        writer.steps(number, evaluation=3.0)
    else:
        writer.steps(number)


@given(pieces=pieces)
def test_a_run_that_was_watched_from_its_start_shows_what_a_first_visit_shows(
    tmp_path_factory: pytest.TempPathFactory, pieces: list[tuple[str, int]]
) -> None:
    writer = RunWriter(tmp_path_factory.mktemp("grows"), make_plan(), None).launch()
    watched = RunView(Run(writer.run_dir.path))
    for kind, number in pieces:
        write(writer, kind, number)
        first_visit = RunView(Run(writer.run_dir.path))
        for lost in (False, True):
            shown = watched.metrics(("loss",), points=1000, lost=lost)
            assert shown == first_visit.metrics(("loss",), points=1000, lost=lost)


def test_while_a_long_report_is_made_visitors_get_the_one_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = RunWriter(tmp_path, make_plan(), None).launch().steps(20)
    view, begun, may_end = RunView(Run(writer.run_dir.path)), threading.Event(), threading.Event()
    monkeypatch.setattr(run_views, "_REPORT_SHARE", float("inf"))
    before, build = view.report(), run_views.build_report

    def build_slowly(*args: object, **keys: object) -> object:
        begun.set()
        assert may_end.wait(60)
        return build(*args, **keys)

    monkeypatch.setattr(run_views, "build_report", build_slowly)
    writer.steps(20)
    found = []
    maker = threading.Thread(target=lambda: found.append(view.report()))
    maker.start()
    assert begun.wait(60)
    assert view.report() is before
    assert len(view.metrics(("loss",), points=1000)["step"]) == 40, "a report holds no other reader up"
    stamp = view.stamp()
    may_end.set()
    maker.join()
    assert found[0] is not before and view.report() is found[0]
    assert view.stamp() != stamp, "pages of the old report are made again"
