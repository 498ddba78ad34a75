"""What every clock promises, the fake one too."""

from __future__ import annotations

import pytest

from tests.fakes import FakeClock
from trainworks.host.clock import Clock, SystemClock


@pytest.mark.parametrize("clock", [SystemClock(), FakeClock()], ids=["system", "fake"])
def test_time_passes_while_one_sleeps(clock: Clock) -> None:
    before = clock.now()
    clock.sleep(0.01)
    assert 0.009 <= clock.now() - before < 600  # a busy machine may let the process wait, after the sleep too


def test_what_is_planned_on_the_fake_clock_happens_in_its_time(clock: FakeClock) -> None:
    happened: list[str] = []
    clock.after(2.0, lambda: happened.append("planned"))
    clock.sleep(1.9)
    assert happened == []
    clock.sleep(0.2)
    assert happened == ["planned"]


def test_waiting_for_ever_on_the_fake_clock_ends(clock: FakeClock) -> None:
    with pytest.raises(TimeoutError):
        clock.sleep(1e6)
