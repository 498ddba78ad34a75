"""Quantities: what a person may write, what it means, and how it is printed."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainworks.errors import QuantityError
from trainworks.units import (
    Money,
    format_bytes,
    format_count,
    format_duration,
    format_gib,
    format_step_time,
    parse_bandwidth,
    parse_bytes,
    parse_count,
    parse_counted,
    parse_duration,
    parse_share,
)

PREFIXES = st.sampled_from("KMGTP")
AMOUNTS = st.integers(1, 10**6)


@given(st.floats(1e-3, 1e9))
def test_a_printed_duration_can_be_read_again(seconds: float) -> None:
    assert parse_duration(format_duration(seconds)) == pytest.approx(seconds, rel=0.05)


@given(st.integers(1, 10**18))
def test_printed_bytes_can_be_read_again(num_bytes: int) -> None:
    assert parse_bytes(format_bytes(num_bytes)) == pytest.approx(num_bytes, rel=0.005)


@given(st.integers(10**4, 10**15))
def test_a_printed_count_can_be_read_again(count: int) -> None:
    assert parse_count(format_count(count)) == pytest.approx(count, rel=0.005)


@given(st.integers(0, 2**53))
def test_bytes_are_exact(num_bytes: int) -> None:
    assert parse_bytes(f"{num_bytes} B") == num_bytes


@given(AMOUNTS, PREFIXES)
def test_a_binary_prefix_is_larger_than_its_decimal_one(amount: int, prefix: str) -> None:
    assert parse_bytes(f"{amount} {prefix}iB") > parse_bytes(f"{amount} {prefix}B")


@given(AMOUNTS, st.sampled_from("KMGT"))
def test_eight_bits_are_a_byte(amount: int, prefix: str) -> None:
    assert parse_bandwidth(f"{8 * amount} {prefix}b/s") == parse_bandwidth(f"{amount} {prefix}B/s")


@given(AMOUNTS, PREFIXES)
def test_a_bandwidth_is_its_size_per_second(amount: int, prefix: str) -> None:
    assert parse_bandwidth(f"{amount} {prefix}iB/s") == parse_bytes(f"{amount} {prefix}iB")


@given(st.integers(0, 100), st.integers(0, 59), st.integers(0, 59))
def test_parts_of_a_duration_add_up(hours: int, minutes: int, seconds: int) -> None:
    assert parse_duration(f"{hours}h{minutes}m {seconds}s") == 3600 * hours + 60 * minutes + seconds


@given(AMOUNTS, st.sampled_from([("k", 10**3), ("K", 10**3), ("M", 10**6), ("B", 10**9), ("T", 10**12), ("", 1)]))
def test_a_count_is_multiplied_by_its_suffix(amount: int, suffix: tuple[str, int]) -> None:
    assert parse_count(f"{amount}{suffix[0]}") == amount * suffix[1]


@given(AMOUNTS)
def test_a_space_before_the_unit_means_nothing(amount: int) -> None:
    assert parse_bytes(f"{amount}GB") == parse_bytes(f" {amount} GB ")


def test_a_gigabyte_is_not_a_gibibyte() -> None:
    assert (parse_bytes("1 GB"), parse_bytes("1 GiB")) == (10**9, 2**30)


def test_a_gigabit_per_second_is_not_a_gigabyte_per_second() -> None:
    assert (parse_bandwidth("8 Gb/s"), parse_bandwidth("8 GB/s")) == (1e9, 8e9)


@pytest.mark.parametrize("parse", [parse_duration, parse_bytes, parse_bandwidth])
def test_a_bare_number_is_refused_because_its_unit_would_be_a_guess(parse) -> None:
    with pytest.raises(QuantityError, match="`5` has no unit"):
        parse("5")


@pytest.mark.parametrize("parse", [parse_duration, parse_bytes, parse_bandwidth, parse_count])
@pytest.mark.parametrize("text", ["-3", "-3 s", "-3 GB", "-3 Gb/s", "- 3"])
def test_a_negative_quantity_is_refused(parse, text: str) -> None:
    with pytest.raises(QuantityError):
        parse(text)


@pytest.mark.parametrize("parse", [parse_duration, parse_bytes, parse_bandwidth, parse_count])
@pytest.mark.parametrize("text", ["", "fast", "nan", "inf", "1 2", "3h later"])
def test_what_is_no_quantity_is_refused(parse, text: str) -> None:
    with pytest.raises(QuantityError):
        parse(text)


@pytest.mark.parametrize(
    ("parse", "text", "nearest"),
    [
        (parse_duration, "10 minutes", "10 min"),
        (parse_duration, "2 wks", "2 w"),
        (parse_duration, "1 hr", "1 h"),
        (parse_bytes, "80 GiBB", "80 GiB"),
        (parse_bytes, "80 G", "80 GB"),
        (parse_bandwidth, "400 Gbps", "400 Gb/s"),
        (parse_bandwidth, "50 GB", "50 GB/s"),
        (parse_duration, "3 hrs", "3 h"),
        (parse_bytes, "80 gb", "80 GB"),
        (parse_bytes, "80 gib", "80 GiB"),
        (parse_bandwidth, "4 gb/s", "4 Gb/s"),
    ],
)
def test_an_unknown_unit_names_the_nearest(parse, text: str, nearest: str) -> None:
    with pytest.raises(QuantityError) as refused:
        parse(text)
    assert refused.value.hint == f"did you mean `{nearest}`?"


def test_an_unknown_unit_lists_the_known_ones() -> None:
    with pytest.raises(QuantityError, match="unknown unit `parsecs`; a duration takes ms, s, sec"):
        parse_duration("12 parsecs")


def test_a_fraction_of_one_is_no_count() -> None:
    with pytest.raises(QuantityError, match=r"`1\.5` is not a whole number"):
        parse_count("1.5")


@given(AMOUNTS, st.sampled_from([("", 1), ("k", 10**3), ("M", 10**6), ("B", 10**9)]))
def test_an_amount_of_dollars_is_multiplied_by_its_suffix(amount: int, suffix: tuple[str, int]) -> None:
    assert (
        Money.parse(f"{amount}{suffix[0]} USD")
        == Money.parse(f"${amount}{suffix[0]}")
        == Money(amount * suffix[1], "USD")
    )


@given(AMOUNTS)
def test_thousands_of_dollars_may_be_separated(amount: int) -> None:
    assert Money.parse(f"{amount:,} USD") == Money.parse(f"${amount:,}") == Money(amount, "USD")


@pytest.mark.parametrize(
    ("text", "amount"),
    [
        ("500万元", 5e6), ("500 万元", 5e6), ("５００万元", 5e6), ("1.5亿元", 1.5e8), ("3亿5000万元", 3.5e8),
        ("两千元", 2000),
        ("¥3", 3), ("￥3", 3), ("¥3元", 3), ("3.2 CNY", 3.2), ("2M RMB", 2e6), ("300万人民币", 3e6),
        ("人民币300万元", 3e6),
    ],
)  # fmt: skip
def test_yuan_are_read_in_every_form_that_people_write(text: str, amount: float) -> None:
    assert Money.parse(text) == Money(amount, "CNY")


def test_american_dollars_may_be_written_in_chinese() -> None:
    assert Money.parse("500万美元") == Money(5e6, "USD")


@pytest.mark.parametrize(
    "text", ["¥20/GPU/h", "20 CNY/h", "20元/卡时", "20元/卡/小时", "20 元 / 小时", "20 RMB", "¥20 / accelerator / hour"]
)
def test_the_price_of_an_hour_may_name_its_unit(text: str) -> None:
    assert Money.parse_per_hour(text) == Money(20, "CNY")


@pytest.mark.parametrize("text", ["20/GPU/h", "¥20/GPU/day", "¥20/month", "¥20/8卡/h"])
def test_a_price_of_another_unit_is_refused(text: str) -> None:
    with pytest.raises(QuantityError, match="amount"):
        Money.parse_per_hour(text)


@given(st.integers(1, 10**12), st.sampled_from(("USD", "CNY")))
def test_the_text_of_an_amount_is_read_as_the_same_amount(amount: int, currency) -> None:
    assert Money.parse(str(Money(amount, currency))) == Money(amount, currency)


def test_cents_are_dollars_too() -> None:
    assert Money.parse("$0.99") == Money(0.99, "USD")


@pytest.mark.parametrize("text", ["2000", "2000 EUR", "2000 dollars", "", "USD 2000", "500万", "5000円", "5000日元"])
def test_an_amount_without_its_currency_is_refused_because_it_would_be_a_guess(text: str) -> None:
    with pytest.raises(QuantityError, match="not an amount of US dollars") as found:
        Money.parse(text)
    assert "`2000 USD`" in (found.value.hint or "") and "other currencies are not converted" in (found.value.hint or "")


@pytest.mark.parametrize(
    "text",
    [
        "-5 USD",
        "$-5",
        "many USD",
        "USD",
        "$",
        "nan USD",
        "5 5 USD",
        "$5 EUR",
        "$5 USD",
        "¥5 USD",
        "元",
        "¥",
        "百元店",
        "万一元",
    ],
)
def test_what_is_no_amount_is_refused(text: str) -> None:
    with pytest.raises(QuantityError):
        Money.parse(text)


@given(st.integers(1, 10**5))
def test_a_count_with_three_decimals_of_a_thousand_is_exact(count: int) -> None:
    assert parse_count(f"{count / 1000:.3f}k") == count


@pytest.mark.parametrize(("parse", "text"), [(parse_count, "1e400"), (parse_bytes, "1e400 B")])
def test_an_infinite_quantity_is_refused(parse, text: str) -> None:
    with pytest.raises(QuantityError):
        parse(text)


def test_a_duration_may_be_written_with_an_exponent() -> None:
    assert parse_duration("1e3 s") == 1000.0


@pytest.mark.parametrize("text", ["300 steps", "300 step", " 300  steps ", "0.3k steps"])
def test_a_noun_may_be_singular_or_plural(text: str) -> None:
    assert parse_counted(text, ("steps", "tokens")) == (300, "steps")


@pytest.mark.parametrize(
    ("text", "counted"),
    [
        ("100亿 tokens", (10**10, "tokens")), ("100 亿 tokens", (10**10, "tokens")), 
        ("100亿tokens", (10**10, "tokens")),
        ("100亿个 token", (10**10, "tokens")), ("2万亿词元", (2 * 10**12, "tokens")), ("1.5万步", (15000, "steps")),
        ("三轮", (3, "epochs")), ("３００步", (300, "steps")), ("３００ steps", (300, "steps")),
    ],
)  # fmt: skip
def test_a_count_may_be_written_in_chinese(text: str, counted: tuple[int, str]) -> None:
    assert parse_counted(text, ("steps", "tokens", "epochs")) == counted


@pytest.mark.parametrize("text", ["300", "steps", "300 stpes", "300steps", "", "步", "300万", "300张"])
def test_a_count_without_its_noun_is_refused(text: str) -> None:
    with pytest.raises(QuantityError, match="is not a count of"):
        parse_counted(text, ("steps", "tokens"))


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.0, "0 s"), (42e-6, "42 us"), (0.0421, "42.1 ms"), (0.99951, "1 s"), (59.94, "59.9 s"), (59.96, "1m 0s"),
        (75.0, "1m 15s"), (3599.7, "1h 0m"), (86399.9, "1d 0h"), (90000.0, "1d 1h"), (-75.0, "-1m 15s"),
    ],
)  # fmt: skip
def test_durations_are_printed_with_the_units_that_matter(seconds: float, text: str) -> None:
    assert format_duration(seconds) == text


@pytest.mark.parametrize(
    ("num_bytes", "text"),
    [(0, "0 B"), (512, "512 B"), (999.6, "1.00 kB"), (80e9, "80.0 GB"), (123456789, "123 MB"), (-5e9, "-5.00 GB")],
)
def test_bytes_are_printed_with_three_figures(num_bytes: float, text: str) -> None:
    assert format_bytes(num_bytes) == text


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (300, "300"),
        (9999, "9,999"),
        (10_000, "10.0k"),
        (2_000_000_000, "2.00B"),
        (999_999, "1.00M"),
    ],
)
def test_counts_are_printed_with_three_figures(count: int, text: str) -> None:
    assert format_count(count) == text


@pytest.mark.parametrize(
    ("num_bytes", "text"),
    [(80 * 2**30, "80.0 GiB"), (2**29, "0.50 GiB"), (2**40, "1,024 GiB"), (-(2**30), "-1.00 GiB"), (0, "0.00 GiB")],
)
def test_memory_of_an_accelerator_is_printed_in_gib(num_bytes: float, text: str) -> None:
    assert format_gib(num_bytes) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(30.0, "30.0 s"), (5.0, "5.00 s"), (0.2, "200 ms"), (2e-4, "200 us"), (75.0, "1m 15s"), (0.0, "0 s")],
)
def test_step_times_keep_three_figures(seconds: float, text: str) -> None:
    assert format_step_time(seconds) == text


@pytest.mark.parametrize("text", ["3mo", "2 months", "1 month"])
def test_a_month_is_refused_because_its_length_differs(text: str) -> None:
    with pytest.raises(QuantityError, match="a month has no fixed length") as raised:
        parse_duration(text)
    assert raised.value.hint == "write it in days, like `90d`"


@pytest.mark.parametrize("text", ["much", "", "%", "-5%", "1.5", "150%", "nan"])
def test_what_is_no_share_is_refused(text: str) -> None:
    with pytest.raises(QuantityError, match=r"is not a share|is not between 0 and 100 %"):
        parse_share(text)


def test_a_share_without_its_sign_is_asked_for() -> None:
    with pytest.raises(QuantityError) as raised:
        parse_share("90")
    assert raised.value.hint == "did you mean `90%`?"


@pytest.mark.parametrize("parse", [parse_count, parse_bytes, parse_duration, parse_bandwidth, Money.parse])
def test_a_quantity_of_thousands_of_digits_is_refused(parse: Callable[[str], object]) -> None:
    with pytest.raises(QuantityError, match="characters, more than 100"):
        parse(f"{'9' * 5000} USD")
