"""A rule: its documentation, and the check of one file.

A rule has its texts in English. Those in another language of reviewed files are a file of the folder `texts`, named by
the code of the language.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import KW_ONLY, dataclass, replace
from functools import cache
from pathlib import Path
from typing import Concatenate, ParamSpec

import yaml

from trainworks.review.files import ReviewedFile
from trainworks.review.finding import Finding, Problem, Severity
from trainworks.review.versions import Releases

P = ParamSpec("P")
Check = Callable[[ReviewedFile], Iterator[Problem]]
_FOLDER = Path(__file__).with_name("texts")


@dataclass(frozen=True, slots=True)
class RuleTexts:
    """The texts of a rule in another language than English."""

    title: str
    why: str
    fix: str
    message: str = ""
    """What is wrong; `{name}` stands for a value of the problem. Empty for a rule about code: see `message_of`."""
    bad: str = ""
    """Example in that language, which the rule finds; empty for a rule about code, whose examples are in none."""
    good: str = ""

    def message_of(self, problem: Problem) -> str:
        """What is wrong, with the values of a problem: its own message, else the title and the English message."""
        return self.message.format_map(problem.values) if self.message else f"{self.title}\uff1a{problem.message}"


@cache
def texts(language: str) -> Mapping[str, RuleTexts]:
    """The texts of every rule that has them in a language, by id; none for a language without a file.

    >>> texts("zh")["TW804"].title
    '显存类型不对'
    """
    path = _FOLDER / f"{language}.yaml"
    rows = yaml.safe_load(path.read_text(encoding="utf-8")) if path.exists() else {}
    return {id_: RuleTexts(**row) for id_, row in rows.items()}


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
        """Findings of this rule in a file, without those that no release that the file is used with can have.

        They are in the language of the file where the rule has its texts in it, else in English.
        """
        translated = texts(file.language).get(self.id)
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
                message=translated.message_of(problem) if translated else problem.message,
                why=translated.why if translated else self.why,
                fix=(translated.fix if translated else self.fix).replace("PART", problem.part or "PART"),
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
