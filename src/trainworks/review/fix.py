"""Apply the safe corrections of findings to a text."""

from __future__ import annotations

from collections.abc import Sequence

from trainworks.review.finding import Edit, Finding


def fixed_text(text: str, findings: Sequence[Finding]) -> tuple[str, int]:
    """The corrected text, and the number of findings that were corrected.

    Corrections are applied from the end to the start, so that earlier places stay valid. One that overlaps another is
    left for the next review.
    """
    lines = text.split("\n")
    taken: set[tuple[int, int]] = set()
    edits: list[Edit] = []
    count = 0
    for finding in findings:
        places = {(e.line, at) for e in finding.edits for at in range(e.column, e.column + max(1, e.length))}
        if finding.edits and not places & taken:
            taken |= places
            edits += finding.edits
            count += 1
    for edit in sorted(edits, key=lambda each: (each.line, each.column), reverse=True):
        line, start = lines[edit.line - 1], edit.column - 1
        lines[edit.line - 1] = line[:start] + edit.text + line[start + edit.length :]
    return "\n".join(lines), count
