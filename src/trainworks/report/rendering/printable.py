"""Text made harmless: no message, name or log line of another program can control the reader's terminal."""

from __future__ import annotations

import io
import os
import re
import sys

from trainworks.system import IS_WINDOWS

_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
"""Control characters of C0 and C1 but tab and newline, those that change the direction of text, and surrogates."""


def printable(text: str) -> str:
    r"""The text with control characters as escapes: `\x1b` for ESC, `\u202e` for right-to-left override."""
    return _CONTROLS.sub(
        lambda match: f"\\x{ord(match[0]):02x}" if match[0] < "\u0100" else f"\\u{ord(match[0]):04x}", text
    )


def say(text: object, *, err: bool = False) -> None:
    """Print a line for people on stdout, or on stderr."""
    stream = sys.stderr if err else sys.stdout
    stream.write(f"{printable(str(text))}\n")
    stream.flush()


def prepare_streams() -> None:
    """Make stdout and stderr ready for a program: a closed stdout, `>&-`, becomes one that drops all.

    On Windows both write UTF-8 with Linux's ends of lines, into files and pipes as well: Linux reads the scripts and
    manifests.
    """
    if sys.stdout is None:
        sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115, until the end of the program
    for stream in (sys.stdout, sys.stderr) if IS_WINDOWS else ():
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(encoding="utf-8", errors="backslashreplace", newline="\n")
