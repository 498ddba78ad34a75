"""Capacity, cost and fault tolerance of RAID.

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
from typing import Literal, get_args

from trainworks.errors import UsageError
from trainworks.plan.assumptions import assumed
from trainworks.plan.storage.demand import given
from trainworks.plan.trace import Traced, expm1, fact, log

Level = Literal["RAID 0", "RAID 1", "RAID 5", "RAID 6", "RAID 10"]
Drive = Literal["SSD", "disk"]
LEVELS: tuple[Level, ...] = get_args(Level)

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

_FEWEST: dict[Level, int] = {"RAID 0": 1, "RAID 1": 2, "RAID 5": 3, "RAID 6": 4, "RAID 10": 4}
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


def raid(level: Level, drives: int, *, drive_bytes: float, drive: Drive = "SSD") -> Raid:
    """An array of equal drives.

    Args:
        level: `RAID 10` is a stripe over mirrored pairs.
        drives: n, with those that hold parity.
        drive_bytes: of one drive.
        drive: whose assumptions of failure, rebuilding and read errors hold.

    Raises:
        UsageError: too few drives for the level, or an odd number of them for pairs.
    """
    if drives < _FEWEST[level]:
        raise UsageError(f"{level} needs at least {_FEWEST[level]} drive{'s' * (_FEWEST[level] > 1)}, got {drives}")
    if level == "RAID 10" and drives % _PAIR:
        raise UsageError(f"RAID 10 needs pairs of drives, got {drives}", hint=f"take {drives - 1} or {drives + 1}")
    count, size = given("drives", drives, ""), given("drive size", drive_bytes, "bytes")
    tolerates = {"RAID 0": 0, "RAID 1": drives - 1, "RAID 5": 1, "RAID 6": 2, "RAID 10": 1}[level]
    at_best = drives // _PAIR if level == "RAID 10" else tolerates
    tolerated = fact("failures survived", tolerates, "", source=f"definition of {level}: any drives")
    full = (count / 2 if level == "RAID 10" else count - tolerated).named("data drives", "", parity=tolerated)
    # All that hold data where there is parity, the other mirror, or nothing that would help.
    number = {"RAID 0": 0, "RAID 1": 1, "RAID 10": 1}.get(level)
    read = full if number is None else fact("drives read", number, "", source=f"definition of {level}")
    errors = assumed(f"{drive} read errors")
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


def _loss(level: Level, drives: Traced, tolerated: Traced, rebuild: Traced, drive: Drive) -> Traced:
    # Drives of which too many must not fail together.
    group = fact("drives of a pair", _PAIR, "", source="definition of RAID 10") if level == "RAID 10" else drives
    terms = [group, *(group - number for number in range(1, int(tolerated.value) + 1))]
    ways = reduce(mul, [drives / group, *terms] if level == "RAID 10" else terms)
    share = assumed(f"{drive} failure rate")
    rate = (-log(1 - share)).named("drive failures per year", "1/year", share=share)
    years = (rebuild / (365 * 86400)).named("rebuild years", "year", seconds=rebuild)
    loss = -expm1(-ways * rate ** (tolerated + 1) * years**tolerated)
    return loss.named(
        "chance of data loss in a year", "", drives=drives, group=group, rate=rate, years=years, failures=tolerated
    )
