"""Markdown and plain text: code blocks, commands that stand in the text, and the adapters that it gives to a node."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass

from trainworks.catalog.catalog import link
from trainworks.catalog.facts import Link
from trainworks.review.readers.shell import Script

_FENCE = re.compile(r"^([ \t]*)(```+|~~~+)[ \t]*([\w+-]*)")
_SHELL_NAMES = frozenset({"", "sh", "bash", "shell", "zsh", "console", "slurm", "sbatch"})
_START = re.compile(
    r"[ \t]*(?:\$ )?(?:srun|torchrun|sbatch|mpirun|pip3? install|(?:sudo )?apt(?:-get)? install|git clone|docker run"
    r"|export [A-Z]\w*=|NCCL_\w+=|(?:\./)?\S*all_reduce_perf|ib_(?:send|write|read|atomic)_(?:bw|lat)"
    r"|\./contrib/configure|\./autogen\.sh|python3? -m torch\.distributed)\b"
)
_INLINE = re.compile(
    r"(?:`|[:：]\s*|(?<=[\u4e00-\u9fff])\s*|\b(?:set|export|run)\s+)"
    r"((?:(?:(?:sudo )?apt(?:-get)? install|pip3? install|git clone|(?:export )?NCCL_\w+="
    r"|ib_(?:send|write|read)_(?:bw|lat))"
    r"|(?:srun|torchrun|mpirun|python3? -m torch\.distributed\.(?:run|launch))\s[^`\u4e00-\u9fff，。；（）]*\w\.py\b)"
    r"[^`\u4e00-\u9fff，。；（）]*)"
)
"""A command inside a line; of launchers only one with its program, because sentences name their options alone."""
_ADVISES_AGAINST = re.compile(r"不要|不应|避免|勿|而不是|\b(?:not|never|avoid|instead of|wrong)\b|n't\b", re.IGNORECASE)
_COMMENT = re.compile(r"(?:[^#\"']*\s)?#+(?!!|SBATCH)\s?(.*)")
_CODE = re.compile(
    r"\s*(?:[\w.\[\]]+\s*(?:[-+*/]?=|\()|[\w./-]+\s+-{1,2}\w|(?:export|import|from|return|if|for|RUN|ENV|FROM)\s|[-$@{])"
)
"""The start of code that is commented out."""
_CONTINUES = re.compile(r"[ \t]*--[A-Za-z]")


@dataclass(frozen=True, slots=True)
class CodeBlock:
    """Lines of a text: a fenced block, or a run of commands between the lines of prose."""

    language: str
    text: str
    line: int
    indent: int


def scripts_in(text: str) -> Iterator[Script]:
    """Shell code of a text, fenced or not; a `$ ` before a command is its prompt."""
    for block in _blocks(text):
        if block.language in _SHELL_NAMES:
            code = re.sub(r"^([ \t]*)\$ ", r"\1  ", block.text, flags=re.MULTILINE)
            yield Script(code, line=block.line, indent=block.indent)


def prose_lines(text: str) -> Iterator[tuple[int, str]]:
    """Numbers and lines of a text outside of its fenced code, without blank ones."""
    fence = ""
    for number, line in enumerate(text.split("\n"), start=1):
        found = _FENCE.match(line)
        if found and (not fence or line.lstrip().startswith(fence)):
            fence = "" if fence else found[2]
        elif not fence and line.strip():
            yield number, line


def comments_in(code: str) -> str:
    """The comments of shell code, Python, YAML, a Dockerfile or a configuration at their places, all else blank.

    Code that is commented out, and options of sbatch, are blank as well.

    >>> comments_in("n = 8  # eight GPUs")
    '          eight GPUs'
    """
    lines = []
    for line in code.split("\n"):
        found = _COMMENT.match(line)
        lines.append(" " * found.start(1) + found[1] if found and not _CODE.match(found[1]) else "")
    return "\n".join(lines)


def python_in(text: str) -> str:
    """The fenced Python programs of a text on their own lines, with all other lines blank.

    A block that imports nothing of torch, or that is indented or no Python, is a fragment and left out.
    """
    lines = [""] * (text.count("\n") + 1)
    for block in _blocks(text):
        if block.language in ("python", "py", "python3") and re.search(
            r"^(?:import|from) torch\b", block.text, re.MULTILINE
        ):
            with suppress(SyntaxError, ValueError, RecursionError):
                ast.parse(block.text)
                lines[block.line - 1 : block.line - 1 + block.text.count("\n") + 1] = block.text.split("\n")
    return "\n".join(lines)


def _blocks(text: str) -> Iterator[CodeBlock]:
    lines = text.split("\n")
    at = 0
    while at < len(lines):
        fence = _FENCE.match(lines[at])
        if fence:
            end = next((n for n in range(at + 1, len(lines)) if lines[n].lstrip().startswith(fence[2])), len(lines))
            yield CodeBlock(fence[3].lower(), "\n".join(lines[at + 1 : end]), at + 2, 0)
        elif _START.match(lines[at]):
            end = _end_of_commands(lines, at)
            yield CodeBlock("sh", "\n".join(lines[at:end]), at + 1, 0)
        else:
            end = at
            for found in _INLINE.finditer(lines[at]):
                if not _ADVISES_AGAINST.search(lines[at]):
                    yield CodeBlock("sh", found[1], at + 1, found.start(1))
        at = end + 1 if fence or end == at else end


def _end_of_commands(lines: list[str], at: int) -> int:
    """Line behind a command, the lines that continue it, and the commands that follow at once."""
    at += 1
    while at < len(lines) and (
        lines[at - 1].rstrip().endswith("\\") or _CONTINUES.match(lines[at]) or _START.match(lines[at])
    ):
        at += 1
    return at


WORD_START, WORD_END = r"(?<![A-Za-z0-9])", r"(?![A-Za-z0-9])"
r"""Ends of a Latin word; `\b` sees none between a letter and a Chinese character."""
LINK = re.compile(rf"{WORD_START}(HDR100|HDR200|EDR|HDR|NDR200|NDR400|NDR|XDR){WORD_END}")
_NUMBERS = {
    "a": 1, "an": 1, "one": 1, "single": 1, "two": 2, "four": 4, "eight": 8,
    "单": 1, "一": 1, "两": 2, "四": 4, "八": 8,
}  # fmt: skip
_MAKER = r"(?:(?:NVIDIA|Mellanox|InfiniBand|ConnectX-?\d)\s+)*"
_COUNTED = re.compile(
    rf"(?<![A-Za-z0-9_.-])(\d{{1,2}}|an?|one|single|two|four|eight|[单一两四八])\s*(?:[x\u00d7*]|张|块|个|口|条)?\s*(?:\d+\s?G(?:b/s|bps|bE)?\s*的?\s*)?{_MAKER}{LINK.pattern}"
    r"(?!\s*(?:switch|(?:\w+\s)?(?:per|for each|to a) GPU|交换))",
    re.IGNORECASE,
)
_COUNTED_BEHIND = re.compile(
    rf"{LINK.pattern}(?:\s*[x\u00d7*]\s*(\d{{1,2}})(?!\d)|\s*(?:单口)?(?:网卡|HCA|NIC)\s*([一两四八\d])\s*[块张个])",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class NodePorts:
    """Adapters of a node in a text."""

    link: Link
    count: int | None
    """None if the text does not say it: one to a GPU."""

    def __str__(self) -> str:
        return f"{self.count}x {self.link.name} per node" if self.count else f"one {self.link.name} per GPU"


def ports_in(text: str) -> NodePorts | None:
    """The adapters that a text gives to a node, the most if it gives several; else the fastest link that it names."""
    counted = [(link(found[2].upper()), _number(found[1])) for found in _COUNTED.finditer(text)] + [
        (link(found[1].upper()), _number(found[2] or found[3])) for found in _COUNTED_BEHIND.finditer(text)
    ]
    if counted:
        fastest, count = max(counted, key=lambda one: one[0].bytes_per_s * one[1])
        return NodePorts(fastest, count)
    named = [link(name) for name in set(LINK.findall(text))]
    return NodePorts(max(named, key=lambda one: one.bytes_per_s), None) if named else None


def _number(text: str) -> int:
    return int(text) if text.isdecimal() else _NUMBERS[text.lower()]
