"""Claims of published articles, restated: the wrong ones are found or have a reason why not, no correct one is."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from trainworks.review.check import check_text
from trainworks.review.finding import Finding
from trainworks.review.registry import RULES

CLAIMS: dict[str, dict[str, Any]] = yaml.safe_load((Path(__file__).parent / "claims.yaml").read_text(encoding="utf-8"))
FOUND = {name: claim for kind in ("wrong", "outdated") for name, claim in CLAIMS[kind].items() if "rule" in claim}
TEXTS = [pytest.param(claim, text, id=name) for name, claim in FOUND.items() for text in claim["texts"]]
PROSE = "TW8"
"""Start of the ids of the rules that read prose."""


def findings(text: str, name: str) -> list[Finding]:
    return check_text(text, tuple(RULES.values()), name=name)


@pytest.mark.parametrize(("claim", "text"), TEXTS)
def test_a_wrong_claim_is_found(claim: dict[str, Any], text: str) -> None:
    assert claim["rule"] in {finding.rule for finding in findings(text, claim["file"])}


def test_wrong_prose_is_found_in_chinese_and_in_english() -> None:
    prose = [claim["texts"] for claim in FOUND.values() if claim["rule"].startswith(PROSE)]
    assert [[re.search("[\u4e00-\u9fff]", text) is not None for text in texts] for texts in prose] == (
        [[True, False]] * len(prose)
    )


def test_every_other_wrong_claim_has_a_reason() -> None:
    others = {
        name: claim for kind in ("wrong", "outdated") for name, claim in CLAIMS[kind].items() if name not in FOUND
    }
    assert [name for name, claim in others.items() if len(claim["reason"].split()) < 3] == []


def test_the_set_is_complete() -> None:
    assert [len(CLAIMS[kind]) for kind in ("wrong", "outdated", "correct")] == [55, 19, 52]


def test_the_guide_says_how_many_are_found() -> None:
    guide = (Path(__file__).parents[2] / "docs" / "guides" / "review.md").read_text(encoding="utf-8")
    assert f"in five published articles it finds {len(FOUND)}," in " ".join(guide.split())


@pytest.mark.parametrize("name", CLAIMS["correct"])
def test_a_correct_claim_raises_nothing(name: str) -> None:
    assert findings(CLAIMS["correct"][name], "article.md") == []
