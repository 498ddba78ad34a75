"""The simulation against a plain one: one run at a time, one checkpoint after the other, nothing in closed form."""

from __future__ import annotations

import heapq
import math
import random
import statistics

import pytest

from trainworks.plan.reliability.scenario import Scenario
from trainworks.plan.reliability.simulation import simulate

DAY_S = 86400.0
SCENARIO = Scenario(
    num_nodes=64,
    work_s=10 * DAY_S,
    interval_s=3600.0,
    save_s=120.0,
    write_s=900.0,
    node_mttf_s=20 * DAY_S,
    other_mttf_s=2 * DAY_S,
    detect_s=100.0,
    restart_s=700.0,
    swap_s=200.0,
    repair_s=DAY_S,
    spares=3,
)


def plain_run(s: Scenario, chance: random.Random) -> float:
    """Wall-clock time of one run."""
    now, saved, spares = 0.0, 0.0, [0.0] * s.spares
    rate = s.num_nodes / s.node_mttf_s + 1 / s.other_mttf_s
    down = 0.0
    while True:
        fails_at = now + chance.expovariate(rate)
        begun, now = now, now + down
        written, unwritten = saved, 0.0
        done_at = math.inf
        while now < fails_at:  # interval by interval
            work = min(s.interval_s, s.work_s - saved - unwritten)
            now += work + s.save_s
            if now >= fails_at:
                break
            unwritten += work
            if now + s.write_s <= fails_at or saved + unwritten >= s.work_s:
                written = saved + unwritten
            if saved + unwritten >= s.work_s - 1e-6:
                done_at = now
                break
        if done_at < math.inf:
            return done_at
        assert begun < fails_at
        now, saved = fails_at, written
        down = s.detect_s + s.restart_s
        if chance.random() < s.num_nodes / s.node_mttf_s / rate:
            down += s.swap_s
            heapq.heappush(spares, now + chance.expovariate(1 / s.repair_s))
            now += max(0.0, heapq.heappop(spares) - (now + s.detect_s))


@pytest.mark.parametrize("spares", [0, 3])
def test_it_agrees_with_a_plain_simulation(spares: int) -> None:
    scenario = Scenario(**{name: getattr(SCENARIO, name) for name in Scenario.__slots__} | {"spares": spares})
    chance = random.Random(7)
    plain = [plain_run(scenario, chance) for _ in range(1500)]
    fast = simulate(scenario, trials=4000).wall_s
    error = math.hypot(statistics.stdev(plain) / math.sqrt(len(plain)), float(fast.std()) / math.sqrt(len(fast)))
    assert abs(float(fast.mean()) - statistics.mean(plain)) < 4 * error
    assert float(fast.std()) == pytest.approx(statistics.stdev(plain), rel=0.1)
    assert error < 0.01 * statistics.mean(plain)
