"""The share of other programs, from what the agents of the nodes count."""

from __future__ import annotations

import pytest

from trainworks.record.usage import NodeUsage, others_share


def usage(host: str, cpu_s: float, others_s: float | None, cores_s: float | None, agent: int = 1) -> NodeUsage:
    other = dict.fromkeys(("monotonic_s", "io_bytes", "network_bytes", "disk_waits", "accelerator_s"), 0)
    counted = {"cpu_s": cpu_s, "others_s": others_s, "cores_s": cores_s, "host": host, "agent_pid": agent}
    return NodeUsage.model_validate(other | counted)


def test_the_share_is_that_of_the_busiest_node() -> None:
    now = {0: usage("a", 10, 2.0, 20.0), 1: usage("b", 10, 8.0, 20.0), 2: usage("c", 10, None, None)}
    assert others_share(now, {}) == pytest.approx(0.4)


def test_ranks_of_the_same_run_on_the_same_machine_are_no_other_programs() -> None:
    now = {0: usage("a", 10, 12.0, 40.0), 1: usage("a", 10, 12.0, 40.0)}
    assert others_share(now, {}) == pytest.approx(2 / 40)


@pytest.mark.parametrize(("agent", "share"), [(1, 0.75), (2, 0.4)], ids=["the same agent", "another agent"])
def test_the_time_until_an_earlier_version_of_the_same_agent_is_left_out(agent: int, share: float) -> None:
    before = {0: usage("a", 5, 0.5, 10.0, agent)}
    assert others_share({0: usage("a", 10, 8.0, 20.0)}, before) == pytest.approx(share)


def test_a_node_that_has_not_counted_has_no_share() -> None:
    assert others_share({}, {}) is None
    assert others_share({0: usage("a", 10, None, None)}, {}) is None
