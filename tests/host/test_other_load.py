"""Load by other programs is told from one's own."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from trainworks.host.other_load import OtherLoad

CORES = sorted(os.sched_getaffinity(0))


def statistics(folder: Path, busy_ticks: int) -> Path:
    """The kernel's statistics, with each core busy for so many ticks and idle for more."""
    rows = [f"cpu{core} {busy_ticks} 0 0 {5 * busy_ticks} {busy_ticks} 0 0 0 0 0" for core in CORES]
    path = folder / "stat"
    path.write_text("\n".join(["cpu 0 0 0 0 0 0 0 0 0 0", *rows, "intr 7 8"]) + "\n")
    return path


@pytest.mark.parametrize(("ticks", "share"), [(0, 0.0), (100_000, 1.0)], ids=["idle", "busy"])
def test_what_others_use_is_their_share_of_these_cores(tmp_path: Path, ticks: int, share: float) -> None:
    load = OtherLoad(statistics(tmp_path, 100))
    statistics(tmp_path, 100 + ticks)
    assert load.share() == share


def test_the_work_of_children_is_ones_own(tmp_path: Path) -> None:
    load, before = OtherLoad(statistics(tmp_path, 0)), os.times()
    subprocess.run([sys.executable, "-c", "sum(range(20_000_000))"], check=True)
    used_s = sum(os.times()[:4]) - sum(before[:4])
    statistics(tmp_path, int(used_s * os.sysconf("SC_CLK_TCK") / len(CORES)))
    assert load.share() == pytest.approx(0, abs=0.1)


@pytest.mark.parametrize("text", [None, "", "cpu 1 2 3 4 5 6 7 8\n"], ids=["missing", "empty", "no-cores"])
def test_a_kernel_that_does_not_say_has_no_share(tmp_path: Path, text: str | None) -> None:
    if text is not None:
        (tmp_path / "stat").write_text(text)
    assert OtherLoad(tmp_path / "stat").share() is None


def test_this_machine_has_a_share() -> None:
    load = OtherLoad()
    time.sleep(0.2)
    share = load.share()
    assert share is not None and 0 <= share <= 1
