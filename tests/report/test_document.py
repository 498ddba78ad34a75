"""A document as text and as a page: one content, nothing of it markup."""

from __future__ import annotations

import io
import re
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from rich.cells import cell_len
from rich.console import Console

from tests.report.test_html import HOSTILE, parsed
from trainworks.catalog.catalog import load_catalog
from trainworks.catalog.cluster import parse_cluster
from trainworks.plan.cost.comparison import compare
from trainworks.plan.cost.report import CostReport
from trainworks.plan.trace import fact
from trainworks.report.rendering import renderer
from trainworks.report.rendering.axes import build_axis
from trainworks.report.rendering.document import (
    NO_BREAK,
    Block,
    Bullets,
    Column,
    Details,
    Document,
    Fact,
    Facts,
    Preformatted,
    Row,
    Section,
    Styled,
    Table,
    Text,
    left,
    right,
)
from trainworks.report.rendering.page import render_page
from trainworks.report.rendering.plots import Bar, Bars, Chart, Curve, Dot, Mark, Range, Ranges, Rule, Segment
from trainworks.report.rendering.renderer import build_document
from trainworks.report.rendering.text import print_document, render_text
from trainworks.results import Result


@pytest.mark.parametrize("shown", [build_document, renderer.to_json], ids=["document", "json"])
def test_every_type_of_result_is_registered_by_the_module_of_its_subject(shown: Any) -> None:
    for subject in set(renderer._SUBJECTS.values()):
        import_module(f"trainworks.report.{subject}")
    assert {kind.__name__ for kind in shown.registry} == {*renderer._SUBJECTS, "object"}


def document(*blocks: Block, title: str = "demo", **more: Any) -> Document:
    return Document(title, "test", [Section("part", blocks)], **more)


def everything(text: str) -> Document:
    """A document whose every text is `text`."""
    return document(
        Text(text),
        Text(Styled(text, "bad", href=text)),
        Bullets([text]),
        Preformatted([text, Styled(text, "dim")]),
        Details(text, [Text(text)]),
        Facts([Fact(text, text, text)]),
        Facts([Fact(text, text, text)], figures=True),
        Table(left(text), [[text], Row([Styled(text, "bold")], is_term=True)], caption=text),
        Bars([Bar(text, text, [Segment(text, 1.0, text, fill="data")])]),
        Chart(
            text,
            build_axis(0, 1),
            build_axis(0, 1),
            curves=[Curve("line", [(0, 0)])],
            dots=[Dot(0, 0, text)],
            rules=[Rule("x", 1, text), Rule("y", 1, text)],
            marks=[Mark(1, "restart", text)],
        ),
        Ranges(1.0, [Range(text, text, 0.0, 2.0)], {0.0: text, 2.0: text}),
        title=text,
        about=text,
        notes=[text],
        badge=Styled(text, "good"),
        footer=text,
        shows_title=True,
    )


def test_every_kind_of_block_is_whole_on_the_page() -> None:
    assert parsed(render_page(everything("a"))).open == []


def test_no_text_becomes_markup_on_the_page() -> None:
    reader = parsed(render_page(everything(HOSTILE)))
    assert not reader.seen & {"script", "img"}
    assert "onerror" not in reader.attributes


def test_control_characters_and_surrogates_are_escaped_on_the_page() -> None:
    page = render_page(everything("a\x1b[2J\ud800"))
    assert r"a\x1b[2J\ud800" in page
    page.encode()


def test_text_shows_control_characters_as_escapes() -> None:
    assert "\x1b" not in render_text(everything("a\x1b[2J"))


def test_a_narrow_terminal_has_short_headings_and_fewer_columns() -> None:
    columns = [Column("name"), Column("per hour", numeric=True, short_name="h"), *right("zone", min_width=100)]
    table = document(Table(columns, [["a", "1", "x"]]))
    assert render_text(table, width=99) == "part\nname  h\na     1"
    assert render_text(table, width=100) == "part\nname  per hour  zone\na            1     x"


