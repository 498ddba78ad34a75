"""A document as PDF: what the page says, rows kept whole, the same bytes every time, and text in any script."""

from __future__ import annotations

import io
import re
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from pypdf import PdfReader

from tests.report.test_document import document, everything
from tests.report.test_html import HOSTILE, RunStart
from tests.report.test_pages import RESULTS, result
from trainworks.errors import MissingExtraError
from trainworks.report.rendering import renderer
from trainworks.report.rendering.axes import build_axis
from trainworks.report.rendering.document import Document, Preformatted, Section, Styled, Table, Text, left, right
from trainworks.report.rendering.pdf.fonts import Typeface
from trainworks.report.rendering.pdf.pages import render_pdf
from trainworks.report.rendering.pdf.setting import PADDING, ColumnWidth, fit_columns
from trainworks.report.rendering.plots import Chart, Curve, Drawing
from trainworks.report.rendering.renderer import build_document
from trainworks.report.rendering.svg import element
from trainworks.results import Result, ResultVerdict

NO_FONTS: list[Path] = []
"""A machine without fonts of its own."""


@pytest.fixture(params=RESULTS)
def any_result(request: pytest.FixtureRequest) -> Result:
    return result(request.param)


def reader(shown: Document, face: Typeface | None = None) -> PdfReader:
    """The PDF of a document, read again."""
    return PdfReader(io.BytesIO(render_pdf(shown, face=face or Typeface(NO_FONTS)).content))


def text_of(pdf: PdfReader) -> list[str]:
    """The text of each page, with single blanks."""
    return [" ".join(page.extract_text().split()) for page in pdf.pages]


def squeezed(text: str) -> str:
    return re.sub(r"\s", "", text)


def test_a_pdf_says_what_the_text_says(any_result: Result) -> None:
    shown = set(re.findall(r"[\w.]+", " ".join(text_of(reader(build_document(any_result))))))
    text = set(re.findall(r"[\w.]+", str(any_result)))
    assert len(text - shown) <= 0.05 * len(text), sorted(text - shown)


def test_the_verdict_is_on_the_first_page(any_result: Result) -> None:
    verdict = any_result.verdict
    assert verdict is None or squeezed(verdict.sentence) in squeezed(text_of(reader(build_document(any_result)))[0])


def test_the_same_result_has_the_same_bytes(any_result: Result) -> None:
    first, second = (render_pdf(build_document(any_result), face=Typeface(NO_FONTS)).content for _ in range(2))
    assert first == second


def test_a_run_has_its_report_as_pdf(finished_run: RunStart, tmp_path: Path) -> None:
    report = finished_run.report()  # type: ignore[attr-defined]
    notes = report.write_pdf(tmp_path / "report.pdf")
    pdf = PdfReader(tmp_path / "report.pdf")
    assert notes == ()
    assert report.run_id in text_of(pdf)[0]
    assert "Loss" in [entry.title for entry in pdf.outline]  # type: ignore[union-attr]


def test_no_row_is_cut_by_the_end_of_a_page_and_every_page_has_the_heading() -> None:
    words = "several words that need more than one line " * 4
    rows = [[f"begin{number}", f"{words} end{number}"] for number in range(120)]
    pages = text_of(reader(document(Table(left("name", "what it says", wrap=True), rows))))
    assert len(pages) > 3
    for number in range(120):
        (page,) = [page for page in pages if re.search(rf"\bbegin{number}\b", page)]
        assert re.search(rf"\bend{number}\b", page)
    assert all("what it says" in page for page in pages)


def test_cells_of_a_table_are_in_their_rows() -> None:
    table = Table([*left("run"), *right("planned", "measured")], [["lm-1", "1.6 s", "2.0 s"], ["lm-2", "3 s", "4 s"]])
    assert "run planned measured lm-1 1.6 s 2.0 s lm-2 3 s 4 s" in text_of(reader(document(table)))[0]


def test_a_row_longer_than_a_page_continues_on_the_next_one() -> None:
    pages = text_of(reader(document(Table(left("log", wrap=True), [["word " * 4000 + "last"]]))))
    assert len(pages) > 1
    assert "last" in pages[-1]


def test_long_listings_are_wrapped_and_continue() -> None:
    listing = "\n".join(f"line {number} " + "x" * 200 for number in range(150))
    pages = text_of(reader(document(Preformatted(listing))))
    assert len(pages) > 1
    assert squeezed(listing) in squeezed("".join(re.sub(r"demo: test \d+ of \d+", "", page) for page in pages))


@pytest.mark.parametrize(("columns", "is_wide"), [(4, False), (14, True)])
def test_a_table_that_needs_the_room_turns_the_paper(columns: int, is_wide: bool) -> None:
    names = [f"column{number}" for number in range(columns)]
    box = reader(document(Table(right(*names), [["1,234.5 GB/s"] * columns]))).pages[0].mediabox
    assert (box.width > box.height) is is_wide


