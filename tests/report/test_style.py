"""The style sheet of pages: its texts can be read in both schemes."""

from __future__ import annotations

import re
from importlib.resources import files

import pytest

STYLE = (files("trainworks.report") / "templates/style.css").read_text()
LIGHT, DARK = (
    dict(re.findall(r"--(\w+): (#\w{6})", scheme)) for scheme in re.findall(r":root \{(.*?)\}", STYLE, re.DOTALL)
)
LEAST = 4.5
"""Contrast of small text, WCAG 2.2, success criterion 1.4.3."""


def luminance(colour: str) -> float:
    """Relative luminance as WCAG defines it."""
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(text: str, ground: str) -> float:
    """Ratio of their luminances, from 1 to 21."""
    darker, lighter = sorted((luminance(text), luminance(ground)))
    return (lighter + 0.05) / (darker + 0.05)


@pytest.mark.parametrize("scheme", [LIGHT, DARK], ids=["light", "dark"])
@pytest.mark.parametrize("text", ["ink", "soft", "line", "alarm", "good", "pause"])
def test_text_of_every_colour_stands_out_from_the_page_and_from_panels(scheme: dict[str, str], text: str) -> None:
    assert min(contrast(scheme[text], scheme[ground]) for ground in ("paper", "panel")) >= LEAST


@pytest.mark.parametrize("scheme", [LIGHT, DARK], ids=["light", "dark"])
def test_the_label_of_every_part_of_a_bar_stands_out_from_its_colour(scheme: dict[str, str]) -> None:
    def colour(value: str) -> str:
        return scheme[value[6:-1]] if value.startswith("var(") else value

    bars = re.findall(r"\.fill-(\w+) \{ fill: (.*?); .*? \.on-\1 \{ fill: (.*?); \}", STYLE)
    assert len(bars) == len(re.findall(r"\.fill-\w+ \{", STYLE)) > 30
    faint = {name: round(ratio, 2) for name, fill, on in bars if (ratio := contrast(colour(on), colour(fill))) < LEAST}
    assert faint == {}
