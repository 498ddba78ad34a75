"""Failures where nobody says: from published fleets and assumptions."""

from __future__ import annotations

import pytest

from trainworks.catalog.catalog import accelerator, load_catalog
from trainworks.plan.assumptions import GIVEN
from trainworks.plan.reliability.defaults import fleet_of, save_times, usual_failures
from trainworks.plan.reliability.goodput import job_mttf
from trainworks.plan.trace import fact, leaves

SAVE = fact("save stall", 40.0, "s", source="the test")
DAY_S = 86400.0
HOUR_S = 3600.0


@pytest.mark.parametrize(
    ("part", "fleet"),
    [
        ("A100", "Meta RSC-1"),
        ("H100", "Llama 3 pre-training"),
        ("B200", "SKT B200 cluster"),
        ("TPU-v4", "TPU v4 pods"),
        ("MI300X", None),
    ],
)
def test_an_accelerator_has_the_fleet_of_its_architecture(part: str, fleet: str | None) -> None:
    found = fleet_of(accelerator(part))
    assert (found.name if found else None) == fleet


@pytest.mark.parametrize(("gpus", "hours"), [(16_384, 1.8), (131_072, 0.23)])
def test_a_fleet_s_rate_gives_the_times_that_it_projects(gpus: int, hours: float) -> None:
    mttf = job_mttf(usual_failures(accelerator("A100"), gpus // 8, save=SAVE)).value
    assert mttf / HOUR_S == pytest.approx(hours, rel=0.03)


def test_llama_3_was_interrupted_as_often_as_its_rate_says() -> None:
    mttf = job_mttf(usual_failures(accelerator("H100"), 2048, save=SAVE)).value
    assert 54 * DAY_S / mttf == pytest.approx(419, rel=0.01)


def test_only_hardware_takes_a_node_away() -> None:
    failures = usual_failures(accelerator("H100"), 2048, save=SAVE)
    assert failures.other_mttf is not None
    hardware, other = 2048 / failures.node_mttf.value, 1 / failures.other_mttf.value
    assert hardware / (hardware + other) == pytest.approx(0.78)


def test_a_given_rate_is_that_of_all_failures() -> None:
    failures = usual_failures(accelerator("H100"), 100, save=SAVE, node_mttf_s=50 * DAY_S)
    assert job_mttf(failures).value == pytest.approx(DAY_S / 2)


def test_a_part_without_a_fleet_takes_the_assumption() -> None:
    failures = usual_failures(accelerator("MI300X"), 1, save=SAVE)
    assert (failures.node_mttf.low, failures.node_mttf.high) == (42 * DAY_S, 427 * DAY_S)
    assert failures.other_mttf is None


def test_what_is_given_replaces_what_is_assumed() -> None:
    given = {"node_mttf_s": 1e7, "detect_s": 1.0, "restart_s": 2.0, "repair_s": 3.0}
    failures = usual_failures(accelerator("A100"), 4, save=SAVE, capacity_life_s=6.0, **given)
    shown = (failures.detect, failures.restart, failures.repair, failures.capacity_life)
    assert [number.value for number in shown if number] == [1.0, 2.0, 3.0, 6.0]
    assert {number.source for number in (*shown, failures.node_mttf) if number} == {GIVEN}


def test_every_number_has_a_source() -> None:
    assert all(leaf.source for leaf in leaves(job_mttf(usual_failures(accelerator("H100"), 2048, save=SAVE))))


def test_bloom_s_write_took_what_its_rate_gives() -> None:
    size = fact("checkpoint size", 2.3e12, "bytes", source="bigscience chronicles")
    assert save_times(size, 48, num_accelerators=384)[1].value == pytest.approx(40, rel=0.01)


def test_a_step_hides_the_copy_and_not_the_start() -> None:
    size = fact("checkpoint size", 1e12, "bytes", source="the test")
    steps = [fact("step time", seconds, "s", source="the test") for seconds in (0.0, 4.0, 60.0)]
    stalls = [save_times(size, 4, num_accelerators=10, step=step)[0].value for step in steps]
    assert stalls == [10.5, 6.5, 0.5]
    assert save_times(size, 4, num_accelerators=10, replicas=2)[0].value == 20.5


def test_times_of_a_save_are_given_or_assumed() -> None:
    size = fact("checkpoint size", 1e12, "bytes", source="the test")
    given = save_times(size, 4, num_accelerators=32, save_s=7.0, write_s=0.0)
    assumed = save_times(None, 4, num_accelerators=32)
    assert (given[0].value, given[1].value) == (7.0, 0.0)
    assert (assumed[0].value, assumed[1].value) == (0.5, 40.0)
    assert {time.name for time in (*given, *assumed)} == {
        "save stall",
        "checkpoint write",
    }


def test_published_causes_add_up_and_the_printed_share_is_wrong() -> None:
    llama = load_catalog().fleets["Llama 3 pre-training"]
    assert llama.causes is not None
    assert sum(llama.causes.values()) == llama.failures == 419
    assert llama.causes["faulty GPU"] / 419 == pytest.approx(0.353, abs=0.001)
