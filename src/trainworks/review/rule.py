"""A rule: its documentation, and the check of one file."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from trainworks.review.files import ReviewedFile
from trainworks.review.finding import Finding, Problem, Severity

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

    def findings(self, file: ReviewedFile) -> Iterator[Finding]:
        """Findings of this rule in a file."""
        for problem in self.check(file):
            yield Finding(
                file=file.name,
                line=problem.line,
                column=problem.column,
                rule=self.id,
                severity=self.severity,
                message=problem.message,
                why=self.why,
                fix=self.fix,
                source=self.source,
                edits=problem.edits,
            )


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
        )

    return decorate
