"""What the nodes of another engine printed last, kept with the run."""

from __future__ import annotations

from collections.abc import Iterator

from tests.backends.small_backend import Site, SmallBackend
from trainworks.backends.kept_output import keep_output, with_kept_output
from trainworks.errors import UnreachableError
from trainworks.record.run_dir import RunDir


class _Printer(SmallBackend):
    def last_output(self, handle: str) -> Iterator[str]:
        yield f"{handle} said"
        yield ""


class _Silent(SmallBackend):
    def last_output(self, handle: str) -> Iterator[str]:
        raise UnreachableError("no answer")


def test_the_last_lines_are_shown_once_the_engine_has_none(run_dir: RunDir) -> None:
    keep_output(_Printer(Site()), "7", run_dir)
    assert list(with_kept_output(["still here"], run_dir)) == ["still here"]
    assert list(with_kept_output([], run_dir)) == ["7 said", ""]


def test_an_engine_that_does_not_answer_keeps_nothing_and_raises_nothing(run_dir: RunDir) -> None:
    keep_output(_Silent(Site()), "7", run_dir)
    assert list(with_kept_output([], run_dir)) == []
