"""Base of results: they print as text, show in a notebook, draw their plots, and convert to JSON.

The renderers belong to `trainworks.report`, which registers them here when it is imported. So a result of `plan` shows
itself, and `plan` imports no renderer.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal, Protocol


class Picture(Protocol):
    """A plot of a result: as the last line of a cell it shows itself."""

    title: str

    def save(self, path: Path | str) -> None:
        """Write the plot, atomically: as SVG or as an HTML page, by the end of the path.

        Raises:
            ArgumentError: the path ends otherwise, or bars are to be SVG.
            DiskFullError: no space left; an older file is untouched.
        """


@dataclass(frozen=True, slots=True)
class PdfFile:
    """A PDF, and what its writer has to know."""

    content: bytes
    notes: tuple[str, ...] = ()
    """Characters that no font of this machine has; the document says so at its end as well."""


class Renderer(Protocol):
    """Text, page and JSON of every kind of result."""

    def line(self, result: Result) -> str:
        """The verdict in one line, or what the result is about."""

    def text(self, result: Result) -> str:
        """The result as plain text."""

    def page(self, result: Result) -> str:
        """The result as one self-contained HTML page."""

    def cell(self, result: Result) -> dict[str, str]:
        """The beginning of the result for a cell of a notebook, by media type."""

    def plots(self, result: Result) -> Mapping[str, Picture]:
        """The plots of the page by name."""

    def write_page(self, result: Result, path: Path) -> None:
        """Write the page, atomically."""

    def pdf(self, result: Result) -> PdfFile:
        """The result as PDF."""

    def write_pdf(self, result: Result, path: Path) -> tuple[str, ...]:
        """Write the PDF, atomically; returns its notes."""

    def to_json(self, result: Result) -> dict[str, Any]:
        """The figures in base units."""


@dataclass(frozen=True, slots=True)
class ResultVerdict:
    """What a result comes down to: what to do, the figure that decides, and what would change it."""

    action: str
    """In the imperative, without a full stop: `Rent 2 x p5.48xlarge, on-demand`."""
    figure: str
    """The figure that decides, with its unit: `127 USD for the run`."""
    unless: str = ""
    """What would change the action, or why it is not certain; empty where the result knows of no such thing."""
    signal: Literal["go", "check", "stop"] = "go"
    """`go`: act on it; `check`: settle a doubt first; `stop`: what was planned, measured or run is not good enough."""

    @property
    def sentence(self) -> str:
        """The three parts as one sentence.

        >>> ResultVerdict("Rent 2 nodes", "127 USD for the run", "spot costs 55 % less").sentence
        'Rent 2 nodes: 127 USD for the run; spot costs 55 % less.'
        """
        return f"{'; '.join(filter(None, (f'{self.action}: {self.figure}', self.unless)))}."

    def to_json(self) -> dict[str, str]:
        """The parts and the sentence."""
        parts = {"action": self.action, "figure": self.figure, "unless": self.unless, "signal": self.signal}
        return {"sentence": self.sentence} | parts


class Result:
    """Base of what a use case returns.

    `print` shows all of its text, and `repr` one line. As the last line of a cell it shows its beginning, of bounded
    size, because a notebook stores what it shows.
    """

    __slots__ = ()
    renderer: ClassVar[Renderer | None] = None
    """Set by `trainworks.report`."""

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if "__repr__" not in vars(cls):  # a dataclass would write one with all fields, of up to 400,000 characters
            type.__setattr__(cls, "__repr__", Result.__repr__)

    @property
    def verdict(self) -> ResultVerdict | None:
        """The first sentence of the text and of the page; None for a result that calls for no action."""
        return None

    def to_html(self) -> str:
        """The result as one self-contained HTML page."""
        return self._renderer().page(self)

    def write_html(self, path: Path | str) -> None:
        """Write the page, atomically.

        Raises:
            DiskFullError: no space left; an older page is untouched.
        """
        self._renderer().write_page(self, Path(path))

    def to_pdf(self) -> PdfFile:
        """The page as PDF, on A4; the same result has the same bytes where the same fonts are.

        Raises:
            MissingExtraError: the extra `pdf` is not installed.
        """
        return self._renderer().pdf(self)

    def write_pdf(self, path: Path | str) -> tuple[str, ...]:
        """Write the page as PDF, atomically.

        Returns:
            Notes on characters that no font of this machine has, which are written as their codes.

        Raises:
            MissingExtraError: the extra `pdf` is not installed.
            DiskFullError: no space left; an older file is untouched.
        """
        return self._renderer().write_pdf(self, Path(path))

    def to_json(self) -> dict[str, Any]:
        """The figures in base units, each key with its unit."""
        return self._renderer().to_json(self)

    @property
    def plots(self) -> Mapping[str, Picture]:
        """The plots of the page, by the metric that they show or the heading that they are below; empty without any."""
        return self._renderer().plots(self)

    def __str__(self) -> str:
        return self._renderer().text(self)

    def __repr__(self) -> str:
        about = "" if Result.renderer is None else f": {Result.renderer.line(self)}"
        return f"<{type(self).__name__}{about}>"

    def _repr_mimebundle_(self, **options: object) -> dict[str, str]:
        return self._renderer().cell(self)

    def _repr_html_(self) -> str:
        return self._renderer().cell(self)["text/html"]

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        """Print the text of the cell; a result that is a list or a dictionary names this as its own, or IPython prints
        its elements.
        """
        printer.text(self._renderer().cell(self)["text/plain"])

    def _renderer(self) -> Renderer:
        if Result.renderer is None:
            raise RuntimeError("results cannot be shown: `trainworks.report` is not imported")
        return Result.renderer
