"""A rule: its documentation, and the check of one file."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from trainworks.review.files import ReviewedFile
from trainworks.review.finding import Finding, Problem, Severity
from trainworks.review.versions import Releases

Check = Callable[[ReviewedFile], Iterator[Problem]]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReviewRule:
    """A check with a stable id; its texts are the page of the rule."""

    id: str
    """`TW` and three digits; the first digit is the domain."""
    title: str
    severity: Severity
    why: str
    """What happens, and the figure where there is one."""
    fix: str
    """Correction, in the imperative."""
    source: str
    """Address of the document that the rule follows."""
    file: str
    """Name of a file that the examples could be in."""
    bad: str
    """Example that the rule finds."""
    good: str
    """The example corrected; the rule is silent on it."""
    check: Check
    stops: bool = False
    """A job with the mistake certainly ends, or hangs, before its first step; Trainworks does not start it."""
    reads_any_code: bool = False
    """The check reads Python line by line, also code without PyTorch, which is not parsed."""
    holds_for: Releases | None = None
    """Releases of a software that have the problem, and can do what the correction writes; None for all of them."""

    def findings(self, file: ReviewedFile) -> Iterator[Finding]:
        """Findings of this rule in a file, without those that no release that the file is used with can have."""
        for found in self.check(file):
            problem = _for_releases(found, found.holds_for or self.holds_for, file)
            if problem is None:
                continue
            yield Finding(
                file=file.name,
                line=problem.line,
                column=problem.column,
                rule=self.id,
                severity=self.severity,
                message=problem.message,
                why=self.why,
                fix=self.fix.replace("PART", problem.part or "PART"),
                source=self.source.replace("PART", problem.part or "PART"),
                edits=problem.edits,
            )


def _for_releases(problem: Problem, holds_for: Releases | None, file: ReviewedFile) -> Problem | None:
    """The problem as the releases that a file is used with have it.

    None if no such release has it. Without its correction if one of them cannot do what the correction writes. Where
    no file says which release it is, the correction stays, and the message says which one it presumes.
    """
    if holds_for is None:
        return problem
    pins = file.allowed_releases(holds_for.software)
    if pins and not any(holds_for.meets(pin) for pin in pins):
        return None
    if not problem.edits:
        return problem
    old = next((pin for pin in pins if not holds_for.covers(pin)), None)
    if old is not None:
        reason = f"no correction: it needs {holds_for}, and {old.file} has `{old.text}`"
        return replace(problem, message=f"{problem.message} ({reason})", edits=())
    return problem if pins else replace(problem, message=f"{problem.message} (the correction presumes {holds_for})")


def rule(
    id: str,  # noqa: A002, the name of the field
    title: str,
    severity: Severity,
    *,
    why: str,
    fix: str,
    source: str,
    file: str,
    bad: str,
    good: str,
    stops: bool = False,
    reads_any_code: bool = False,
    holds_for: Releases | None = None,
) -> Callable[[Check], ReviewRule]:
    """Decorate a check with the documentation that makes it a rule; the arguments are the fields of `ReviewRule`."""

    def decorate(check: Check) -> ReviewRule:
        return ReviewRule(
            id=id,
            title=title,
            severity=severity,
            why=why,
            fix=fix,
            source=source,
            file=file,
            bad=bad,
            good=good,
            check=check,
            stops=stops,
            reads_any_code=reads_any_code,
            holds_for=holds_for,
        )

    return decorate
