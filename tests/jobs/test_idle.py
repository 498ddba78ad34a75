"""A job is idle as long as no stretch on any of its nodes has used anything."""

from __future__ import annotations

from dataclasses import replace
from functools import reduce
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainworks.agent.watches import Idleness, Quiet, idleness, is_quiet, quiet_after
from trainworks.config.engines import Idle
from trainworks.record.usage import NodeUsage

LIMITS = Idle()
STRETCH_S = LIMITS.sample_every_s


def usage(monotonic_s: float = 0.0, **changes: Any) -> NodeUsage:
    """A node that has used nothing yet."""
    nothing = dict.fromkeys(NodeUsage.model_fields, 0)
    return NodeUsage.model_validate(nothing | {"host": "a", "agent_pid": 7, "monotonic_s": monotonic_s} | changes)


def quiet(earlier: NodeUsage, later: NodeUsage, *, on_accelerators: bool = True) -> bool:
    return is_quiet(earlier, later, LIMITS, on_accelerators=on_accelerators)


used = st.floats(0, 3).map(lambda limits: round(limits, 3))
"""In a stretch, in units of the limit."""


@st.composite
def histories(draw: st.DrawFn) -> list[NodeUsage]:
    """What one node writes: stretches of any use, now and then with a new agent."""
    samples = [usage()]
    for _ in range(draw(st.integers(0, 12))):
        last = samples[-1]
        fresh = draw(st.integers(0, 9)) == 0
        base = usage(last.monotonic_s, agent_pid=last.agent_pid + 1) if fresh else last
        seconds = draw(st.floats(1, 5)) * STRETCH_S
        samples.append(
            base.model_copy(
                update={
                    "monotonic_s": base.monotonic_s + seconds,
                    "cpu_s": base.cpu_s + draw(used) * LIMITS.cpu * seconds,
                    "io_bytes": (base.io_bytes or 0) + int(draw(used) * LIMITS.io * seconds),
                    "network_bytes": (base.network_bytes or 0) + int(draw(used) * LIMITS.network * seconds),
                    "accelerator_s": (base.accelerator_s or 0.0) + draw(used) * LIMITS.accelerator * seconds,
                }
            )
        )
    return samples


def standing(samples: list[NodeUsage]) -> Quiet | None:
    def take(before: Quiet | None, sample: NodeUsage) -> Quiet:
        return quiet_after(before, sample, LIMITS, on_accelerators=True)

    return reduce(take, samples, None)


@given(histories())
def test_a_node_is_quiet_since_the_last_stretch_of_use(samples: list[NodeUsage]) -> None:
    uses = [index for index in range(1, len(samples)) if not quiet(samples[index - 1], samples[index])]
    since = samples[max(uses, default=0)]
    assert standing(samples) == Quiet(since, samples[-1])


@given(histories())
def test_the_same_sample_twice_changes_nothing(samples: list[NodeUsage]) -> None:
    assert standing([sample for sample in samples for _ in range(2)]) == standing(samples)


@given(histories(), st.data())
def test_more_use_never_makes_a_node_quiet_for_longer(samples: list[NodeUsage], data: st.DataObject) -> None:
    index = data.draw(st.integers(0, len(samples) - 1))
    extra_s = data.draw(st.floats(0, 100))
    more = samples[:index] + [one.model_copy(update={"cpu_s": one.cpu_s + extra_s}) for one in samples[index:]]
    shorter, longer = standing(more), standing(samples)
    assert shorter is not None and longer is not None and shorter.seconds <= longer.seconds


@given(st.lists(histories(), min_size=1, max_size=4), st.floats(0, 1e4))
def test_a_job_is_idle_for_as_long_as_its_busiest_node(nodes: list[list[NodeUsage]], at_most_s: float) -> None:
    standings = [standing(samples) for samples in nodes]
    shortest = min(one.seconds for one in standings if one is not None)
    assert idleness(standings, at_most_s=at_most_s).seconds == min(shortest, at_most_s)


@given(histories())
def test_a_node_of_which_there_is_no_word_uses_what_it_holds(samples: list[NodeUsage]) -> None:
    assert idleness([standing(samples), None], at_most_s=1e9).seconds == 0.0


@pytest.mark.parametrize(
    "changes",
    [
        {"cpu_s": 1.01 * LIMITS.cpu * STRETCH_S},
        {"io_bytes": int(1.01 * LIMITS.io * STRETCH_S)},
        {"network_bytes": int(1.01 * LIMITS.network * STRETCH_S)},
        {"network_bytes": None},
        {"accelerator_s": 1.01 * LIMITS.accelerator * STRETCH_S},
        {"disk_waits": 1},
        {"agent_pid": 8},
        {"io_bytes": None},
        {"accelerator_s": None},
    ],
    ids=lambda changes: next(iter(changes)),
)
def test_any_one_of_these_is_use(changes: dict[str, Any]) -> None:
    assert quiet(usage(), usage(STRETCH_S))
    assert not quiet(usage(), usage(STRETCH_S, **changes))


def test_accelerators_do_not_matter_to_a_job_without_any() -> None:
    nothing = usage(accelerator_s=None), usage(STRETCH_S, accelerator_s=None)
    assert quiet(*nothing, on_accelerators=False) and not quiet(*nothing)


def test_a_stretch_that_nobody_watched_is_use() -> None:
    assert quiet(usage(), usage(4 * STRETCH_S)) and not quiet(usage(), usage(4.1 * STRETCH_S))


def test_it_says_how_little_was_used_on_the_node_that_used_most() -> None:
    first, last = usage(), usage(100.0, cpu_s=1.0, io_bytes=5000, accelerator_s=0.5)
    found = idleness([Quiet(first, last), Quiet(first, usage(100.0))], at_most_s=1e9)
    assert found == Idleness(seconds=100.0, accelerator=0.005, cpu_cores=0.01, io_bytes_per_s=50.0)
    assert replace(found, seconds=0.0) == idleness([Quiet(first, last)], at_most_s=0.0)
