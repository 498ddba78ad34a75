"""The console that every command prints tables and progress to."""

from __future__ import annotations

from collections.abc import Iterable
from typing import IO, Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.text import Text

from trainworks.report.rendering.printable import printable


class SafeConsole(Console):
    """A console that escapes control characters and takes no text for markup or an emoji."""

    def __init__(
        self, *, file: IO[str] | None = None, stderr: bool = False, width: int | None = None, plain: bool = False
    ) -> None:
        # in a notebook rich would show beside a cell what is rendered into a text
        super().__init__(
            file=file,
            stderr=stderr,
            width=width,
            markup=False,
            emoji=False,
            force_jupyter=False,
            color_system=None if plain else "auto",  # plain also where FORCE_COLOR is set, as a notebook does
        )

    def render_str(self, text: str, **options: Any) -> Text:
        """Text whose width counts the escapes that are printed."""
        return super().render_str(printable(text), **options)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Segments with their text escaped; control segments are the console's own and stay."""
        for segment in super().render(renderable, options):
            yield segment if segment.control else Segment(printable(segment.text), segment.style)
