"""Random kills of the queue of one machine: several users, arrays among their jobs, and SIGKILL to every part of it.

    python -m benchmarks.queue_kills --jobs 115 --kills 200

The users share a job store and the ledger of the machine, and submit by the command line, most of the jobs in arrays
of eight. Meanwhile submitters, dispatchers, supervisors, agents and ranks are killed, drawn at random, until all kills
are done. Then every accepted job has to succeed without help. The record is checked afterwards:

- no accepted job is missing, and no job succeeds without having reached its end;
- no job runs twice at a time: every life takes a lock that its processes hold;
- lives <= 1 + restarts, restarts <= kills of the job, and the job store counts as many as the record;
- submission <= start of an attempt <= its end <= start of the next one.

Needs root, for processes of other users.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shlex
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

import psutil

from tests.users import User, common_folder, require_root, users
from trainworks.host import process
from trainworks.jobs.job_row import JobRow
from trainworks.jobs.state import JobState
from trainworks.jobs.store import JobStore, open_store
from trainworks.record.events import read_events
from trainworks.record.run_dir import RunDir
from trainworks.recover.restarts import restarts_used

__all__ = ["Trial", "run_trial"]

USERS, ARRAY, PATIENCE_S = 3, 8, 600.0
ROLES = ("rank", "agent", "supervisor", "dispatcher")
MAX_RESTARTS = 50
MOST_KILLS_OF_A_JOB = 6
"""The wait before a restart doubles with each one that has led to no checkpoint."""
SCRIPT = """\
book={book}.$TRAINWORKS_ARRAY_INDEX
exec 9>"$book.lock"
flock --nonblock 9 || echo twice >> "$book"
echo begin >> "$book"
{work}
echo end >> "$book"
"""


@dataclass
class Trial:
    """What was submitted and killed, and what is wrong in the end."""

    accepted: set[tuple[int, str]] = field(default_factory=set)
    """User and run of each job whose submission was confirmed."""
    kills: Counter[str] = field(default_factory=Counter)
    """By role."""
    kills_of_run: Counter[str] = field(default_factory=Counter)
    """By run directory; kills of dispatchers and submitters belong to none."""
    looks: list[subprocess.Popen[bytes]] = field(default_factory=list)
    """Commands of users who look at the queue."""
    jobs: int = 0
    restarts: int = 0
    attempts: int = 0
    problems: list[str] = field(default_factory=list)


def run_trial(*, jobs: int, kills: int, seed: int, seconds: float | None, array: int = ARRAY) -> Trial:
    """Submit so many jobs of three users, kill so often, and check what is left.

    Args:
        jobs: submitted in total; killed submitters leave fewer in the queue.
        kills: signals that reached a process.
        seed: of all draws.
        seconds: that a job sleeps; when None, every job runs until all kills are done.
        array: jobs of an array.
    """
    require_root()
    with common_folder() as folder:
        store_folder = folder / "store"
        store_folder.mkdir()
        store_folder.chmod(0o777)
        url = f"sqlite:///{store_folder / 'jobs.db'}"
        store = open_store(url)
        (store_folder / "jobs.db").chmod(0o666)
        ledger = str(folder / "ledger")
        people = users(folder, USERS, {"TRAINWORKS_STORE": url, "TRAINWORKS_LEDGER": ledger})[1:]
        chance, trial = random.Random(seed), Trial()
        try:
            over = folder / "over"
            work = f"sleep {seconds}" if seconds is not None else f"until [ -e {over} ]; do sleep 0.1; done"
            submissions = _submissions(people, jobs, array, work)
            _kill_and_submit(trial, people, store, submissions, kills, chance)
            over.touch()
            _wait_for_all(trial, store, people)
            _check(trial, people, store)
            return trial
        finally:
            for look in trial.looks:
                look.kill()
                look.wait()
            while left := process.processes_with({"TRAINWORKS_LEDGER": ledger}):  # one may have started another
                for one in left:
                    killed(one.pid)


def _kill_and_submit(
    trial: Trial,
    people: Sequence[User],
    store: JobStore,
    submissions: Iterator[tuple[User, subprocess.Popen[str]]],
    kills: int,
    chance: random.Random,
) -> None:
    running: list[tuple[User, subprocess.Popen[str]]] = []
    deadline, is_over = time.monotonic() + PATIENCE_S, False
    while not is_over or running or trial.kills.total() < kills:
        assert time.monotonic() < deadline, (trial, store.counts())
        if not is_over and len(running) < 2:
            submission = next(submissions, None)
            is_over = submission is None
            running += [submission] if submission else []
        time.sleep(chance.uniform(0.02, 0.3))
        running = [one for one in running if not _is_submitted(trial, *one)]
        if trial.kills.total() < kills:
            _kill_one(trial, people, store, running, chance)
        if is_over and not running and all(state.is_final for state in store.counts()):
            break
    if trial.kills.total() < kills:
        trial.problems.append(f"only {trial.kills.total()} of {kills} kills before all jobs had ended")


def _submissions(
    people: Sequence[User], jobs: int, array: int, work: str
) -> Iterator[tuple[User, subprocess.Popen[str]]]:
    """Commands that submit one job or an array: a quarter of them submit arrays."""
    number, left = 0, jobs
    while left:
        user = people[number % len(people)]
        size = min(left, array) if number % 12 < len(people) else 1
        name, left, number = f"job{number}", left - size, number + 1
        run = SCRIPT.format(book=shlex.quote(str(user.home / name)), work=work)
        keys = {"name": name, "run": run, "resources": {"cpus": 0.25}}
        keys |= {"recover": {"max_restarts": MAX_RESTARTS, "backoff": "100 ms"}}
        file = user.home / f"{name}.yaml"
        file.write_text(json.dumps(keys))
        yield user, user.popen("submit", str(file), *(("--array", f"0-{size - 1}%4") if size > 1 else ()))


def _is_submitted(trial: Trial, user: User, command: subprocess.Popen[str]) -> bool:
    """Whether a submission has ended; what it printed is accepted."""
    if command.poll() is None:
        return False
    printed, complaints = command.communicate()
    trial.accepted |= {(user.uid, run_id) for run_id in printed.split()}
    if command.returncode not in (0, -9):
        trial.problems.append(f"a submission of user {user.uid} failed: {complaints.strip()}")
    return True


def _kill_one(
    trial: Trial,
    people: Sequence[User],
    store: JobStore,
    running: Sequence[tuple[User, subprocess.Popen[str]]],
    chance: random.Random,
) -> None:
    """Kill one process of a role drawn at random, if there is one, and see to it that somebody dispatches."""
    if running and chance.random() < 1 / 40:
        trial.kills["submitter"] += killed(chance.choice(running)[1].pid)
        return
    role = chance.choice(ROLES)
    if role == "dispatcher":
        user = chance.choice(people)
        for pid in _dispatchers(user):
            trial.kills[role] += killed(pid)
            trial.looks.append(user.start("ps"))  # as anybody would who looks
        return
    holding = [
        job
        for job in store.search(states=[state for state in JobState if state.holds_resources])
        if trial.kills_of_run[job.run_dir] < MOST_KILLS_OF_A_JOB
    ]
    for job in chance.sample(holding, min(1, len(holding))):
        for pid in _pids(role, RunDir(Path(job.run_dir))):
            if killed(pid):
                trial.kills[role] += 1
                trial.kills_of_run[job.run_dir] += 1


def killed(pid: int) -> bool:
    """Kill a process; False if it has ended already."""
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return False
    return True


def _pids(role: str, run_dir: RunDir) -> list[int]:
    """One process of that role of a job, if there is one."""
    mark = {"TRAINWORKS_RUN_DIR": str(run_dir.path)}
    if role == "rank":
        return [one.pid for one in process.processes_with(mark | {"RANK": "0"})][:1]
    supervisor = run_dir.read_status().supervisor_pid
    try:
        agents = [one.pid for one in psutil.Process(supervisor).children()] if supervisor else []
    except psutil.NoSuchProcess:
        return []
    return [supervisor] if supervisor and role == "supervisor" else agents[-1:]


def _dispatchers(user: User) -> list[int]:
    """Processes of a user that hold the lock of the dispatcher."""
    found = []
    for one in psutil.process_iter():
        try:
            is_own = one.environ().get("TRAINWORKS_STORE") == user.env["TRAINWORKS_STORE"]  # users of trials share uids
            if (
                is_own
                and one.uids().real == user.uid
                and any(link.readlink().name == "dispatcher.lock" for link in Path(f"/proc/{one.pid}/fd").iterdir())
            ):
                found.append(one.pid)
        except (psutil.Error, OSError):
            continue
    return found


def _wait_for_all(trial: Trial, store: JobStore, people: Sequence[User]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not all(state.is_final for state in store.counts()):
        if time.monotonic() > deadline:
            trial.problems.append(f"not all jobs end: {store.counts()}")
            return
        for user in people:
            user.ok("ps")
        time.sleep(1.0)


def _check(trial: Trial, people: Sequence[User], store: JobStore) -> None:
    jobs = store.search()
    trial.jobs, trial.restarts = len(jobs), sum(job.restarts for job in jobs)
    lost = trial.accepted - {(job.uid, job.run_id) for job in jobs}
    trial.problems += [f"the job `{run_id}` of user {uid} is lost" for uid, run_id in sorted(lost)]
    homes = {user.uid: user.home for user in people}
    for job in jobs:
        file = RunDir(Path(job.run_dir)).read_resolved().run_file
        index = file.envs.get("TRAINWORKS_ARRAY_INDEX", "")
        book = homes[job.uid or 0] / f"{file.name}.{index}"
        found = [*_book_problems(trial, job, book), *_time_problems(trial, job, store)]
        counted = restarts_used(read_events(RunDir(Path(job.run_dir)).events_file))
        if job.restarts != counted:
            found.append(f"{job.restarts} restarts in the job store, {counted} in the record")
        trial.problems += [f"job {job.id} ({job.run_dir}): {problem}" for problem in found]


def _book_problems(trial: Trial, job: JobRow, book: Path) -> Iterator[str]:
    """What the job's own notes and its restarts say against it."""
    lives = Counter(book.read_text().split() if book.exists() else [])
    counted = restarts_used(read_events(RunDir(Path(job.run_dir)).events_file))
    if job.state is not JobState.SUCCEEDED:
        yield f"{job.state}: {job.cause}, {job.message}"
    if not lives["end"]:
        yield "its command has not reached its end"
    if lives["twice"]:
        yield "two of its lives ran at once"
    if lives["begin"] > 1 + counted:
        yield f"{lives['begin']} lives and {counted} restarts"
    if counted > trial.kills_of_run[job.run_dir]:
        yield f"{counted} restarts after {trial.kills_of_run[job.run_dir]} kills"


