"""The page: whole, self-contained, and deaf to what a run writes into it."""

from __future__ import annotations

import re
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from trainworks.record.memory import MemoryTerms
from trainworks.record.step_time import StepTimeTerms

RunStart = Callable[..., Any]

HOSTILE = "</pre><script>alert(1)</script><img src=x onerror=\"alert('2')\">&amp;"
VOID = {"meta", "wbr"}


class TagBalance(HTMLParser):
    """Collects tags and complains about any that is closed out of order."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: set[str] = set()
        self.attributes: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.add(tag)
        self.attributes |= {name for name, _ in attrs}
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.add(tag)
        self.attributes |= {name for name, _ in attrs}

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def parsed(page: str) -> TagBalance:
    """The page, read to its end."""
    parser = TagBalance()
    parser.feed(page)
    parser.close()
    return parser


@pytest.fixture(params=["finished", "empty", "command", "failed early", "diverged"])
def any_run(request: pytest.FixtureRequest, start_run: RunStart) -> Any:
    """Runs at the edges, and one in the middle."""
    match request.param:
        case "finished":
            return request.getfixturevalue("finished_run")
        case "empty":
            return start_run()
        case "command":
            return start_run(command="make").event("submitted").wait(1.0).status("SUCCEEDED")
        case "failed early":
            return start_run().launch().fail().status("FAILED", message="no luck", hint="try again")
        case _:
            return start_run().launch().steps(3, loss=float("nan")).steps(1, loss=float("inf"))


def test_every_tag_is_closed_in_order(any_run: Any) -> None:
    assert parsed(any_run.report().to_html()).open == []


def test_the_page_asks_for_nothing_from_outside(any_run: Any) -> None:
    page = any_run.report().to_html()
    assert not re.search(r"https?://|url\(|@import|//[a-z]", page)
    assert not parsed(page).seen & {"script", "link", "img", "iframe", "object"}
    assert not parsed(page).attributes & {"src", "href", "srcset"}


def test_what_a_run_writes_is_never_markup(start_run: RunStart) -> None:
    run = start_run(peak_source=HOSTILE).launch().steps(5)
    run.fail(cause=HOSTILE, message=HOSTILE, traceback=HOSTILE, signal=HOSTILE)
    run.event("sample", step=5, prompt=HOSTILE, text=HOSTILE).status("FAILED", message=HOSTILE, hint=HOSTILE)
    tags = parsed(run.report().to_html())
    assert not tags.seen & {"script", "img"}
    assert "onerror" not in tags.attributes


def test_a_command_is_escaped(start_run: RunStart) -> None:
    page = start_run(command="echo '<script>'").report().to_html()
    assert "<script>" not in page


def test_the_sample_stands_word_for_word(start_run: RunStart) -> None:
    run = start_run().launch().steps(1).event("sample", step=1, prompt="def f(", text="a):\n    return a < 1\n")
    assert '<span class="is-dim">def f(</span>a):\n    return a &lt; 1\n</pre>' in run.report().to_html()


def test_lone_surrogates_do_not_keep_the_page_from_being_written(start_run: RunStart, tmp_path: Path) -> None:
    run = start_run().launch().steps(1).event("sample", step=1, prompt="\ud800", text="\x00ok")
    run.report().write_html(tmp_path / "report.html")
    assert "ok</pre>" in (tmp_path / "report.html").read_text()


def test_a_long_run_stays_a_small_page(start_run: RunStart) -> None:
    run = start_run().launch().steps(6000)
    page = run.report().to_html()
    assert len(page) < 100_000


def test_the_page_follows_the_colour_scheme_of_its_reader(finished_run: Any) -> None:
    page = finished_run.report().to_html()
    assert "prefers-color-scheme: dark" in page
    assert "color-scheme: light dark" in page


def test_every_term_of_a_plan_has_a_colour(finished_run: Any) -> None:
    terms = {name.removesuffix("_bytes") for name in MemoryTerms.model_fields}
    terms |= {name.removesuffix("_s") for name in StepTimeTerms.model_fields} | {"selection"}
    assert terms <= set(re.findall(r"\.fill-([a-z_]+) \{", finished_run.report().to_html()))
