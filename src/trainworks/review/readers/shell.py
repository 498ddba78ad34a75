r"""Shell code as simple commands, each word with its place.

A command ends at a newline, `;`, `&`, `|` or a parenthesis; a backslash before a newline continues it. Bodies of
here-documents are left out, because another program reads them. Values of variables are kept as written.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import dropwhile

from trainworks.review.finding import Placed

_TOKEN = re.compile(
    r"""
    (?P<blank>(?:\\\r?\n|[ \t\r])+)
    |(?P<comment>\#[^\n]*)
    |(?P<word>(?:
        (?<!\w)[A-Za-z_]\w{0,99}\+?=\((?:[^()'"]|'[^']*'|"(?:\\.|[^"\\])*"|\([^()]*\))*\)
        |\\[^\n]
        |\$?'[^']*'
        |"(?:\\.|[^"\\])*"
        |\$\((?:[^()]|\((?:[^()]|\([^()]*\))*\))*\)
        |`[^`]*`
        |\$\{[^}\n]{0,200}\}
        |\d?[<>]{1,2}&[\d-]*|&>+
        |(?<=[^\s;&|()])\#
        |[^\s;&|()'"\\`\#]
    )+)
    |(?P<end>\n|[;&|()]|['"`\\])
    """,
    re.VERBOSE | re.DOTALL,
)
_HERE_DOCUMENT = re.compile(r"(?<!<)<<(?!<)-?[ \t]*['\"\\]?(\w+)")
_QUOTED = re.compile(r"""\\(.)|\$?'([^']*)'|"((?:\\.|[^"\\])*)\"""", re.DOTALL)
_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)=(.*)", re.DOTALL)
_VARIABLE = re.compile(r"\$(?:(\w+)|\{(\w+)\})")
_CONTROL = frozenset({"if", "then", "else", "elif", "do", "while", "until", "!", "{", "time", "exec", "nohup", "sudo"})

_BRANCH = re.compile(r"\b(?:if|case|for|while|until|function)\b|&&|\|\||\(\)")


def has_branches(text: str) -> bool:
    """Shell code may leave a command out: it has a condition, a loop or a function."""
    return _BRANCH.search(text) is not None


@dataclass(frozen=True, slots=True)
class Word(Placed):
    """A word of a command."""

    text: str
    """The word without its quotes; variables are not replaced."""
    raw: str
    """The word as written."""
    line: int
    column: int

    @property
    def end(self) -> int:
        """Column behind its last character, where it is on one line."""
        return self.column + len(self.raw)


@dataclass(frozen=True, slots=True)
class Setting(Placed):
    """An environment variable, or a variable of a shell, that is set."""

    name: str
    value: str
    line: int
    column: int
    value_column: int
    """Column of the first character of the value."""


@dataclass(frozen=True, slots=True)
class Command:
    """A simple command."""

    words: tuple[Word, ...]
    """At least one."""
    settings: tuple[Setting, ...]
    """Variables that are set for this command alone."""

    @property
    def line(self) -> int:
        """Line of its first word."""
        return self.words[0].line

    @property
    def last_line(self) -> int:
        """Line of its last word."""
        return self.words[-1].line + self.words[-1].raw.count("\n")

    @property
    def texts(self) -> list[str]:
        """Its words without quotes."""
        return [word.text for word in self.words]


class Script:
    """Shell code, as a file or as a part of one.

    `line` is the number of its first line in the file, and `indent` the number of characters that precede each of its
    lines there.
    """

    def __init__(self, text: str, *, line: int = 1, indent: int = 0) -> None:
        self.text = text
        self.first_line = line
        self.indent = indent
        self.commands: tuple[Command, ...] = ()
        self.settings: tuple[Setting, ...] = ()
        self.comments: set[int] = set()
        """Numbers of the lines that are comments, outside of quotes and here-documents."""
        commands: list[Command] = []
        settings: list[Setting] = []
        for words in self._groups():
            own, rest = self._split(words)
            if rest and rest[0].text in ("export", "declare", "typeset", "readonly", "local", "env"):
                moved, rest = self._split(list(dropwhile(lambda word: word.text.startswith("-"), rest[1:])))
                own += moved
            settings += own
            if rest:
                commands.append(Command(tuple(rest), tuple(own)))
        self.commands, self.settings = tuple(commands), tuple(settings)

    @cached_property
    def lines(self) -> Sequence[str]:
        """Lines of the code, without their ends."""
        return self.text.split("\n")

    @cached_property
    def values(self) -> Mapping[str, str]:
        """Variables that are set once, to a value without expansions."""
        names = [setting.name for setting in self.settings]
        return {
            setting.name: setting.value
            for setting in self.settings
            if names.count(setting.name) == 1 and not re.search(r"[$`]", setting.value)
        }

    def resolve(self, text: str) -> str:
        """Replace the variables whose value is known."""
        return _VARIABLE.sub(lambda found: self.values.get(found[1] or found[2], found[0]), text)

    def number(self, text: str | None) -> int | None:
        """A whole number that is written out or held by a known variable; else None."""
        resolved = self.resolve(text or "")
        return int(resolved) if re.fullmatch(r"[0-9]{1,9}", resolved) else None

    @staticmethod
    def _split(words: Sequence[Word]) -> tuple[list[Setting], list[Word]]:
        """Leading assignments, and the words behind them."""
        settings: list[Setting] = []
        for index, word in enumerate(words):
            found = _ASSIGNMENT.fullmatch(word.text)
            if found is None:
                return settings, list(words[index:])
            at = word.column + word.raw.index("=") + 1
            settings.append(Setting(found[1], found[2], word.line, word.column, at))
        return settings, []

    def _groups(self) -> Iterator[list[Word]]:
        """Words of each command, without control words at its start."""
        text = _blank_here_documents(self.text)
        starts = [0, *(found.end() for found in re.finditer("\n", text))]
        words: list[Word] = []
        for found in _TOKEN.finditer(text):
            if found["word"]:
                line = bisect_right(starts, found.start()) - 1
                column = found.start() - starts[line] + 1 + self.indent
                raw = found["word"]
                if words or raw not in _CONTROL:
                    meaning = _QUOTED.sub(lambda quoted: next(p for p in quoted.groups() if p is not None), raw)
                    words.append(Word(meaning, raw, line + self.first_line, column))
            elif found["comment"]:
                self.comments.add(bisect_right(starts, found.start()) - 1 + self.first_line)
            elif found["end"] and words:
                yield words
                words = []
        if words:
            yield words


def _blank_here_documents(text: str) -> str:
    """Blank the bodies of here-documents; every line keeps its number. One without an end is kept."""
    if "<<" not in text:
        return text
    lines = text.split("\n")
    ahead = Counter(line.strip() for line in lines)
    waiting: list[str] = []
    for number, line in enumerate(lines):
        ahead[line.strip()] -= 1
        if waiting:
            if line.strip() == waiting[0]:
                waiting.pop(0)
            lines[number] = ""
        else:
            waiting = [name for name in _HERE_DOCUMENT.findall(line) if ahead[name] > 0]
    return "\n".join(lines)
