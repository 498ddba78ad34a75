"""Slurm syntax of times, memory sizes and node lists."""

from __future__ import annotations

import itertools
import re

from trainworks.errors import QuantityError

_TIME = re.compile(r"(?:(?P<days>\d+)-)?(?P<first>\d+)(?::(?P<second>\d+))?(?::(?P<third>\d+))?", re.ASCII)
_KIB = {"K": 1, "": 1 << 10, "M": 1 << 10, "G": 1 << 20, "T": 1 << 30}
_MAX_NODES = 65536


def parse_slurm_time(text: str) -> float | None:
    """Parse a time limit in seconds; None for no limit (`0`, `UNLIMITED`, `INFINITE`).

    Source: sbatch(1), `--time`: minutes, minutes:seconds, hours:minutes:seconds, days-hours, days-hours:minutes and
    days-hours:minutes:seconds. Slurm rounds up to whole minutes; this does not.

    >>> parse_slurm_time("90"), parse_slurm_time("1:30"), parse_slurm_time("2:00:00"), parse_slurm_time("1-12")
    (5400.0, 90.0, 7200.0, 129600.0)

    Raises:
        QuantityError: the text is not a time.
    """
    if text.upper() in ("UNLIMITED", "INFINITE"):
        return None
    found = _TIME.fullmatch(text)
    if found is None:
        raise QuantityError(
            f"`{text}` is not a time of Slurm", hint="write it like `30` (minutes), `2:00:00` or `1-12`"
        )
    numbers = [int(part) for part in found.group("first", "second", "third") if part is not None]
    if found["days"] is not None:
        hours, minutes, seconds = [*numbers, 0, 0][:3]
    elif len(numbers) == 3:
        hours, minutes, seconds = numbers
    else:
        hours, minutes, seconds = [0, *numbers, 0][:3]
    total = ((int(found["days"] or 0) * 24 + hours) * 60 + minutes) * 60 + seconds
    return float(total) or None


def parse_slurm_memory(text: str) -> int:
    """Parse a memory size in bytes; units are powers of 1024, and a bare number is in MiB.

    >>> parse_slurm_memory("64G") == 64 * 2**30, parse_slurm_memory("500") == 500 * 2**20
    (True, True)

    Raises:
        QuantityError: the text is not a size.
    """
    found = re.fullmatch(r"(\d+)([KMGT]?)B?", text, re.IGNORECASE | re.ASCII)
    if found is None:
        raise QuantityError(f"`{text}` is not a memory size of Slurm", hint="write it like `64G`, or `4000M`")
    return int(found[1]) * _KIB[found[2].upper()] * 1024


def expand_nodes(text: str) -> tuple[str, ...]:
    """Expand a list such as `node[1-3,7],login` to the names of its nodes, in order, each once.

    >>> expand_nodes("node[08-10],gpu[1,3]-ib")
    ('node08', 'node09', 'node10', 'gpu1-ib', 'gpu3-ib')

    Raises:
        QuantityError: the list is malformed, or has more than 65536 nodes.
    """
    names: dict[str, None] = {}
    for item in re.findall(r"(?:[^,\[\]]|\[[^\[\]]*\])+|.", text):
        if item == ",":
            continue
        for parts in itertools.product(*_parts(item, text)):
            names["".join(parts)] = None
            if len(names) > _MAX_NODES:
                raise _malformed(text)
    if not names:
        raise _malformed(text)
    return tuple(names)


def _parts(item: str, whole: str) -> list[list[str]]:
    """`a[1-2]b` as [[a], [1, 2], [b]]."""
    pieces = re.findall(r"\[([^\[\]]*)\]|([^\[\],]+)", item)
    if re.search(r"[\[\]]", re.sub(r"\[[^\[\]]*\]", "", item)) or item.startswith("["):
        raise _malformed(whole)
    return [[plain] if plain else _numbers(inside, whole) for inside, plain in pieces]


def _numbers(inside: str, whole: str) -> list[str]:
    """`08-10,12` as 08, 09, 10, 12; the first number gives the width."""
    found: list[str] = []
    for part in inside.split(","):
        bounds = re.fullmatch(r"(\d+)(?:-(\d+))?", part, re.ASCII)
        first, last = (int(bounds[1]), int(bounds[2] or bounds[1])) if bounds else (1, 0)
        if bounds is None or last < first or last - first >= _MAX_NODES:
            raise _malformed(whole)
        found += [f"{number:0{len(bounds[1])}d}" for number in range(first, last + 1)]
    return found


def _malformed(text: str) -> QuantityError:
    return QuantityError(f"`{text}` is not a list of nodes", hint="write it like `node[1-3,7],gpu05`")
