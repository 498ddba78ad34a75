"""Chinese numbers: every one reads as its value, and other words stay words."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainworks.numerals import chinese_number, with_digits

_NAMES = "零一二三四五六七八九"


def _below_a_myriad(number: int) -> str:
    """A number below 10,000 as it is read out: 1,024 is 一千零二十四."""
    text, owes_zero = "", False
    for scale, name in ((1000, "千"), (100, "百"), (10, "十"), (1, "")):
        digit = number // scale % 10
        text += ("零" if owes_zero and digit else "") + (_NAMES[digit] + name if digit else "")
        owes_zero = bool(text) and not digit
    return text


def _read_out(number: int) -> str:
    """A positive number below 10^12 as it is read out."""
    parts = [(number // 10**8, "亿"), (number // 10**4 % 10**4, "万"), (number % 10**4, "")]
    text = ""
    for value, name in parts:
        if value:
            text += ("零" if text and value < 1000 else "") + _below_a_myriad(value) + name
    return text


@given(st.integers(1, 10**12 - 1))
def test_a_number_as_it_is_read_out_has_its_value(number: int) -> None:
    assert chinese_number(_read_out(number)) == number


@pytest.mark.parametrize(
    ("text", "number"),
    [("十", 10), ("十六", 16), ("两千", 2000), ("三万五", 35_000), ("三百二", 320), ("千", 1000), ("万", 10_000),
     ("千万", 10**7), ("百亿", 10**10), ("千亿", 10**11), ("万亿", 10**12), ("两万亿", 2 * 10**12), ("零", 0)],
)  # fmt: skip
def test_numbers_in_their_short_forms(text: str, number: int) -> None:
    assert chinese_number(text) == number


@pytest.mark.parametrize("text", ["", "万一", "百一", "一二", "二零二六", "十百", "一万一万", "张", "1", "亿一"])
def test_numerals_out_of_order_are_no_number(text: str) -> None:
    assert chinese_number(text) is None


@pytest.mark.parametrize(
    "text", ["百度", "万一卡住", "第一台", "几十张", "数百台", "近千卡", "1万5张", "2000万1亿张", "H100"]
)
def test_what_is_not_certainly_a_number_stays(text: str) -> None:
    assert with_digits(text) == text


@pytest.mark.parametrize(
    ("text", "read"),
    [("1.5万张", "15000张"), ("1,024万", "10240000"), ("８台", "8台"), ("千卡集群", "1000卡集群"), ("64 张", "64 张")],
)
def test_a_number_is_put_into_digits_where_it_counts(text: str, read: str) -> None:
    assert with_digits(text) == read
