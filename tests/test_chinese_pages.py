"""The Chinese pages against the English ones: the same commands and outputs, and none that only one language has."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = {"README.zh-CN.md": "README.md", "docs/guides/first-run.zh.md": "docs/guides/first-run.md"}
_OWN_SECTION = re.compile(r"^## [^\n]*中文[^\n]*\n.*?(?=^## |\Z)", re.DOTALL | re.MULTILINE)
"""What only a Chinese page has: how to write a run file in Chinese."""


def _shared(page: str) -> str:
    return _OWN_SECTION.sub("", (ROOT / page).read_text(encoding="utf-8"))


def _blocks(text: str) -> list[str]:
    return re.findall(r"^```\w*\n.*?^```$", text, re.DOTALL | re.MULTILINE)


def _typed(text: str) -> set[str]:
    """Commands, options, keys and paths in running text: code of ASCII alone."""
    prose = re.sub(r"^```.*?^```$", "", text, flags=re.DOTALL | re.MULTILINE)
    return {code for code in re.findall(r"`([^`\n]+)`", prose) if code.isascii()}


@pytest.mark.parametrize("chinese", PAGES)
def test_a_chinese_page_shows_the_blocks_of_the_english_one_in_their_order(chinese: str) -> None:
    blocks = _blocks(_shared(chinese))
    assert blocks == _blocks((ROOT / PAGES[chinese]).read_text(encoding="utf-8"))
    assert blocks, "a page without a block would hold nothing"


@pytest.mark.parametrize("chinese", PAGES)
def test_a_chinese_page_names_no_command_or_key_that_the_english_one_lacks(chinese: str) -> None:
    assert _typed(_shared(chinese)) - _typed((ROOT / PAGES[chinese]).read_text(encoding="utf-8")) == set()


def test_the_guide_in_chinese_leaves_no_command_or_key_out() -> None:
    chinese, english = "docs/guides/first-run.zh.md", "docs/guides/first-run.md"
    assert _typed((ROOT / english).read_text(encoding="utf-8")) - _typed(_shared(chinese)) == set()


@pytest.mark.parametrize("chinese", PAGES)
def test_the_two_languages_of_a_page_have_the_same_headings_and_link_to_each_other(chinese: str) -> None:
    texts = [_shared(chinese), (ROOT / PAGES[chinese]).read_text(encoding="utf-8")]
    levels = [[len(level) for level in re.findall("^(#+) ", text, re.MULTILINE)] for text in texts]
    assert levels[0] == levels[1]
    assert f"[English]({Path(PAGES[chinese]).name})" in texts[0]
    assert f"[中文]({Path(chinese).name})" in texts[1]