def test_pages_are_numbered() -> None:
    pages = text_of(reader(document(*(Text("a paragraph") for _ in range(200)))))
    assert [page.endswith(f"{number} of {len(pages)}") for number, page in enumerate(pages, start=1)] == [
        True for _ in pages
    ]


def test_nothing_of_a_text_is_markup() -> None:
    shown = squeezed(" ".join(text_of(reader(everything(HOSTILE)))))
    assert shown.count(squeezed(HOSTILE)) >= 10


def test_control_characters_are_escaped() -> None:
    assert r"a\x1b[2J\ud800" in text_of(reader(everything("a\x1b[2J\ud800")))[0]


def test_a_plot_is_drawn_as_vectors_in_the_colours_of_the_page() -> None:
    chart = Chart("loss", build_axis(0, 10), build_axis(0, 5), x_unit="steps", curves=[Curve("line", [(0, 1), (9, 4)])])
    page = reader(document(chart)).pages[0]
    drawn = page.get_contents().get_data().decode("latin-1")  # type: ignore[union-attr]
    assert "0 .447059 .698039 RG" in drawn  # --line: #0072b2
    assert not page.images
    assert "10 steps" in page.extract_text()


def test_a_picture_larger_than_the_page_is_scaled_to_it() -> None:
    svg = element("svg", element("text", x=10, y=3990, text="foot"), viewBox="0 0 100 4000")
    pages = text_of(reader(document(Drawing(svg))))
    assert "foot" in " ".join(pages)
    assert len(pages) <= 2


def test_chinese_needs_no_font_on_the_machine_that_writes_and_a_note_says_whose_it_is() -> None:
    file = render_pdf(document(Text("训练-7b: ok"), title="训练-7b"), face=Typeface(NO_FONTS))
    page = PdfReader(io.BytesIO(file.content)).pages[0].extract_text()
    assert "训练-7b: ok" in page
    assert "U+8BAD, U+7EC3: a font of the reader's machine shows them" in file.notes[0]
    assert squeezed(file.notes[0]) in squeezed(page)


def test_a_character_without_a_font_is_written_as_its_code_and_named() -> None:
    file = render_pdf(document(Text("model नम, done")), face=Typeface(NO_FONTS))
    (page,) = text_of(PdfReader(io.BytesIO(file.content)))
    assert r"model \u0928\u092e, done" in page
    assert "U+0928, U+092E" in file.notes[0]
    assert squeezed(file.notes[0]) in squeezed(page)


def test_a_font_of_the_machine_is_embedded_for_the_characters_that_it_has(tmp_path: Path) -> None:
    import reportlab

    shutil.copy(Path(reportlab.__file__).parent / "fonts/Vera.ttf", tmp_path / "DejaVuSans.ttf")
    file = render_pdf(document(Text("loss ≤ 3 and नम")), face=Typeface([tmp_path]))
    (page,) = PdfReader(io.BytesIO(file.content)).pages
    assert "loss ≤ 3" in page.extract_text()
    assert any("Vera" in font["/BaseFont"] for font in page["/Resources"]["/Font"].values())
    assert "U+0928" in file.notes[0]


def test_a_damaged_font_is_passed_over(tmp_path: Path) -> None:
    (tmp_path / "DejaVuSans.ttf").write_bytes(b"OTTO" + bytes(100))
    assert "U+2264" in render_pdf(document(Text("≤")), face=Typeface([tmp_path])).notes[0]


def test_without_the_library_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(renderer, "find_spec", lambda name: None)
    with pytest.raises(MissingExtraError) as raised:
        result("storage").to_pdf()
    assert raised.value.hint == "pip install 'trainworks[pdf]'"


def test_a_verdict_has_the_colour_of_its_signal() -> None:
    shown = replace(
        Document("demo", "test", [Section("", [Text("a")])]), verdict=ResultVerdict("Stop", "9 s", signal="stop")
    )
    drawn = reader(shown).pages[0].get_contents().get_data().decode("latin-1")  # type: ignore[union-attr]
    assert ".701961 .14902 .117647" in drawn  # --alarm: #b3261e


@pytest.mark.parametrize("width", [150.0, 220.0, 400.0])
def test_columns_fill_the_width_and_keep_their_longest_words(width: float) -> None:
    columns = [ColumnWidth(60, 20), ColumnWidth(200, 50), ColumnWidth(30, 30)]
    widths = fit_columns(columns, width)
    assert widths is not None
    assert sum(widths) == pytest.approx(width)
    for found, column in zip(widths, columns, strict=True):
        assert found - 2 * PADDING >= column.least - 1e-9


def test_columns_that_are_narrower_than_their_words_are_refused() -> None:
    assert fit_columns([ColumnWidth(60, 60), ColumnWidth(200, 50)], 100) is None


def test_a_cell_with_a_swatch_has_a_square_in_its_colour() -> None:
    table = Table(left("term"), [[Styled("compute", swatch="compute")]])
    drawn = reader(document(table)).pages[0].get_contents().get_data().decode("latin-1")  # type: ignore[union-attr]
    assert "0 .447059 .698039 rg" in drawn
