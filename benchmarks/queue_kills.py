"""Random kills of a queue: several users, arrays among their jobs, and SIGKILL to every part of it.

    python -m benchmarks.queue_kills --jobs 115 --kills 200
    python -m benchmarks.queue_kills --backend slurm --jobs 100 --kills 200

The users share a job store, and submit by the command line, most of the jobs in arrays. Meanwhile submitters,
dispatchers, supervisors, agents and ranks are killed, drawn at random, until all kills are done; over ssh also the
processes at both ends of each connection and whole hosts; under Slurm slurmctld, slurmd, slurmstepd and whole nodes;
under Kubernetes pods, nodes, etcd and the API server. Then every accepted job has to succeed without help. The record
is checked afterwards:

- no accepted job is missing, and no job succeeds without having reached its end;
- no job runs twice at a time: every life takes a lock that its processes hold;
- lives <= 1 + restarts, restarts <= kills of the job, and the job store counts as many as the record;
- submission <= start of an attempt <= its end <= start of the next one.

Needs root, for processes of other users; Slurm also an interpreter that they can read, ssh an sshd, and Kubernetes the
API server of the tests.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import shlex
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any

from benchmarks.killed import QUEUES
from benchmarks.killed.queue import USERS, Queue
from tests.users import User, common_folder, require_root
from trainworks.jobs.job_row import JobRow
from trainworks.jobs.state import JobState
from trainworks.jobs.store import JobStore
from trainworks.record.events.log import read_events
from trainworks.record.run_dir import RunDir
from trainworks.recover.restarts import restarts_used

__all__ = ["Trial", "run_trial"]

ARRAY = 8
MAX_RESTARTS = 50
FEWEST_OTHER_KILLS = 25
"""Kills of something else for each kill of a submitter."""
OTHERS = """\
test "$RANK" = 0 || {{ {work}; exit; }}
"""
SCRIPT = """\
book={book}.${{TRAINWORKS_ARRAY_INDEX:-}}
exec 9>"$book.lock"
flock --nonblock 9 || echo twice >> "$book"
echo begin >> "$book"
{work}
echo end >> "$book"
"""


@dataclass
class Trial:
    """What was submitted and killed, and what is wrong in the end."""

    kills: Counter[str]
    """By role."""
    accepted: set[tuple[int, str]] = field(default_factory=set)
    """User and run of each job whose submission was confirmed."""
    refused: int = 0
    """Submissions that failed as they may while a daemon is away."""
    jobs: int = 0
    restarts: int = 0
    attempts: int = 0
    problems: list[str] = field(default_factory=list)


def run_trial(
    *,
    jobs: int,
    kills: int,
    seed: int,
    seconds: float | None,
    array: int = ARRAY,
    backend: str = "local",
    minutes: float = math.inf,
) -> Trial:
    """Submit so many jobs of three users, kill so often, and check what is left.

    Args:
        jobs: submitted in total; killed submitters leave fewer in the queue.
        kills: signals that reached a process, or a node.
        seed: of all draws.
        seconds: that a job sleeps; when None, every job runs until all kills are done.
        array: jobs of an array.
        backend: a key of `QUEUES`.
        minutes: after which there are no more kills, also if there were fewer.
    """
    require_root()
    chance = Random(seed)
    with common_folder() as folder, QUEUES[backend](folder, chance) as queue:
        trial = Trial(queue.kills)
        over = queue.common("over")
        work = f"sleep {seconds}" if seconds is not None else f"until [ -e {over} ]; do sleep 0.1; done"
        _kill_and_submit(trial, queue, _submissions(queue, jobs, array, work), kills, 60.0 * minutes, chance)
        queue.seen(over).touch()
        queue.mend(all_of_it=True)
        _wait_for_all(trial, queue)
        _check(trial, queue)
        return trial


def _kill_and_submit(
    trial: Trial,
    queue: Queue,
    submissions: Iterator[tuple[User, subprocess.Popen[str]]],
    kills: int,
    seconds: float,
    chance: Random,
) -> None:
    running: list[tuple[User, subprocess.Popen[str]]] = []
    began, is_over = time.monotonic(), False
    while not is_over or running or (trial.kills.total() < kills and time.monotonic() < began + seconds):
        assert time.monotonic() < began + queue.patience_s, (trial, queue.store.counts())
        if not is_over and len(running) < 2:
            submission = next(submissions, None)
            is_over = submission is None
            running += [submission] if submission else []
        time.sleep(chance.uniform(*queue.pause_s))
        running = [one for one in running if not _is_submitted(trial, queue, *one)]
        queue.mend()
        if trial.kills.total() < kills and time.monotonic() < began + seconds:
            few = trial.kills["submitter"] * FEWEST_OTHER_KILLS <= trial.kills.total()  # also where they take long
            if running and few and chance.random() < 1 / 40:
                queue.kill_submitter([command for _, command in running])
            else:
                queue.kill_one()
        if is_over and not running and all(state.is_final for state in queue.store.counts()):
            break
    if trial.kills.total() < kills and time.monotonic() < began + seconds:
        trial.problems.append(f"only {trial.kills.total()} of {kills} kills before all jobs had ended")


def _submissions(queue: Queue, jobs: int, array: int, work: str) -> Iterator[tuple[User, subprocess.Popen[str]]]:
    """Commands that submit one job or an array: a quarter of them submit arrays."""
    number, left = 0, jobs
    while left:
        user = queue.people[number % len(queue.people)]
        size = min(left, array) if number % 12 < len(queue.people) else 1
        name, left = f"job{number}", left - size
        script = SCRIPT.format(book=shlex.quote(str(queue.book(user, name))), work=work)
        keys: dict[str, Any] = {"name": name, "run": OTHERS.format(work=work) + script} | queue.keys(number)
        keys |= {"recover": {"max_restarts": MAX_RESTARTS, "backoff": "100 ms"}}
        number += 1
        file = user.home / f"{name}.yaml"
        file.write_text(json.dumps(keys))
        options = ("--array", f"0-{size - 1}{queue.throttle}") if size > 1 else ()
        yield user, user.popen("submit", str(file), *options)


def _is_submitted(trial: Trial, queue: Queue, user: User, command: subprocess.Popen[str]) -> bool:
    """Whether a submission has ended; what it printed is accepted."""
    if command.poll() is None:
        return False
    printed, complaints = command.communicate()
    trial.accepted |= {(user.uid, run_id) for run_id in printed.split()}
    if queue.may_refuse(command.returncode, complaints):
        trial.refused += 1
    elif command.returncode not in (0, -9):
        trial.problems.append(f"a submission of user {user.uid} failed: {complaints.strip()}")
    return True


def _wait_for_all(trial: Trial, queue: Queue) -> None:
    deadline = time.monotonic() + queue.patience_s
    while not all(state.is_final for state in queue.store.counts()):
        if time.monotonic() > deadline:
            trial.problems.append(f"not all jobs end: {queue.store.counts()}")
            return
        for user in queue.people:
            user.ok("ps")
        time.sleep(1.0)


def _check(trial: Trial, queue: Queue) -> None:
    jobs = queue.store.search()
    trial.jobs, trial.restarts = len(jobs), sum(job.restarts for job in jobs)
    lost = trial.accepted - {(job.uid, job.run_id) for job in jobs}
    trial.problems += [f"the job `{run_id}` of user {uid} is lost" for uid, run_id in sorted(lost)]
    users = {user.uid: user for user in queue.people}
    for job in jobs:
        file = RunDir(Path(job.run_dir)).read_resolved().run_file
        index = file.envs.get("TRAINWORKS_ARRAY_INDEX", "")
        book = queue.seen(queue.book(users[job.uid or 0], f"{file.name}.{index}"))
        counted = restarts_used(read_events(queue.record(job).events_file))
        found = [*_book_problems(job, book, counted, queue.charged(job)), *_time_problems(trial, job, queue.store)]
        if job.restarts != counted:
            found.append(f"{job.restarts} restarts in the job store, {counted} in the record")
        trial.problems += [f"job {job.id} ({job.run_dir}): {problem}" for problem in found]
        if found:
            trial.problems += [f"    {line}" for line in _history(job, queue)]


def _history(job: JobRow, queue: Queue) -> list[str]:
    """Events of a job's record and the kills that may have hit it, in the order of time, from its submission on."""
    events = read_events(queue.record(job).events_file)
    shown = ("state", "cause", "node", "exit_code", "restarts", "action", "message")
    said = [
        (one["t"], " ".join([one["kind"], *(f"{key}={one[key]}" for key in shown if one.get(key) not in (None, ""))]))
        for one in events
    ]
    said += [(at, f"KILL of {role}") for at, role in queue.kills_during(job)]
    return [f"{at - job.submitted_at:8.2f} {words}" for at, words in sorted(said)]


