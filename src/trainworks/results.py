"""Base of results: they print as text, show as a page in a notebook, and convert to JSON.

The renderers belong to `trainworks.report`, which registers them here when it is imported. So a result of `plan` shows
itself, and `plan` imports no renderer.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar, Protocol


class Renderer(Protocol):
    """Text, page and JSON of every kind of result."""

    def text(self, result: Result) -> str:
        """The result as plain text."""

    def page(self, result: Result) -> str:
        """The result as one self-contained HTML page."""

    def frame(self, result: Result) -> str:
        """The page as an element of a notebook."""

    def write_page(self, result: Result, path: Path) -> None:
        """Write the page, atomically."""

    def to_json(self, result: Result) -> dict[str, Any]:
        """The figures in base units."""


class Result:
    """Base of what a use case returns."""

    __slots__ = ()
    renderer: ClassVar[Renderer | None] = None
    """Set by `trainworks.report`."""

    def to_html(self) -> str:
        """The result as one self-contained HTML page."""
        return self._renderer().page(self)

    def write_html(self, path: Path | str) -> None:
        """Write the page, atomically.

        Raises:
            DiskFullError: no space left; an older page is untouched.
        """
        self._renderer().write_page(self, Path(path))

    def to_json(self) -> dict[str, Any]:
        """The figures in base units, each key with its unit."""
        return self._renderer().to_json(self)

    def __str__(self) -> str:
        return self._renderer().text(self)

    def _repr_html_(self) -> str:
        return self._renderer().frame(self)

    def _renderer(self) -> Renderer:
        if Result.renderer is None:
            raise RuntimeError("results cannot be shown: `trainworks.report` is not imported")
        return Result.renderer
