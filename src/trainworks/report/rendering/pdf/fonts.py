r"""Fonts of a PDF: those that every reader has for Latin text, and fonts of this machine for all other scripts.

A character is set in the first of these that has it:

    1. Helvetica or Courier, which are not embedded: so a report in Latin letters has the same bytes everywhere.
    2. A TrueType font of this machine, of which the used characters are embedded.
    3. For Chinese, Japanese and Korean a standard font of PDF, which the reader's machine has to have.

Any other character is written as its code, `\u0930`, and named in a note: text is never left out or replaced by a box.
Letters are set one by one, so that scripts that join them (Arabic, Devanagari) are legible and not beautiful.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from functools import cache
from itertools import groupby
from pathlib import Path

from reportlab.pdfbase import pdfmetrics
from reportlab.pdfbase.cidfonts import UnicodeCIDFont
from reportlab.pdfbase.ttfonts import TTFError, TTFont

_FOLDERS = (
    "~/.local/share/fonts",
    "~/.fonts",
    "~/Library/Fonts",
    "/usr/local/share/fonts",
    "/usr/share/fonts",
    "/Library/Fonts",
    "/System/Library/Fonts",
    "C:/Windows/Fonts",
)
_FAMILIES = (
    r"dejavusans|liberationsans-regular|freesans|segoeui|arial",
    r"notosans([a-z]*)-regular|notosans(sc|tc|jp|kr|hk)?(\[wght\]|-vf)",
    r"arialuni|arial unicode|droidsansfallback(full)?|gonoto\w*|unifont",
    r"wqy-(zenhei|microhei)|uming|msyh|simhei|simsun|stheiti (light|medium)|songti|heiti",
    r"msgothic|meiryo|yugothr|malgun|applegothic|nanumgothic|msjh",
)
"""Names of font files without their suffix, in small letters, in the order in which they are tried."""
_READERS_FONTS = (
    ("HeiseiKakuGo-W5", re.compile(r"[\u3040-\u30ff\u31f0-\u31ff]")),
    ("HYGothic-Medium", re.compile(r"[\u1100-\u11ff\u3130-\u318f\uac00-\ud7a3]")),
    ("STSong-Light", re.compile(r"[\u2e80-\u2fdf\u3000-\u303f\u3400-\u9fff\uf900-\ufaff\uff00-\uffef]")),
)
"""Standard fonts of PDF by their characters."""
MOST_NAMED = 12


class Typeface:
    """Fonts of one document, and the characters that none of them has."""

    def __init__(self, folders: Iterable[Path] | None = None) -> None:
        """Fonts are looked up in these folders; in those of the system when left out."""
        places = [Path(each).expanduser() for each in _FOLDERS] if folders is None else folders
        self._folders = tuple(places)
        self.missing: dict[str, None] = {}
        """Characters that no font has, in the order of their first use."""
        self.borrowed: dict[str, None] = {}
        """Characters in fonts that the reader's machine has to have."""

    def runs(self, text: str, base: str) -> Iterator[tuple[str, str]]:
        """The text in runs with the font of each; `base` is a standard font of Latin text."""
        if _is_latin(text):
            yield text, base
            return
        for name, same in groupby(text, key=lambda letter: self._font_of(letter) or base):
            letters = "".join(same)
            if name == _NONE:
                self.missing |= dict.fromkeys(letters)
                letters, name = "".join(f"\\u{ord(letter):04x}" for letter in letters), base  # noqa: PLW2901
            yield letters, name

    def width(self, text: str, base: str, size: float) -> float:
        """Width of a line in points."""
        return sum(float(pdfmetrics.stringWidth(run, name, size)) for run, name in self.runs(text, base))

    def notes(self) -> list[str]:
        """What a reader has to know of characters in fonts of the reader's own, and of those written as their codes."""
        remedy = "install one, such as Noto Sans or WenQuanYi, and write it again"
        where = "no TrueType font of the machine that wrote this PDF has"
        notes = []
        if self.borrowed:
            shown = "a font of the reader's machine shows them"
            notes.append(f"{where} {_named(self.borrowed)}: {shown}; to embed one, {remedy}")
        if self.missing:
            notes.append(rf"{where} {_named(self.missing)}: written as codes, `\u....`; {remedy}")
        return notes

    def _font_of(self, letter: str) -> str:
        """Name of the font of a character; empty for the base font, and `_NONE` if no font has it."""
        if _is_latin(letter):
            return ""
        if font := _embedded_font(letter, self._folders):
            return font
        if font := _readers_font(letter):
            self.borrowed[letter] = None
        return font or _NONE


_NONE = "none"


def _is_latin(text: str) -> bool:
    """Whether Helvetica and Courier have all of it."""
    try:
        text.encode("cp1252")
    except UnicodeEncodeError:
        return False
    return True


def _named(letters: Iterable[str]) -> str:
    codes = [f"U+{ord(letter):04X}" for letter in letters]
    return ", ".join(codes[:MOST_NAMED]) + (f" and {len(codes) - MOST_NAMED} more" if len(codes) > MOST_NAMED else "")


@cache
def _embedded_font(letter: str, folders: tuple[Path, ...]) -> str:
    for file in _font_files(folders):
        font = _loaded(file)
        if font is not None and ord(letter) in font.face.charToGlyph:
            return str(font.fontName)
    return ""


def _readers_font(letter: str) -> str:
    for name, letters in _READERS_FONTS:
        if letters.match(letter):
            if name not in pdfmetrics.getRegisteredFontNames():
                pdfmetrics.registerFont(UnicodeCIDFont(name))
            return name
    return ""


@cache
def _font_files(folders: tuple[Path, ...]) -> tuple[Path, ...]:
    """Font files of known families below the folders, in the order in which they are tried."""
    found = [
        file for folder in folders for file in sorted(folder.rglob("*")) if file.suffix.lower() in (".ttf", ".ttc")
    ]
    families = [re.compile(family) for family in _FAMILIES]
    ranked = [
        (rank, index, file)
        for index, file in enumerate(found)
        for rank, family in enumerate(families)
        if family.fullmatch(file.stem.lower())
    ]
    return tuple(file for _, _, file in sorted(ranked))


@cache
def _loaded(file: Path) -> TTFont | None:
    """The font of a file; None for outlines that reportlab cannot embed, and for a damaged file."""
    try:
        font = TTFont(f"{file.stem}-{len(pdfmetrics.getRegisteredFontNames())}", str(file))
    except (TTFError, OSError, ValueError, KeyError, IndexError):
        return None
    pdfmetrics.registerFont(font)
    return font