def test_a_page_has_every_column_but_those_of_text() -> None:
    columns = [Column("name"), *right("zone", min_width=100), Column("bar", only="text")]
    page = render_page(document(Table(columns, [["a", "1", "###"]])))
    assert "zone" in page
    assert "bar</th>" not in page


def test_a_block_of_one_medium_is_left_out_of_the_other() -> None:
    both = document(Text("on paper", only="page"), Text("on a screen", only="text"))
    assert render_text(both) == "part\non a screen"
    assert "on paper" in render_page(both)
    assert "on a screen" not in render_page(both)


def test_a_section_without_blocks_is_left_out() -> None:
    assert render_text(Document("demo", "test", [Section("empty", []), Section("full", [Text("a")])])) == "full\na"


def test_a_text_has_no_colours_in_a_notebook_which_forces_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert render_text(document(Text("a", "bad"), Table(left("x"), [["1"]]))) == "part\na\nx\n1"


def test_sections_are_apart_and_no_line_ends_in_blanks() -> None:
    lines = render_text(document(Text("a  "), Table(left("x", "y"), [["1", ""]]), notes=["b"])).split("\n")
    assert lines == ["part", "a", "x  y", "1", "", "note: b"]


def test_no_line_is_broken_at_an_unbreakable_blank() -> None:
    text = f"one{NO_BREAK}two three"
    assert render_text(document(Text(text)), width=10) == "part\none two\nthree"
    assert "one\u00a0two three" in render_page(document(Text(text)))


def test_colour_adds_nothing_but_colour() -> None:
    plain, coloured = (Console(file=io.StringIO(), width=80, **options) for options in ({}, {"force_terminal": True}))
    for console in (plain, coloured):
        print_document(everything("a"), console)
    with_escapes = coloured.file.getvalue()  # type: ignore[attr-defined]
    assert "\x1b[" in with_escapes
    assert plain.file.getvalue().split() == _without_colour(with_escapes).split()  # type: ignore[attr-defined]


def _without_colour(text: str) -> str:

    return re.sub(r"\x1b\[[\d;]*m", "", text)


@pytest.fixture
def result() -> Result:
    """The cost of a year of one node, as a use case returns it."""
    hours = fact("hours per year", 5000, "h", source="the test")
    comparison = compare(parse_cluster("DGX H100"), load_catalog().offers.values(), hours=hours)
    return CostReport("a <year>", comparison, "World")


def test_a_result_prints_as_text(result: Result) -> None:
    assert str(result) == render_text(build_document(result))
    assert str(result).startswith("a <year>\n")


def test_the_page_of_a_result_is_written_whole(result: Result, tmp_path: Path) -> None:
    result.write_html(tmp_path / "page.html")
    assert (tmp_path / "page.html").read_text(encoding="utf-8") == result.to_html()
    assert [path.name for path in tmp_path.iterdir()] == ["page.html"]


def test_what_is_no_result_cannot_be_shown() -> None:
    with pytest.raises(TypeError, match="shows str"):
        build_document("text")


@pytest.mark.parametrize("plot", [Bars([]), Ranges(1.0, [], {}), Chart("a", build_axis(0, 1), build_axis(0, 1))])
def test_a_plot_of_nothing_is_left_out(plot: Any) -> None:
    assert plot.picture() is None
    assert "<figure" not in render_page(document(plot))


def test_a_column_of_names_in_wide_letters_is_as_straight_as_one_of_narrow_ones() -> None:
    rows = [["训练-7b-1", "RUNNING"], ["stdlib-lm-1", "FAILED"], ["обучение-12", "QUEUED"], ["ﾃｽﾄ-1", "STOPPED"]]
    for ruled in (False, True):
        table = Table([Column("run"), Column("state")], rows, ruled=ruled)
        lines = render_text(Document("Jobs", "jobs", [Section("", [table])]), width=60).splitlines()
        begins = [cell_len(line[: line.index(state)]) for line in lines for _, state in rows if state in line]
        assert len(begins) == len(rows)
        assert len(set(begins)) == 1