def _time_problems(trial: Trial, job: JobRow, store: JobStore) -> Iterator[str]:
    """Times that run backwards."""
    attempts = store.attempts(job.id)
    trial.attempts += len(attempts)
    moments = [("submission", job.submitted_at)]
    for one in attempts:
        moments += [(f"start {one.number}", one.started_at), (f"end {one.number}", one.ended_at or -1.0)]
    moments.append(("end of the job", job.ended_at or -1.0))
    for (earlier, first), (later, second) in pairwise(moments):
        if second < first:
            yield f"its {later} is {first - second:.3f} s before its {earlier}"
    if [one.number for one in attempts] != list(range(1, job.attempt + 1)):
        yield f"attempts {[one.number for one in attempts]} of {job.attempt}"


def main() -> int:
    """Run the trial, print what happened; 1 if anything is wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=115)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=6.0, help="that each job sleeps")
    asked = parser.parse_args()
    began, load = time.monotonic(), os.getloadavg()[0]
    trial = run_trial(jobs=asked.jobs, kills=asked.kills, seed=asked.seed, seconds=asked.seconds)
    by_role = ", ".join(f"{count} {role}" for role, count in sorted(trial.kills.items()))
    print(f"{trial.jobs} jobs of {USERS} users, {len(trial.accepted)} confirmed; {trial.attempts} attempts")
    print(f"{trial.kills.total()} kills: {by_role}; {trial.restarts} restarts")
    print(f"{time.monotonic() - began:.0f} s on {os.cpu_count()} cores; load {load:.1f} before")
    print("\n".join(trial.problems) or "nothing lost, nothing twice, restarts and times right")
    return int(bool(trial.problems))


if __name__ == "__main__":
    sys.exit(main())
