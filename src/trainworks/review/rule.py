"""A rule: its documentation, and the check of one file."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import KW_ONLY, dataclass, replace
from typing import Concatenate, ParamSpec

from trainworks.review.files import ReviewedFile
from trainworks.review.finding import Finding, Problem, Severity
from trainworks.review.versions import Releases

P = ParamSpec("P")
Check = Callable[[ReviewedFile], Iterator[Problem]]


@dataclass(frozen=True, slots=True)
class ReviewRule:
    """A check with a stable id; its texts are the page of the rule."""

    check: Check
    id: str
    """`TW` and three digits; the first digit is the domain."""
    title: str
    severity: Severity = "error"
    _: KW_ONLY
    why: str
    """What happens, and the figure where there is one."""
    fix: str
    """Correction, in the imperative."""
    source: str
    """Address of the document that the rule follows."""
    bad: str
    """Example that the rule finds."""
    good: str
    """The example corrected; the rule is silent on it."""
    file: str = "train.sh"
    """Name of a file that the examples could be in."""
    stops: bool = False
    """A job with the mistake certainly ends, or hangs, before its first step; Trainworks does not start it."""
    reads_any_code: bool = False
    """The check reads Python line by line, also code without PyTorch, which is not parsed."""
    holds_for: Releases | None = None
    """Releases of a software that have the problem, and can do what the correction writes; None for all of them."""

    def findings(self, file: ReviewedFile) -> Iterator[Finding]:
        """Findings of this rule in a file, without those that no release that the file is used with can have."""
        for found in self.check(file):
            problem = _restrict_to_releases(found, found.holds_for or self.holds_for, file)
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


def _restrict_to_releases(problem: Problem, holds_for: Releases | None, file: ReviewedFile) -> Problem | None:
    """The problem as the releases that a file is used with have it; None if no such release has it."""
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


def _decorator(build: Callable[Concatenate[Check, P], ReviewRule]) -> Callable[P, Callable[[Check], ReviewRule]]:
    def rule(*args: P.args, **kwargs: P.kwargs) -> Callable[[Check], ReviewRule]:
        return lambda check: build(check, *args, **kwargs)

    return rule


rule = _decorator(ReviewRule)
"""Decorator that makes a check a rule; its arguments are the fields of `ReviewRule`, without `check`."""
