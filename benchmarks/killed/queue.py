"""What every attacked queue has in common: its users, its job store, and the account of its kills."""

from __future__ import annotations

import abc
import os
import random
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, ClassVar

import psutil

from tests.locks import has_locked
from tests.users import FIRST_UID, User, users
from trainworks.jobs.job_row import JobRow
from trainworks.jobs.state import JobState
from trainworks.jobs.store import JobStore, open_store
from trainworks.record.run_dir import RunDir

USERS = 3
LOOK_EVERY_S = 2.0


class Queue(abc.ABC):
    """A queue of three users, whose parts can be killed.

    Args:
        folder: that all users can write; it has their homes and the job store.
        chance: draws what is killed.
        env: variables of every command of a user.
    """

    patience_s: ClassVar[float]
    """Longest time for all kills, and then for the end of all jobs."""
    pause_s: ClassVar[tuple[float, float]]
    """Shortest and longest time between two kills."""
    most_kills_of_a_job: ClassVar[int]
    throttle: ClassVar[str] = ""
    """What follows the indices of an array."""
    first_uid: ClassVar[int] = FIRST_UID
    shares: ClassVar[dict[str, int]]
    """How often each role is drawn, relatively."""

    def __init__(self, folder: Path, chance: random.Random, env: dict[str, str]) -> None:
        self.folder = folder
        store_folder = folder / "store"
        store_folder.mkdir()
        store_folder.chmod(0o777)
        url = f"sqlite:///{store_folder / 'jobs.db'}"
        self.store: JobStore = open_store(url)
        (store_folder / "jobs.db").chmod(0o666)
        self.people: list[User] = users(folder, USERS, {"TRAINWORKS_STORE": url, **env}, self.first_uid)[1:]
        self.kills: Counter[str] = Counter()
        """By role."""
        self.kills_of_run: Counter[str] = Counter()
        """By run directory; kills of submitters and of daemons that run no job belong to none."""
        self._hits: list[tuple[float, str, set[str]]] = []
        """Time and role of each kill that may have hit jobs, and their run directories; empty for all jobs."""
        self._chance = chance
        self._looks: list[subprocess.Popen[bytes]] = []
        """Commands of users who look at the queue."""
        self._next_look_at = 0.0

    @abc.abstractmethod
    def keys(self, number: int) -> dict[str, Any]:
        """Keys of the run file of the job with that number."""

    @abc.abstractmethod
    def kill_one(self) -> None:
        """Kill one process of a role drawn at random, if there is one."""

    @abc.abstractmethod
    def mend(self, *, all_of_it: bool = False) -> None:
        """Start again what an operator would, once its time has come."""

    def common(self, name: str) -> Path:
        """File that all jobs see, under the path that they have for it."""
        return self.folder / name

    def book(self, user: User, name: str) -> Path:
        """File in which a job notes its lives, under the path that the job has for it."""
        return user.home / name

    def seen(self, file: Path) -> Path:
        """The file of a job, under the path that this process has for it."""
        return file

    def record(self, job: JobRow) -> RunDir:
        """The run directory that the job itself writes."""
        return RunDir(Path(job.run_dir))

    def kill_submitter(self, running: Sequence[subprocess.Popen[str]]) -> None:
        """Kill one of the commands that submit."""
        self.kills["submitter"] += killed(self._chance.choice(running).pid)

    def may_refuse(self, exit_code: int, complaints: str) -> bool:
        """Whether a submission may fail like this, without a job."""
        return False

    def charged(self, job: JobRow) -> int:
        """Kills that may have cost a job a restart."""
        return self.kills_of_run[job.run_dir]

    def kills_during(self, job: JobRow) -> list[tuple[float, str]]:
        """Time and role of each kill of a job, and of every kill during it that may have hit all jobs."""
        end = job.ended_at or time.time()
        return [
            (at, role)
            for at, role, runs in self._hits
            if job.run_dir in runs or (not runs and job.submitted_at <= at <= end)
        ]

    def end_looks(self) -> None:
        """End the commands that look."""
        for look in self._looks:
            look.kill()
            look.wait()

    def _draw(self) -> str:
        return self._chance.choices(list(self.shares), list(self.shares.values()))[0]

    def _charge(self, role: str, run_dirs: set[str]) -> None:
        self.kills[role] += 1
        self.kills_of_run.update(run_dirs)
        self._hits.append((time.time(), role, run_dirs))

    def _look(self) -> None:
        """Let a user look at the queue, unless one still does or has just begun."""
        if all(look.poll() is not None for look in self._looks) and time.monotonic() >= self._next_look_at:
            self._looks = [self._chance.choice(self.people).start("ps")]
            self._next_look_at = time.monotonic() + LOOK_EVERY_S

    def _kill_dispatcher(self) -> None:
        """Kill the dispatcher of a user; nothing starts until the next look, which comes at once."""
        user = self._chance.choice(self.people)
        for pid in _dispatchers(user):
            self.kills["dispatcher"] += killed(pid)
            self._looks.append(user.start("ps"))

    def _live(self, *, holding: bool = False) -> list[JobRow]:
        """Jobs that have not ended as far as the store knows, or that have their nodes, and were not hit too often."""
        states = [state for state in JobState if (state.holds_resources if holding else not state.is_final)]
        found = self.store.search(states=states)
        return [job for job in found if not self._are_spared([job.run_dir])]

    def _are_spared(self, run_dirs: Iterable[str]) -> bool:
        """Whether one of these jobs has been hit often enough."""
        return any(self.kills_of_run[run] >= self.most_kills_of_a_job for run in run_dirs)


def killed(pid: int) -> bool:
    """Kill a process; False if it has ended already."""
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return False
    return True


def _dispatchers(user: User) -> list[int]:
    """Processes of a user that have taken the lock of the dispatcher; its copies may be supervisors when one is hit."""
    found, place = [], str(user.home.parent)
    for one in psutil.process_iter():
        try:
            is_own = place in one.environ().get("TRAINWORKS_STORE", "")  # users of other trials have the same uids
            if is_own and one.uids().real == user.uid and has_locked(one.pid, "dispatcher.lock"):
                found.append(one.pid)
        except (psutil.Error, OSError):
            continue
    return found