def _book_problems(job: JobRow, book: Path, counted: int, charged: int) -> Iterator[str]:
    """What the job's own notes and its restarts say against it."""
    lives = Counter(book.read_text().split() if book.exists() else [])
    if job.state is not JobState.SUCCEEDED:
        yield f"{job.state}: {job.end.cause}, {job.end.message}"
    if not lives["end"]:
        yield "its command has not reached its end"
    if lives["twice"]:
        yield "two of its lives ran at once"
    if lives["begin"] > 1 + counted:
        yield f"{lives['begin']} lives and {counted} restarts"
    if counted > charged:
        yield f"{counted} restarts after {charged} kills"


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
    parser.add_argument("--backend", choices=QUEUES, default="local")
    parser.add_argument("--jobs", type=int, default=115)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--minutes", type=float, default=math.inf, help="after which there are no more kills")
    parser.add_argument("--array", type=int, default=ARRAY, help="jobs of an array")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=6.0, help="that each job sleeps")
    asked = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))  # leave nothing behind
    began, load = time.monotonic(), os.getloadavg()[0]
    trial = run_trial(**vars(asked))
    by_role = ", ".join(f"{count} {role}" for role, count in sorted(trial.kills.items()))
    confirmed, refused = len(trial.accepted), trial.refused
    print(f"{trial.jobs} jobs of {USERS} users, {confirmed} confirmed, {refused} refused; {trial.attempts} attempts")
    print(f"{trial.kills.total()} kills: {by_role}; {trial.restarts} restarts")
    print(f"{time.monotonic() - began:.0f} s on {os.cpu_count()} cores; load {load:.1f} before")
    print("\n".join(trial.problems) or "nothing lost, nothing twice, restarts and times right")
    return int(bool(trial.problems))


if __name__ == "__main__":
    sys.exit(main())
