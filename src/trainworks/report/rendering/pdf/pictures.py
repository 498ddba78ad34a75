"""Plots on paper: the SVG elements that the HTML page has inline as vectors, with the names and keys around them.

Lengths are pixels of a page, of which four make three points. Percentages are of the nearest `<svg>`; one with a
`viewBox` scales what it contains, without its strokes. Text is set in the fonts of the document.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any
from xml.etree.ElementTree import Element

from reportlab.lib.colors import Color
from reportlab.platypus import Flowable, Spacer

from trainworks.report.rendering.document import Plot, Styled
from trainworks.report.rendering.pdf.fonts import Typeface
from trainworks.report.rendering.pdf.setting import BODY, PADDING, SMALL, Typesetter, named_colour, paper_table, shown
from trainworks.report.rendering.pdf.stylesheet import classes_of, colour, length, page_style, sheet_of

PX = 0.75
"""Points of a pixel."""
_TEXT_SIZE = 12.0
"""Pixels, where no rule says another size."""
_INHERITED = (
    "fill",
    "fill-opacity",
    "stroke",
    "stroke-opacity",
    "stroke-width",
    "stroke-dasharray",
    "font-size",
    "font-weight",
    "text-anchor",
)
_STEP = re.compile(r"([MLC])([^MLC]*)")
_ANCHORS = {"middle": 0.5, "end": 1.0}
_HEIGHTS = {"tall": 420.0, "plot": 240.0, "bar": 34.0}
"""Pixels of pictures by their class, as the sheet has them."""
_TORNADO_ROW = 40.0
_MOST_KEPT = 0.55
"""Share of a page up to which a plot is kept whole."""
_FRAME = {"parallel": (34.0, 10.0, 14.0, 10.0), "frame": (10.0, 10.0, 30.0, 48.0)}
"""Pixels around a picture for the labels of its axes: above, right, below and left."""


@dataclass(frozen=True, slots=True)
class Viewport:
    """Where an `<svg>` lies, in pixels from the top left of the picture, and how it scales what it contains."""

    left: float
    top: float
    width: float
    """Width of its content: pixels, or units of its `viewBox`."""
    height: float
    scale_x: float = 1.0
    scale_y: float = 1.0

    def x(self, text: str | None) -> float:
        """Pixels from the left of the picture of a length along the width."""
        return self.left + self.scale_x * length(text, self.width)

    def y(self, text: str | None) -> float:
        """Pixels from the top of the picture of a length along the height."""
        return self.top + self.scale_y * length(text, self.height)

    def at(self, x: float, y: float) -> tuple[float, float]:
        """Pixels from the top left of the picture of a point in its units."""
        return self.left + self.scale_x * x, self.top + self.scale_y * y


class DrawnFigure(Flowable):
    """One `<svg>` at a width and a height in pixels."""

    def __init__(self, svg: Element, size: tuple[float, float], ancestors: Sequence[Element], face: Typeface) -> None:
        super().__init__()
        self.width, self.height = size[0] * PX, size[1] * PX
        self._svg, self._size, self._face = svg, size, face
        self._ancestors = tuple(ancestors)
        self._sheet = sheet_of(svg)

    def wrap(self, available_width: float, available_height: float) -> tuple[float, float]:
        """The size in points."""
        return self.width, self.height

    def draw(self) -> None:
        """Draw it with the origin at its top left, one pixel long."""
        canvas = self.canv
        canvas.saveState()
        canvas.translate(0, self.height)
        canvas.scale(PX, -PX)
        self._draw_svg(self._svg, Viewport(0, 0, *self._size), self._ancestors, {"fill": "#000000"})
        canvas.restoreState()

    def _draw_svg(self, svg: Element, view: Viewport, above: Sequence[Element], inherited: Mapping[str, str]) -> None:
        if box := svg.get("viewBox"):
            _, _, width, height = map(float, box.split())
            view = replace(view, width=width, height=height, scale_x=view.width / width, scale_y=view.height / height)
        self._draw_each(svg, view, above, inherited)

    def _draw_each(self, node: Element, view: Viewport, above: Sequence[Element], inherited: Mapping[str, str]) -> None:
        nodes = (*above, node)
        own = {name: value for name, value in node.attrib.items() if name in _INHERITED}
        style = {**inherited, **own, **self._sheet.of(nodes)}  # rules win over attributes
        if node.tag in ("svg", "g"):
            kept = {name: style[name] for name in _INHERITED if name in style}
            for child in node:
                if child.tag == "svg":
                    self._draw_svg(child, view, nodes, kept)
                else:
                    self._draw_each(child, view, nodes, kept)
        elif draw := _SHAPES.get(node.tag):
            draw(self, node, view, style)

    def _pen(self, style: Mapping[str, str]) -> tuple[int, int]:
        """Set colours and stroke; whether the outline and the inside are drawn."""
        stroke = colour(style.get("stroke"), style.get("stroke-opacity"))
        fill = colour(style.get("fill"), style.get("fill-opacity"))
        canvas = self.canv
        if stroke is not None:
            canvas.setStrokeColor(stroke)
            canvas.setLineWidth(length(style.get("stroke-width", "1"), 1))
            canvas.setDash([float(part) for part in style.get("stroke-dasharray", "").split()])
            canvas.setLineCap(1 if style.get("stroke-linecap") == "round" else 0)
            canvas.setLineJoin(1 if style.get("stroke-linejoin") == "round" else 0)
        if fill is not None:
            canvas.setFillColor(fill)
        return int(stroke is not None), int(fill is not None)

    def _line(self, node: Element, view: Viewport, style: Mapping[str, str]) -> None:
        if self._pen(style)[0]:
            self.canv.line(
                view.x(node.get("x1")), view.y(node.get("y1")), view.x(node.get("x2")), view.y(node.get("y2"))
            )

    def _rect(self, node: Element, view: Viewport, style: Mapping[str, str]) -> None:
        stroke, fill = self._pen(style)
        left, top = view.x(node.get("x")), view.y(node.get("y"))
        width = view.scale_x * length(node.get("width"), view.width)
        height = view.scale_y * length(node.get("height"), view.height)
        radius = min(length(node.get("rx"), 1), width / 2, height / 2)
        if radius > 0:
            self.canv.roundRect(left, top, width, height, radius, stroke=stroke, fill=fill)
        else:
            self.canv.rect(left, top, width, height, stroke=stroke, fill=fill)

    def _circle(self, node: Element, view: Viewport, style: Mapping[str, str]) -> None:
        stroke, fill = self._pen(style)
        self.canv.circle(
            view.x(node.get("cx")), view.y(node.get("cy")), length(node.get("r"), 1), stroke=stroke, fill=fill
        )

    def _path(self, node: Element, view: Viewport, style: Mapping[str, str]) -> None:
        stroke, fill = self._pen(style)
        path = self.canv.beginPath()
        for step, numbers in _STEP.findall(node.get("d", "")):
            values = [float(number) for number in numbers.replace(",", " ").split()]
            points = [part for x, y in zip(values[::2], values[1::2], strict=True) for part in view.at(x, y)]
            match step:
                case "M":
                    path.moveTo(*points)
                case "L":
                    path.lineTo(*points)
                case _:
                    path.curveTo(*points)
        self.canv.drawPath(path, stroke=stroke, fill=fill)

    def _text(self, node: Element, view: Viewport, style: Mapping[str, str]) -> None:
        text = shown(node.text or "")
        size = length(style.get("font-size", f"{_TEXT_SIZE}"), _TEXT_SIZE) * min(view.scale_y, 1.0)
        base = "Helvetica-Bold" if float(style.get("font-weight", "400")) >= 600 else "Helvetica"
        x = view.x(node.get("x")) + length(node.get("dx"), 1)
        dy = node.get("dy", "0")
        y = view.y(node.get("y")) + (float(dy[:-2]) * size if dy.endswith("em") else float(dy))
        x -= self._face.width(text, base, size) * _ANCHORS.get(style.get("text-anchor", ""), 0.0)
        canvas = self.canv
        canvas.saveState()
        canvas.translate(x, y)
        canvas.scale(1, -1)
        canvas.setFillColor(colour(style.get("fill"), style.get("fill-opacity")) or Color(0, 0, 0, 1))
        line = canvas.beginText(0, 0)
        for run, font in self._face.runs(text, base):
            line.setFont(font, size)
            line.textOut(run)
        canvas.drawText(line)
        canvas.restoreState()


_SHAPES: Mapping[str, Callable[[DrawnFigure, Element, Viewport, Mapping[str, str]], Any]] = {
    "line": DrawnFigure._line,
    "rect": DrawnFigure._rect,
    "circle": DrawnFigure._circle,
    "path": DrawnFigure._path,
    "text": DrawnFigure._text,
}
"""How each element is drawn; others, such as tooltips, are left out."""


class Figures:
    """Makes the flowables of plots."""

    def __init__(self, setter: Typesetter, width: float, height: float) -> None:
        """Plots are at most `width` and `height` points large."""
        self._set, self._width, self._height = setter, width, height

    def of(self, block: Plot) -> Iterator[Flowable]:
        """The picture and its key, on one page unless they fill most of it; none without a picture."""
        picture = block.picture()
        if picture is None:
            return
        drawn = [Spacer(0, 8.0), *self._drawn(picture, (), self._width / PX)]
        key = block.key()
        if key:
            drawn += [Spacer(0, 4.0), Key(self._set, key, self._width)]
        whole = sum(flowable.wrap(self._width, self._height)[1] for flowable in drawn)
        for flowable in drawn[-3:-1] if whole > _MOST_KEPT * self._height else drawn[:-1]:
            flowable.keepWithNext = True
        yield from drawn

    def _drawn(self, node: Element, above: Sequence[Element], width: float) -> Iterator[Flowable]:
        """Flowables of an element of a picture that is so many pixels wide."""
        css, nodes = classes_of(node), (*above, node)
        if node.tag == "svg":
            yield self._picture(node, above, width)
        elif "bars" in css:
            yield from self._bars(node, nodes, width)
        elif "tornado" in css:
            yield from self._tornado(node, nodes, width)
        elif "frame" in css:
            top, right, bottom, left = _FRAME["parallel" if "parallel" in css else "frame"]
            inner = [*self._drawn(node[0], nodes, width - left - right)]
            edges = [("LEFTPADDING", left), ("RIGHTPADDING", right), ("TOPPADDING", top), ("BOTTOMPADDING", bottom)]
            yield paper_table([[inner]], [width * PX], [(name, (0, 0), (-1, -1), size * PX) for name, size in edges])
        elif "name" in css:
            name, total = (Styled(child.text or "") for child in node)
            pair = [self._set.paragraph([name]), self._set.paragraph([Styled(total.text, "bold")], right=True)]
            line = paper_table([pair], [0.75 * width * PX, 0.25 * width * PX], [("TOPPADDING", (0, 0), (-1, -1), 6.0)])
            line.keepWithNext = True
            yield line
        else:
            for child in node:
                yield from self._drawn(child, nodes, width)

    def _picture(self, svg: Element, above: Sequence[Element], width: float) -> DrawnFigure:
        """One `<svg>`, no larger than the page."""
        if (box := svg.get("viewBox")) is not None and not svg.get("preserveAspectRatio"):
            _, _, units_wide, units_high = map(float, box.split())
            scale = min(width / units_wide, (self._height / PX - 60) / units_high, 1.0)
            return DrawnFigure(svg, (units_wide * scale, units_high * scale), above, self._set.face)
        css = classes_of(svg)
        height = next((pixels for name, pixels in _HEIGHTS.items() if name in css), _TORNADO_ROW)
        return DrawnFigure(svg, (width, height), above, self._set.face)

    def _bars(self, node: Element, nodes: Sequence[Element], width: float) -> Iterator[Flowable]:
        """Name, bar and total of each on one line."""
        parts = [*node]
        lines = [parts[at : at + 3] for at in range(0, len(parts), 3)]
        names, totals = (
            max(self._set.width(line[at].text or "", BODY, bold=True) for line in lines) + 2 * PADDING for at in (0, 1)
        )
        bar = width * PX - names - totals
        rows = [
            [
                self._set.paragraph([Styled(name.text or "")]),
                self._picture(svg, nodes, (bar - PADDING) / PX),
                self._set.paragraph([Styled(total.text or "", "bold")], right=True),
            ]
            for name, total, svg in lines
        ]
        middle = [("VALIGN", (0, 0), (-1, -1), "MIDDLE"), ("BOTTOMPADDING", (0, 0), (-1, -1), 5.0)]
        yield paper_table(rows, [names, bar, totals], middle)

    def _tornado(self, node: Element, nodes: Sequence[Element], width: float) -> Iterator[Flowable]:
        """The name of each assumption with its range, beside its bar."""
        parts = [*node]
        first = 0.3 * width * PX
        rows = [
            [
                [
                    self._set.paragraph([Styled(words[0].text or "")], size=SMALL),
                    self._set.paragraph([Styled(words[1].text or "", "dim")], size=SMALL),
                ],
                self._picture(svg, nodes, width - first / PX),
            ]
            for words, svg in zip(parts[::2], parts[1::2], strict=True)
        ]
        middle = [("VALIGN", (0, 0), (-1, -1), "MIDDLE"), ("BOTTOMPADDING", (0, 0), (-1, -1), 4.0)]
        yield paper_table(rows, [first, width * PX - first], middle)


class Key(Flowable):
    """Names of the marks of a picture, each after a mark of its kind, in as many lines as are needed."""

    _MARK, _GAP = 16.0, 14.0

    def __init__(self, setter: Typesetter, names: Sequence[tuple[str, str]], width: float) -> None:
        super().__init__()
        self._face, self._leading = setter.face, SMALL * 1.5
        self._places: list[tuple[str, str, float, int]] = []
        x, line = 0.0, 0
        for css, name in names:
            text = shown(name)
            wide = self._MARK + setter.width(text, SMALL)
            if x and x + wide > width:
                x, line = 0.0, line + 1
            self._places.append((css, text, x, line))
            x += wide + self._GAP
        self.width, self.height = width, (line + 1) * self._leading

    def wrap(self, available_width: float, available_height: float) -> tuple[float, float]:
        """The size in points."""
        return self.width, self.height

    def draw(self) -> None:
        """Draw the marks and their names."""
        canvas = self.canv
        ink = named_colour("soft")
        for css, text, x, line in self._places:
            y = self.height - (line + 0.8) * self._leading
            self._mark(page_style().of_classes(css), x, y + 0.3 * SMALL)
            canvas.setFillColor(ink)
            words = canvas.beginText(x + self._MARK, y)
            for run, font in self._face.runs(text, "Helvetica"):
                words.setFont(font, SMALL)
                words.textOut(run)
            canvas.drawText(words)

    def _mark(self, look: Mapping[str, str], x: float, middle: float) -> None:
        """A line as its border has it, else a square or dot in its background."""
        canvas = self.canv
        border = look.get("border-top", "")
        line = colour(look.get("border-top-color") or look.get("border-color") or border)
        canvas.saveState()
        if border and line is not None:
            thick = length(border.split()[0], 1) * PX
            canvas.setStrokeColor(line)
            canvas.setLineWidth(thick)
            canvas.setDash([3.0, 2.0] if "dashed" in border else [])
            canvas.line(x, middle, x + 0.75 * self._MARK, middle)
        elif (fill := colour(look.get("background"))) is not None:
            canvas.setFillColor(fill)
            size = length(look.get("width", "10px"), 1) * PX
            high = length(look.get("height", "10px"), 1) * PX
            canvas.roundRect(x, middle - high / 2, size, high, min(size, high) / 4, stroke=0, fill=1)
        canvas.restoreState()
