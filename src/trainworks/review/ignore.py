"""Comments that silence findings: `# trainworks: ignore[TW204]` on the line, or without ids for all of them.

In Markdown the comment is `<!-- trainworks: ignore[TW801] -->`. On a line of its own it silences the line below, which
serves lines that continue with a backslash. `trainworks: ignore-file` silences the whole file.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from trainworks.review.finding import Finding

_COMMENT = re.compile(r"(?:#|<!--|//)\s*trainworks:\s*ignore(-file)?\b(?:\[([\w\s,]*)\])?")


def is_ignored(finding: Finding, lines: Sequence[str]) -> bool:
    """A comment in the lines of its file silences the finding."""
    at = finding.line - 1
    near = [lines[at]] if at < len(lines) else []
    if 0 < at <= len(lines) and (above := lines[at - 1].strip()) and _COMMENT.match(above):
        near.append(above)
    found = [comment for line in near for comment in _COMMENT.finditer(line)]
    return any(_names(comment, finding.rule) for comment in found)


def ignores_file(text: str, rule: str) -> bool:
    """The file silences a rule everywhere."""
    return any(comment[1] and _names(comment, rule) for comment in _COMMENT.finditer(text))


def _names(comment: re.Match[str], rule: str) -> bool:
    ids = [id_.strip() for id_ in (comment[2] or "").split(",") if id_.strip()]
    return not ids or rule in ids
