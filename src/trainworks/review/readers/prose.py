"""Markdown and plain text: code blocks, commands that stand in the text, and the lines of prose."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from trainworks.review.readers.shell import Script

_FENCE = re.compile(r"^([ \t]*)(```+|~~~+)[ \t]*([\w+-]*)")
_SHELL_NAMES = frozenset({"", "sh", "bash", "shell", "zsh", "console", "slurm", "sbatch"})
_START = re.compile(
    r"[ \t]*(?:\$ )?(?:srun|torchrun|sbatch|mpirun|pip3? install|(?:sudo )?apt(?:-get)? install|git clone|docker run"
    r"|export [A-Z]\w*=|NCCL_\w+=|(?:\./)?\S*all_reduce_perf|ib_(?:send|write|read|atomic)_(?:bw|lat)"
    r"|\./contrib/configure|\./autogen\.sh|python3? -m torch\.distributed)\b"
)
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


def _blocks(text: str) -> Iterator[CodeBlock]:
    lines = text.split("\n")
    at = 0
    while at < len(lines):
        fence = _FENCE.match(lines[at])
        if fence:
            end = _end_of_fence(lines, at + 1, fence[2])
            yield CodeBlock(fence[3].lower(), "\n".join(lines[at + 1 : end]), at + 2, 0)
        elif _START.match(lines[at]):
            end = _end_of_commands(lines, at)
            yield CodeBlock("sh", "\n".join(lines[at:end]), at + 1, 0)
        else:
            end = at
        at = end + 1 if fence or end == at else end


def _end_of_fence(lines: list[str], at: int, fence: str) -> int:
    while at < len(lines) and not lines[at].lstrip().startswith(fence):
        at += 1
    return at


def _end_of_commands(lines: list[str], at: int) -> int:
    """Line behind a command, the lines that continue it, and the commands that follow at once."""
    at += 1
    while at < len(lines) and (
        lines[at - 1].rstrip().endswith("\\") or _CONTINUES.match(lines[at]) or _START.match(lines[at])
    ):
        at += 1
    return at
