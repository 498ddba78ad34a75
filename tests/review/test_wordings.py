"""The wrong claims in other words, in English and in Chinese, and statements that are right."""

from __future__ import annotations

import random
import re
from collections import Counter
from pathlib import Path

import pytest
import yaml

from trainworks.review.check import check_text
from trainworks.review.registry import RULES
from trainworks.review.rule import texts

SETS: dict[str, dict[str, list[dict[str, str]]]] = yaml.safe_load(
    (Path(__file__).parent / "wordings.yaml").read_text(encoding="utf-8")
)
EVERY = tuple(RULES.values())
WRONG = [row for each in SETS.values() for row in each["wrong"]]
RIGHT = [row for each in SETS.values() for row in each["right"]]
TRANSLATED = texts("zh")
PROSE = [id_ for id_ in RULES if id_.startswith("TW8")]


@pytest.mark.parametrize("row", [row for row in WRONG if "rule" in row], ids=lambda row: row["claim"])
def test_a_wrong_claim_is_found_in_other_words(row: dict[str, str]) -> None:
    prefix = "import torch\n" if row["file"] == "train.py" and "torch" not in row["text"] else ""
    assert row["rule"] in {finding.rule for finding in check_text(f"{prefix}{row['text']}\n", EVERY, name=row["file"])}


@pytest.mark.parametrize("row", RIGHT, ids=lambda row: row["text"][:20])
def test_a_right_statement_raises_nothing(row: dict[str, str]) -> None:
    assert check_text(row["text"] + "\n", EVERY, name=row["file"]) == []


@pytest.mark.parametrize("seed", range(40))
def test_a_text_of_any_words_is_read(seed: int) -> None:
    mixed = random.Random(seed)
    words = [word for row in WRONG + RIGHT for word in row["text"].split(" ")]
    text = " ".join(mixed.choices(words, k=60)) + "\n\n| " + " | ".join(mixed.choices(words, k=9)) + " |\n"
    lines = text.split("\n")
    for finding in check_text(text, EVERY, name="guide.md"):
        assert 1 <= finding.column <= len(lines[finding.line - 1]) + 1


def test_the_guide_has_the_numbers_of_the_sets() -> None:
    guide = " ".join((Path(__file__).parents[2] / "docs" / "guides" / "review.md").read_text(encoding="utf-8").split())
    for each in SETS.values():
        found = sum("rule" in row for row in each["wrong"])
        assert f"{found} of {len(each['wrong'])}" in guide


def test_the_wordings_are_of_every_wrong_claim() -> None:
    claims = yaml.safe_load((Path(__file__).parent / "claims.yaml").read_text(encoding="utf-8"))
    named = Counter(row["claim"] for row in WRONG)
    assert {name for kind in ("wrong", "outdated") for name in claims[kind]} == set(named)
    assert min(named.values()) >= 5


def test_every_rule_has_its_texts_in_chinese() -> None:
    assert sorted(TRANSLATED) == sorted(RULES)
    assert [
        id_ for id_ in PROSE if not (TRANSLATED[id_].message and TRANSLATED[id_].bad and TRANSLATED[id_].good)
    ] == []


@pytest.mark.parametrize("id_", list(RULES))
def test_a_chinese_text_has_the_commands_of_the_english_one(id_: str) -> None:
    for english, chinese in ((RULES[id_].why, TRANSLATED[id_].why), (RULES[id_].fix, TRANSLATED[id_].fix)):
        assert re.search("[\u4e00-\u9fff]", chinese)
        assert set(re.findall("`([^`]+)`", english)) <= set(re.findall("`([^`]+)`", chinese))


@pytest.mark.parametrize(
    ("name", "code", "chinese"),
    [
        ("train.sh", "#!/bin/bash\n# 四机三十二卡\ntorchrun --nnodes=4 --standalone train.py\n", True),
        ("train.sh", "#!/bin/bash\n# four nodes of eight GPUs\ntorchrun --nnodes=4 --standalone train.py\n", False),
        ("train.sh", "#!/bin/bash\ntorchrun --nnodes=4 --standalone train.py --title 训练\n", False),
        ("guide.md", "四机训练：\n\n```bash\ntorchrun --nnodes=4 --standalone train.py\n```\n", True),
    ],
)
def test_code_is_answered_in_the_language_of_its_comments(name: str, code: str, chinese: bool) -> None:
    (found,) = check_text(code, [RULES["TW116"]], name=name)
    assert "on 4 nodes" in found.message
    for text in (found.message, found.why, found.fix):
        assert bool(re.search("[\u4e00-\u9fff]", text)) == chinese


@pytest.mark.parametrize(
    ("name", "code", "rules"),
    [
        ("train.sh", "# NCCL knows three algorithms, Ring, Tree and CollNet\nsrun ./a\n", ["TW829"]),
        ("train.py", "import torch\n\nn = 4  # the A100 has 80 GB of HBM3\n", ["TW804"]),
        ("train.py", "import torch\n\nname = 'the A100 has 80 GB of HBM3'\n", []),
        ("train.sh", "# echo the A100 has 80 GB of HBM2e\n#SBATCH --comment=HBM3\nsrun ./a\n", []),
    ],
)
def test_a_claim_in_a_comment_is_read(name: str, code: str, rules: list[str]) -> None:
    assert [found.rule for found in check_text(code, EVERY, name=name)] == rules


@pytest.mark.parametrize("id_", PROSE)
def test_a_chinese_text_is_answered_in_chinese(id_: str) -> None:
    found = [one for one in check_text(TRANSLATED[id_].bad + "\n", EVERY, name="guide.md") if one.rule == id_]
    assert len(found) == 1
    for text in (found[0].message, found[0].why, found[0].fix):
        assert re.search("[\u4e00-\u9fff]", text)
        assert not re.search(r"\{\w+\}|PART", text)


@pytest.mark.parametrize("id_", PROSE)
def test_all_rules_are_silent_on_a_corrected_example_in_chinese(id_: str) -> None:
    assert check_text(TRANSLATED[id_].good + "\n", EVERY, name="guide.md") == []


@pytest.mark.parametrize(
    ("text", "language"),
    [
        ("# 训练集群\n\nA100 配备 80GB HBM3 显存。\n", "zh"),
        ("# A cluster\n\nThe A100 has 80 GB of HBM3.\n", "en"),
        ("The team 北京 writes: the A100 has 80 GB of HBM3, as has every other card of its generation.\n", "en"),
        ("软件与硬件的说明。\n\n| GPU | A100 80GB HBM3 |\n", "zh"),
    ],
)
def test_a_finding_is_in_the_language_of_the_text(text: str, language: str) -> None:
    (found,) = check_text(text, [RULES["TW804"]], name="guide.md")
    assert bool(re.search("[\u4e00-\u9fff]", found.message)) == (language == "zh")
