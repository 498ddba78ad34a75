"""What a use case returns: it prints as text, shows as a page in a notebook, and converts to JSON.

class Greeting(Result):
def document(self) -> Document:
return Document("hello", "greeting", [Section("", [Facts.from_mapping({"to": "the world"})])])

def to_json(self) -> dict[str, Any]:
return {"to": "the world"}
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from trainworks.plan.trace import Traced
    from trainworks.report.document import Document

__all__ = ["Result"]


class Result:
    """Base of the results of use cases."""

    __slots__ = ()

    def document(self) -> Document:
        """The result as a document."""
        raise NotImplementedError

    def to_json(self) -> dict[str, Any]:
        """The figures in base units, each key with its unit."""
        raise NotImplementedError

    @property
    def figures(self) -> Sequence[Traced]:
        """Numbers that `--explain` can derive."""
        return ()

    def to_html(self) -> str:
        """The result as one self-contained HTML page."""
        from trainworks.report.page import render_page  # noqa: PLC0415  # jinja2, which few commands need

        return render_page(self.document())

    def write_html(self, path: Path) -> None:
        """Write the page, atomically.

        Raises:
            DiskFullError: no space left; an older page is untouched.
        """
        from trainworks.report.page import write_page  # noqa: PLC0415

        write_page(self.document(), path)

    def __str__(self) -> str:
        from trainworks.report.text import render_text  # noqa: PLC0415  # rich

        return render_text(self.document())

    def _repr_html_(self) -> str:
        from trainworks.report.page import render_frame  # noqa: PLC0415

        return render_frame(self.document())
