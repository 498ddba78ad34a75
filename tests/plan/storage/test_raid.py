"""RAID levels: what they survive, keep, and how likely they lose data."""

from __future__ import annotations

import math
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainworks.errors import UsageError
from trainworks.plan.storage.raid import LEVELS, UNPROTECTED, Level, Raid, raid

DRIVE = 3.84e12
EVEN = st.integers(2, 20).map(lambda pairs: 2 * pairs)


def array(level: Level, drives: int = 8) -> Raid:
    """An array of SSDs."""
    return raid(level, drives, drive_bytes=DRIVE)


def survives(level: Level, drives: int, failed: set[int]) -> bool:
    """Whether the data survive when these drives fail at once; 0 and 1 of a RAID 10 are a pair, 2 and 3 the next."""
    if level == "RAID 10":
        return not any({first, first + 1} <= failed for first in range(0, drives, 2))
    return len(failed) <= array(level, drives).tolerates.value


@given(st.integers(4, 30), st.data())
def test_raid_6_survives_any_two(drives: int, data: st.DataObject) -> None:
    failed = data.draw(st.sets(st.integers(0, drives - 1), min_size=0, max_size=2))
    assert survives("RAID 6", drives, failed)


@given(st.integers(4, 30))
def test_raid_6_does_not_survive_three(drives: int) -> None:
    assert not survives("RAID 6", drives, {0, 1, 2})


@given(EVEN, st.data())
def test_raid_10_survives_one_of_every_pair(drives: int, data: st.DataObject) -> None:
    failed = {2 * pair + data.draw(st.integers(0, 1)) for pair in range(drives // 2)}
    assert survives("RAID 10", drives, failed)


@given(EVEN, st.data())
def test_raid_10_does_not_survive_a_pair(drives: int, data: st.DataObject) -> None:
    pair = data.draw(st.integers(0, drives // 2 - 1))
    assert not survives("RAID 10", drives, {2 * pair, 2 * pair + 1})


@pytest.mark.parametrize("level", LEVELS)
def test_a_level_survives_any_failures_up_to_the_number_it_tolerates(level: Level) -> None:
    for failed in combinations(range(8), int(array(level).tolerates.value)):
        assert survives(level, 8, set(failed))


@pytest.mark.parametrize("level", LEVELS)
def test_a_level_loses_data_with_some_set_of_one_drive_more(level: Level) -> None:
    more = int(array(level).tolerates.value) + 1
    assert not all(survives(level, 8, set(failed)) for failed in combinations(range(8), more))


@given(EVEN)
def test_capacities(drives: int) -> None:
    expected = {"RAID 0": drives, "RAID 1": 1, "RAID 5": drives - 1, "RAID 6": drives - 2, "RAID 10": drives / 2}
    for level in LEVELS:
        assert array(level, drives).capacity.value == expected[level] * DRIVE


@given(st.integers(1, 200))
def test_a_stripe_over_more_drives_is_lost_more_likely(drives: int) -> None:
    assert array("RAID 0", drives + 1).loss.value > array("RAID 0", drives).loss.value


def test_a_single_drive_is_lost_at_its_failure_rate() -> None:
    assert array("RAID 0", 1).loss.value == pytest.approx(0.0098)


@given(st.integers(4, 30))
def test_more_parity_is_safer(drives: int) -> None:
    chances = [array(level, drives).loss.value for level in ("RAID 6", "RAID 5", "RAID 0")]
    assert chances == sorted(chances)


@pytest.mark.parametrize("drives", [4, 8, 16])
def test_the_chance_of_losing_a_raid_5_is_that_of_its_markov_chain(drives: int) -> None:
    """States: all drives, one failed, lost; probabilities after a year by uniform steps of the exact generator."""
    of = raid("RAID 5", drives, drive_bytes=20e12, drive="disk")
    rate, repair = -math.log(1 - 0.0157), 365 * 86400 / of.rebuild.value
    generator = np.array(
        [[-drives * rate, drives * rate, 0], [repair, -repair - (drives - 1) * rate, (drives - 1) * rate], [0, 0, 0]]
    )
    steps = 2**20
    after = np.linalg.matrix_power(np.eye(3) + generator / steps, steps)
    assert of.loss.value == pytest.approx(after[0, 2], rel=0.02)


def test_a_larger_drive_rebuilds_longer_and_is_less_safe() -> None:
    small, large = (raid("RAID 5", 8, drive_bytes=size, drive="disk") for size in (4e12, 20e12))
    assert large.rebuild.value == 5 * small.rebuild.value
    assert large.loss.value > small.loss.value


def test_rebuilding_a_raid_5_of_large_disks_probably_meets_a_bad_sector() -> None:
    assert raid("RAID 5", 10, drive_bytes=20e12, drive="disk").read_error.value > 0.5


def test_a_mirror_reads_one_drive_to_rebuild_another() -> None:
    assert array("RAID 10").read_error.value == array("RAID 1").read_error.value < array("RAID 5").read_error.value


def test_power_loss_is_among_what_no_level_protects_from() -> None:
    assert any("power loss" in what for what, _ in UNPROTECTED)


@pytest.mark.parametrize(
    ("level", "drives", "message"),
    [
        ("RAID 6", 3, "RAID 6 needs at least 4 drives, got 3"),
        ("RAID 0", 0, "RAID 0 needs at least 1 drive, got 0"),
        ("RAID 10", 7, "RAID 10 needs pairs of drives, got 7"),
    ],
)
def test_an_array_that_cannot_be_is_refused(level: Level, drives: int, message: str) -> None:
    with pytest.raises(UsageError) as refused:
        raid(level, drives, drive_bytes=DRIVE)
    assert refused.value.message == message
