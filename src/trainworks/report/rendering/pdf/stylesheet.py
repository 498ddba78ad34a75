"""Colours and strokes of a style sheet, so that pictures on paper look as on the page: one place says what they are.

What the sheets here use is read: rules of classes and tags with descendants, and custom properties. Rules of media
(the dark scheme, narrow screens) and of pseudo-classes are left out.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from xml.etree.ElementTree import Element

from reportlab.lib.colors import Color

_COMMENT = re.compile(r"/\*.*?\*/", re.DOTALL)
_MEDIA = re.compile(r"@media[^{]*\{(?:[^{}]*\{[^{}]*\})*[^{}]*\}")
_RULE = re.compile(r"([^{}]+)\{([^{}]*)\}")
_COMPOUND = re.compile(r"(?P<tag>[a-z]\w*)?(?P<classes>(?:\.[\w-]+)*)")
_VARIABLE = re.compile(r"var\(--([\w-]+)\)")
_HEX = re.compile(r"#([0-9a-fA-F]{6})")
_MIX = re.compile(r"color-mix\(in srgb, (#[0-9a-fA-F]{6}) (\d+)%, transparent\)")


@dataclass(frozen=True, slots=True)
class Compound:
    """What one element has to be: its tag, None for any, and classes among its own."""

    tag: str | None
    classes: frozenset[str]

    def matches(self, node: Element) -> bool:
        """Whether the element is one of these."""
        return self.tag in (None, node.tag) and self.classes <= classes_of(node)


@dataclass(frozen=True, slots=True)
class StyleRule:
    """Declarations for elements that the last compound matches, below one of each that stands before it."""

    path: tuple[Compound, ...]
    declarations: Mapping[str, str]

    @property
    def specificity(self) -> tuple[int, int]:
        """Classes, then tags: a rule with more of them wins."""
        return sum(len(each.classes) for each in self.path), sum(each.tag is not None for each in self.path)

    def matches(self, nodes: Sequence[Element]) -> bool:
        """Whether the rule is for the last of the elements, whose ancestors stand before it, outermost first."""
        if not self.path[-1].matches(nodes[-1]):
            return False
        above = iter(nodes[:-1])
        return all(any(compound.matches(node) for node in above) for compound in self.path[:-1])


class StyleSheet:
    """The rules of a sheet, those that win last."""

    def __init__(self, *texts: str) -> None:
        self._rules: list[StyleRule] = []
        self._variables: dict[str, str] = {}
        for text in texts:
            for selectors, body in _RULE.findall(_MEDIA.sub("", _COMMENT.sub("", text))):
                self._add(selectors, body)
        self._rules.sort(key=lambda rule: rule.specificity)

    def _add(self, selectors: str, body: str) -> None:
        pairs = (line.partition(":") for line in body.split(";") if ":" in line)
        declared = {name.strip(): value.strip() for name, _, value in pairs}
        for name in [name for name in declared if name.startswith("--")]:
            self._variables[name[2:]] = declared.pop(name)
        for selector in selectors.split(","):
            parts = [_COMPOUND.fullmatch(part) for part in selector.split()]
            path = [Compound(part["tag"], frozenset(part["classes"].split(".")) - {""}) for part in parts if part]
            if len(path) == len(parts):  # a selector that needs no more than tags, classes and descendants
                self._rules.append(StyleRule(tuple(path), declared))

    def of(self, nodes: Sequence[Element]) -> dict[str, str]:
        """Declarations for the last of the elements, whose ancestors stand before it, outermost first."""
        found: dict[str, str] = {}
        for rule in self._rules:
            if rule.matches(nodes):
                found |= rule.declarations
        return {
            name: _VARIABLE.sub(lambda match: self._variables.get(match[1], "none"), value)
            for name, value in found.items()
        }

    def of_classes(self, classes: str) -> dict[str, str]:
        """Declarations for an element of these classes, of no tag and without ancestors."""
        return self.of([Element("", {"class": classes})])

    def variable(self, name: str) -> str | None:
        """Value of a custom property; None without it."""
        return self._variables.get(name)


@cache
def page_style() -> StyleSheet:
    """The sheet of pages, in its light scheme."""
    return StyleSheet(page_css())


@cache
def page_css() -> str:
    """Text of the sheet of pages."""
    return (files("trainworks") / "report/templates/style.css").read_text(encoding="utf-8")


def classes_of(node: Element) -> frozenset[str]:
    """Classes of an element."""
    return frozenset(node.get("class", "").split())


def length(text: str | None, whole: float) -> float:
    """A length in pixels, or in per cent of `whole`; zero for none.

    >>> length("25%", 80.0), length("12px", 80.0), length(None, 80.0)
    (20.0, 12.0, 0.0)
    """
    if not text:
        return 0.0
    return float(text[:-1]) * whole / 100 if text.endswith("%") else float(text.removesuffix("px"))


def colour(value: str | None, opacity: str | None = None) -> Color | None:
    """A colour of a sheet: `#rrggbb`, or so many per cent of one; None for `none` and for what else is not a colour."""
    text, alpha = value or "none", float(opacity or 1)
    if mix := _MIX.search(text):
        text, alpha = mix[1], float(mix[2]) / 100
    if (found := _HEX.search(text)) is None:
        return None
    red, green, blue = (int(found[1][at : at + 2], 16) / 255 for at in (0, 2, 4))
    return Color(red, green, blue, alpha)


def sheet_of(svg: Element) -> StyleSheet:
    """The sheet of pages with the rules that a picture brings."""
    own = [node.text or "" for node in svg.iter("style")]
    return StyleSheet(page_css(), *own) if own else page_style()
