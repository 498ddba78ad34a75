"""Environments that were not used for long are deleted; one in use never is."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import trainworks
from trainworks.agent.environments import cache as caching
from trainworks.agent.environments.cache import COMPLETE, hold, lock_of, prune, use_of
from trainworks.errors import ArgumentError
from trainworks.files import take_lock

DAY_S = 86_400.0
NOW = 1e9
USER = """
import sys
from pathlib import Path
from trainworks.agent.environments.cache import hold
import os
assert hold(Path(sys.argv[1]))
os.utime(Path(sys.argv[1]) / "complete.json", (0, 0))
os.execv(sys.executable, [sys.executable, "-c", "print('up', flush=True); input()"])
"""


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TRAINWORKS_CACHE", str(tmp_path))
    monkeypatch.setattr(caching, "_held", {})
    return tmp_path / "environments"


def environment(cache: Path, key: str, *, days: float, complete: bool = True) -> Path:
    """One of 1,000 bytes that was used so many days ago."""
    folder = cache / key
    (folder / "bin").mkdir(parents=True)
    (folder / "bin" / "python").write_bytes(b"x" * 1000)
    folder.with_name(f"{key}.log").write_text("built")
    used = folder / COMPLETE if complete else folder
    if complete:
        used.write_text("")
    os.utime(used, (NOW - days * DAY_S,) * 2)
    return folder


def test_what_was_not_used_for_so_long_is_deleted_the_oldest_first(cache: Path) -> None:
    for key, days in (("new", 1), ("old", 31), ("older", 90)):
        environment(cache, key, days=days)
    environment(cache, "torn", days=40, complete=False)
    found = prune(30 * DAY_S, NOW)
    assert [(one.key, one.num_bytes, one.is_in_use) for one in found] == [
        ("older", 1000, False),
        ("torn", 1000, False),
        ("old", 1000, False),
    ]
    assert {path.name for path in cache.iterdir() if path.suffix not in (".lock", ".use")} == {"new", "new.log"}
    assert prune(30 * DAY_S, NOW) == []


def test_one_in_use_stays_until_the_last_program_that_the_user_became_has_ended(cache: Path) -> None:
    folder = environment(cache, "k", days=90)
    with subprocess.Popen(
        [sys.executable, "-c", USER, str(folder)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as user:
        assert user.stdout is not None and user.stdin is not None
        assert user.stdout.readline() == "up\n"
        assert [one.is_in_use for one in prune(DAY_S, NOW)] == [True]
        assert (folder / COMPLETE).exists()
        user.kill()
    assert [one.is_in_use for one in prune(DAY_S, NOW)] == [False]
    assert not folder.exists()


def test_a_use_is_noted_and_one_that_is_pruned_now_is_not_used(cache: Path) -> None:
    folder = environment(cache, "k", days=90)
    pruning = take_lock(use_of(folder))
    assert pruning is not None and not hold(folder)
    os.close(pruning)
    assert hold(folder) and hold(folder), "a process holds it once"
    assert len(caching._held) == 1
    assert (folder / COMPLETE).stat().st_mtime > NOW
    for lock in caching._held.values():
        os.close(lock)


def test_one_that_is_being_built_stays(cache: Path) -> None:
    folder = environment(cache, "k", days=90, complete=False)
    building = take_lock(lock_of(folder))
    assert building is not None
    assert [one.is_in_use for one in prune(DAY_S, NOW)] == [True] and folder.exists()
    os.close(building)


def test_one_that_was_pruned_a_moment_before_is_not_used(cache: Path) -> None:
    assert not hold(environment(cache, "k", days=1, complete=False))


def test_a_time_that_is_none_is_refused(cache: Path) -> None:
    assert trainworks.prune_environments(0) == []
    with pytest.raises(ArgumentError):
        trainworks.prune_environments("soon")
