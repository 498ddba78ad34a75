"""TW811 and up: what sentences state, in English and in Chinese; statements.yaml has the rules."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import yaml

from trainworks.review.files import ReviewedFile
from trainworks.review.finding import Problem
from trainworks.review.readers.statements import Pattern, read_pattern, vocabulary
from trainworks.review.rule import Check, ReviewRule


def _read_rules() -> Iterator[ReviewRule]:
    rows = yaml.safe_load(Path(__file__).with_name("statements.yaml").read_text(encoding="utf-8"))
    for id_, row in rows.items():
        patterns = tuple(read_pattern(text) for text in row.pop("says"))
        unless = tuple(row.pop("unless", ()))
        for concept in unless:
            vocabulary()[concept]
        denied, message = row.pop("denied", False), row.pop("message")
        row["bad"], row["good"] = row["bad"] + "\n", row["good"] + "\n"
        # what is outdated is so throughout a text
        check = _check_of(patterns, unless, message, denied=denied, once=row["severity"] == "note")
        yield ReviewRule(check, id_, file="guide.md", **row)


def _check_of(patterns: Sequence[Pattern], unless: Sequence[str], message: str, *, denied: bool, once: bool) -> Check:
    def check(file: ReviewedFile) -> Iterator[Problem]:
        places: dict[int, Problem] = {}
        for pattern in patterns:
            for statement in file.naming(pattern.rarest):
                found = pattern.find(statement)
                if found and not statement.names(*unless) and (denied or not statement.is_denied):
                    places.setdefault(id(statement), statement.problem(found[0], message))
        yield from sorted(places.values(), key=lambda one: one.line)[: 1 if once else None]

    return check


RULES_OF_STATEMENTS: tuple[ReviewRule, ...] = tuple(_read_rules())
