"""Capacity, cost and fault tolerance of RAID and erasure coding.

Symbols: n drives of a group, g groups, f drives of a group that may fail at once, R years to rebuild one drive,
l = -log(1 - AFR) failures of a drive per year.

    loss per year   1 - exp(-g n (n-1) ... (n-f) l^(f+1) R^f)
    R               bytes of a drive / rebuild rate
    read error      1 - exp(-8 k bytes of a drive * errors per bit)   k drives are read to rebuild one

A spare takes over at once. A sector that cannot be read during a rebuild is lost with one drive of parity or one
mirror; a second one repairs it. Drives are taken to fail independently; those of one batch, one power supply or one
firmware do not, so that the real chance is larger. Source: Patterson, Gibson, Katz, "A Case for Redundant Arrays of
Inexpensive Disks", SIGMOD 1988.

Rates are those of one drive: reads use every drive; a write also writes the copies or the parity, and a small one reads
the old parity first, which the factor for large writes leaves out.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce
from operator import mul
from typing import Literal

from trainworks.errors import UsageError
from trainworks.plan.assumptions import assumed
from trainworks.plan.storage.demand import given
from trainworks.plan.trace import Traced, expm1, fact, log

Level = Literal["RAID 0", "RAID 1", "RAID 5", "RAID 6", "RAID 10", "erasure code"]
Drive = Literal["SSD", "disk"]
LEVELS: tuple[Level, ...] = ("RAID 0", "RAID 1", "RAID 5", "RAID 6", "RAID 10")
"""Levels of the drives of one server; an erasure code is spread over servers."""

UNPROTECTED = (
    (
        "power loss in the middle of a write",
        "drives with power-loss protection, a journal or checksummed copy on write",
    ),
    ("a file deleted or overwritten by mistake", "snapshots, and a copy that the same hand cannot reach"),
    ("a broken controller, power supply or server", "a second server, copies on several servers"),
    ("software that writes wrong bytes", "checksums of the files, older checkpoints"),
    ("undetected silent errors", "regular scrubbing, a file system with checksums"),
    ("fire, water, theft", "a copy at another site"),
)
"""Risks that no level protects from, and their remedies."""

_FEWEST: dict[Level, int] = {"RAID 0": 1, "RAID 1": 2, "RAID 5": 3, "RAID 6": 4, "RAID 10": 4, "erasure code": 2}
_PAIR = 2


@dataclass(frozen=True, slots=True)
class Raid:
    """One array."""

    level: Level
    capacity: Traced
    """Usable bytes."""
    reads: Traced
    """Rate of reading over that of one drive."""
    writes: Traced
    """Rate of large writes over that of one drive."""
    tolerates: Traced
    """Drives of which any may fail at once."""
    at_best: Traced
    """Drives that may fail when they are the right ones."""
    rebuild: Traced
    """Seconds."""
    loss: Traced
    """Chance that data are lost within a year."""
    read_error: Traced
    """Chance that a rebuild meets a sector that cannot be read."""


def raid(level: Level, drives: int, *, drive_bytes: float, parity: int = 0, drive: Drive = "SSD") -> Raid:
    """An array of equal drives.

    Args:
        level: `RAID 10` is a stripe over mirrored pairs; `erasure code` takes `parity`.
        drives: n, with those that hold parity.
        drive_bytes: of one drive.
        parity: of an erasure code k+m the m; other levels have their own.
        drive: whose assumptions of failure, rebuilding and read errors hold.

    Raises:
        UsageError: too few drives for the level, an odd number of them for pairs, or parity that leaves no data.
    """
    _check(level, drives, parity)
    count, size = given("drives", drives, ""), given("drive size", drive_bytes, "bytes")
    tolerates, at_best = _failures(level, drives, parity)
    tolerated = fact("failures survived", tolerates, "", source=f"definition of {level}: any drives")
    full = (count / 2 if level == "RAID 10" else count - tolerated).named("data drives", "", parity=tolerated)
    read, errors = _read_to_rebuild(level, full), assumed(f"{drive} read errors")
    rate = assumed(f"{drive} rebuild rate")
    rebuild = (size / rate).named("rebuild time", "s", size=size, rate=rate)
    return Raid(
        level=level,
        capacity=(full * size).named("usable capacity", "bytes", data=full, size=size),
        reads=count.named("read factor", ""),
        writes=full.named("write factor", "", data=full),
        tolerates=tolerated,
        at_best=fact("failures survived at best", at_best, "", source=f"definition of {level}: the right drives"),
        rebuild=rebuild,
        loss=_loss(level, count, tolerated, rebuild, drive),
        read_error=(-expm1(-8 * read * size * errors)).named(
            "read error in a rebuild", "", drives=read, size=size, errors=errors
        ),
    )


def survives(level: Level, drives: int, failed: set[int], *, parity: int = 0) -> bool:
    """True if the data survive when these drives have failed at once.

    Drives 0 and 1 of a RAID 10 are a pair, 2 and 3 the next.

    >>> survives("RAID 10", 8, {0, 2, 4}), survives("RAID 10", 8, {0, 1})
    (True, False)
    """
    if level == "RAID 10":
        return not any({first, first + 1} <= failed for first in range(0, drives, _PAIR))
    return len(failed) <= _failures(level, drives, parity)[0]


def _check(level: Level, drives: int, parity: int) -> None:
    if drives < _FEWEST[level]:
        raise UsageError(f"{level} needs at least {_FEWEST[level]} drive{'s' * (_FEWEST[level] > 1)}, got {drives}")
    if level == "RAID 10" and drives % _PAIR:
        raise UsageError(f"RAID 10 needs pairs of drives, got {drives}", hint=f"take {drives - 1} or {drives + 1}")
    if level == "erasure code" and not 1 <= parity < drives:
        raise UsageError(f"an erasure code of {drives} drives with {parity} for parity", hint="8+2 has 10 and 2")


def _failures(level: Level, drives: int, parity: int) -> tuple[int, int]:
    """Drives that may fail at once: any, and the right ones."""
    if level == "RAID 10":
        return 1, drives // _PAIR
    any_of: dict[Level, int] = {"RAID 0": 0, "RAID 1": drives - 1, "RAID 5": 1, "RAID 6": 2, "erasure code": parity}
    return any_of[level], any_of[level]


def _read_to_rebuild(level: Level, data: Traced) -> Traced:
    """All that hold data where there is parity, the other mirror, or nothing that would help."""
    number = {"RAID 0": 0, "RAID 1": 1, "RAID 10": 1}.get(level)
    return data if number is None else fact("drives read", number, "", source=f"definition of {level}")


def _group(level: Level, drives: Traced) -> Traced:
    """Drives of which too many must not fail together."""
    return fact("drives of a pair", _PAIR, "", source="definition of RAID 10") if level == "RAID 10" else drives


def _loss(level: Level, drives: Traced, tolerated: Traced, rebuild: Traced, drive: Drive) -> Traced:
    group = _group(level, drives)
    terms = [group, *(group - number for number in range(1, int(tolerated.value) + 1))]
    ways = reduce(mul, [drives / group, *terms] if level == "RAID 10" else terms)
    share = assumed(f"{drive} failure rate")
    rate = (-log(1 - share)).named("drive failures per year", "1/year", share=share)
    years = (rebuild / (365 * 86400)).named("rebuild years", "year", seconds=rebuild)
    loss = -expm1(-ways * rate ** (tolerated + 1) * years**tolerated)
    return loss.named(
        "chance of data loss in a year", "", drives=drives, group=group, rate=rate, years=years, failures=tolerated
    )
