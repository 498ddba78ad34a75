"""A document in a cell of a notebook, which stores it: bounded, escaped, and complete in what it names."""

from __future__ import annotations

import re
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from xml.etree import ElementTree

import pytest

from tests.report.conftest import RunWriter
from tests.report.test_document import document, everything
from tests.report.test_html import HOSTILE, parsed
from trainworks.errors import ArgumentError
from trainworks.report.rendering import renderer
from trainworks.report.rendering.axes import build_axis
from trainworks.report.rendering.document import Document, Section, Table, Text, right
from trainworks.report.rendering.page import plots_of, render_cell
from trainworks.report.rendering.plots import Bar, Bars, Chart, Curve, Mark, Segment
from trainworks.results import Result

LONGEST_HTML, LONGEST_TEXT = 20_000, 25
"""Characters with the style sheet; lines."""


def chart(points: int, marks: int = 0, metric: str = "loss") -> Chart:
    """A falling curve with one spike in the middle."""
    values = [(step, 99.0 if step == points // 2 else 1 / (step + 1)) for step in range(points)]
    ticks = [Mark(step, "restart", f"attempt {step}") for step in range(marks)]
    axes = {"x": build_axis(0, points), "y": build_axis(0, 100)}
    return Chart("a chart", **axes, curves=[Curve("line", values)], marks=ticks, metric=metric)


def long_documents() -> Iterator[Document]:
    """Documents that are long in one way each."""
    yield document(Table(right("a", "b"), [[str(row), "x" * 30] for row in range(5_000)]))
    yield Document("many", "test", [Section(f"section {number}", [Text("words " * 50)]) for number in range(400)])
    yield document(chart(100_000, marks=5_000))
    yield document(*[chart(2_000, marks=60) for _ in range(30)])
    yield document(Text("a"), notes=["a note " * 20] * 300)


@pytest.mark.parametrize("long", list(long_documents()), ids=["table", "sections", "curve", "charts", "notes"])
def test_a_cell_is_short_whatever_the_document(long: Document) -> None:
    cell = render_cell(long)
    assert len(cell["text/html"]) < LONGEST_HTML
    assert len(cell["text/plain"].splitlines()) <= LONGEST_TEXT


def test_a_cell_names_what_it_shortens_and_how_to_see_it() -> None:
    long = [Section(name, [Table(right("a"), [[str(row)] for row in range(20)])]) for name in ("Layouts", "Prices")]
    cell = render_cell(Document("demo", "test", [*long, Section("Short", [Text("b")])]))
    assert "8 more rows." in cell["text/html"]
    assert "Shortened here: layouts, prices. `write_html` writes all of it." in cell["text/html"]
    assert cell["text/plain"].endswith("more lines: `print` shows all")


def test_a_short_document_is_whole_in_a_cell() -> None:
    cell = render_cell(document(Text("a"), Table(right("x"), [["1"]]), notes=["n"]))
    assert "Shortened" not in cell["text/html"]
    assert cell["text/plain"] == "part\na\nx\n1\n\nnote: n"


def test_every_kind_of_block_is_whole_in_a_cell_and_no_text_becomes_markup() -> None:
    assert parsed(render_cell(everything("a"))["text/html"]).open == []
    hostile = parsed(render_cell(everything(HOSTILE))["text/html"])
    assert not hostile.seen & {"script", "img"}
    assert "onerror" not in hostile.attributes


def test_a_cell_has_the_rules_of_its_own_classes_alone_and_styles_nothing_else() -> None:
    html = render_cell(document(Text("a", "warning")))["text/html"]
    style = html.partition("<style>")[2].partition("</style>")[0]
    assert ".is-warning" in style
    assert ".is-bad" not in style
    assert all(rule.strip().startswith(".trainworks") for rule in re.split(r"\}\s*", style) if rule.strip())


def test_the_colours_of_a_cell_are_those_that_the_notebook_has() -> None:
    html = render_cell(document(Text("a", "warning")))["text/html"]
    used, defined = set(re.findall(r"var\((--\w+)\)", html)), set(re.findall(r"(--\w+):", html))
    assert used
    assert used <= defined


def test_a_thinned_curve_keeps_its_spike_and_its_ends() -> None:
    points = chart(1_000).thinned(120, 10).curves[0].points
    assert len(points) <= 120
    assert {(0, 1.0), (500, 99.0), (999, 1 / 1000)} <= set(points)


def test_plots_are_named_by_their_metric_or_their_heading() -> None:
    bars = Bars([Bar("a", "1", [Segment("data", 1.0, "1 s")])])
    nothing = Bars([])
    drawn = Document("demo", "test", [Section("Loss", [chart(5), chart(5), nothing]), Section("Memory", [bars])])
    assert list(plots_of(drawn)) == ["loss", "loss #2", "memory"]


def test_a_chart_is_saved_as_svg_that_needs_no_style_sheet(tmp_path: Path) -> None:
    plots_of(document(chart(50)))["loss"].save(tmp_path / "loss.svg")
    text = (tmp_path / "loss.svg").read_text(encoding="utf-8")
    root = ElementTree.fromstring(text)
    assert root.tag == "{http://www.w3.org/2000/svg}svg"
    assert root.findall(".//{*}path")
    assert "var(" not in text
    assert ".line {" in text


def test_any_plot_is_saved_as_a_page(tmp_path: Path) -> None:
    bars = plots_of(document(Bars([Bar("a", "1", [Segment("data", 1.0, "1 s")])])))["part"]
    bars.save(str(tmp_path / "bars.html"))
    assert parsed((tmp_path / "bars.html").read_text(encoding="utf-8")).open == []


@pytest.mark.parametrize(("plot", "name"), [(chart(5), "a.pdf"), (Bars([Bar("a", "1", [])]), "a.svg")], ids=str)
def test_a_plot_of_another_kind_of_file_is_refused(plot: Chart | Bars, name: str, tmp_path: Path) -> None:
    (picture,) = plots_of(document(plot)).values()
    with pytest.raises(ArgumentError, match=f"cannot write this plot as `{name}`"):
        picture.save(tmp_path / name)
    assert list(tmp_path.iterdir()) == []


def test_a_report_has_its_curves_as_plots_and_prints_what_the_terminal_shows(finished_run: RunWriter) -> None:
    report = finished_run.report()
    assert {"loss", "tokens_per_s", "memory", "where the time went"} <= set(report.plots)
    assert " ".join(str(report).split()).startswith(report.verdict.sentence)
    assert repr(report) == f"<Report: {report.verdict.sentence}>"
    assert len(report._repr_mimebundle_()["text/html"]) < LONGEST_HTML


def kinds_of_results() -> Iterator[type[Result]]:
    """Every class of results that a module of the report shows."""
    for subject in set(renderer._SUBJECTS.values()):
        import_module(f"trainworks.report.{subject}")
    waiting = [Result]
    while waiting:
        waiting += (found := waiting.pop().__subclasses__())
        yield from found


def test_no_result_prints_its_fields() -> None:
    kinds = list(kinds_of_results())
    assert len(kinds) > 20
    assert [kind.__name__ for kind in kinds if kind.__repr__ is not Result.__repr__] == []
    assert [kind.__name__ for kind in kinds if kind.__str__ is not Result.__str__] == []
