"""A finding: what a rule found, where, why it matters and what to write instead."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from trainworks.results import Result, ResultVerdict
from trainworks.review.versions import Releases
from trainworks.units import format_counted

Severity = Literal["error", "warning", "note"]
"""`error`: the job fails or hangs; `warning`: it loses speed, data or time; `note`: it is outdated. Levels of SARIF."""


@dataclass(frozen=True, slots=True)
class Edit:
    """A replacement inside one line."""

    line: int
    column: int
    """First character that is replaced, from 1."""
    length: int
    text: str


@dataclass(frozen=True, slots=True)
class Problem:
    """What the check of a rule reports."""

    line: int
    column: int
    message: str
    """What is wrong, with the value and the limit."""
    edits: tuple[Edit, ...] = ()
    """A safe correction: it keeps the meaning of a correct file. Empty without one."""
    holds_for: Releases | None = None
    """Releases that have this problem, and can do what the correction writes; None for those of the rule."""
    values: Mapping[str, str] = field(default_factory=dict)
    """Values of the message, which a translation of it repeats."""
    part: str = ""
    """Row of the catalogue that the problem is about; it replaces `PART` in the texts of the rule."""


class Placed:
    """Something at a place of a file."""

    __slots__ = ()
    line: int
    column: int

    def problem(self, message: str, edits: tuple[Edit, ...] = ()) -> Problem:
        """A problem at that place."""
        return Problem(self.line, self.column, message, edits)


@dataclass(frozen=True, slots=True)
class Finding:
    """A problem with the rule that found it."""

    file: str
    line: int
    column: int
    rule: str
    severity: Severity
    message: str
    why: str
    fix: str
    source: str
    edits: tuple[Edit, ...] = ()

    @property
    def place(self) -> str:
        """`file:line:column`."""
        return f"{self.file}:{self.line}:{self.column}"

    def to_json(self) -> dict[str, object]:
        """Every field but the edits."""
        return {name: getattr(self, name) for name in self.__slots__ if name != "edits"}


@dataclass(frozen=True, slots=True)
class ReviewReport(Result):
    """Findings of all files, in the order of their places."""

    findings: Sequence[Finding]
    files: int
    """Files that were read."""
    fixed: int = 0
    """Findings that were corrected in the files; `findings` are those that remain."""

    @property
    def verdict(self) -> ResultVerdict:
        """The first finding of the worst severity, and how many there are of each; or that nothing was found."""
        count = Counter(each.severity for each in self.findings)
        order: tuple[Severity, ...] = ("error", "warning", "note")
        worst = next((each for level in order for each in self.findings if each.severity == level), None)
        files = format_counted(self.files, "file")
        if worst is None:
            return ResultVerdict("Use it as it is", f"nothing found in {files}")
        found = " and ".join(format_counted(count[level], level) for level in order if count[level])
        action = f"Mend {worst.place}{' first' if len(self.findings) > 1 else ''}"
        if worst.severity != "error":
            action = f"Use it, and look at {worst.place}"
        signal: Literal["stop", "check"] = "stop" if worst.severity == "error" else "check"
        return ResultVerdict(action, f"{worst.rule}, {worst.message}", f"{found} in {files}", signal)
