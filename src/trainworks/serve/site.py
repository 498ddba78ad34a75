"""What pages and REST share: the use cases, answers that many visitors get, and the rule who may change what."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal, TypeVar, cast

from trainworks.api.jobs import current_user
from trainworks.api.nodes import NodeStatus, clusters_here, nodes
from trainworks.api.observing.job_board import JobBoard
from trainworks.api.observing.run_views import RunComparison, RunView, RunViews, compare_reports
from trainworks.api.observing.top import LiveRun, LiveRuns, MachineLoad, machine_load
from trainworks.api.proving.health import NodeHealth, health
from trainworks.api.run_handle import Run
from trainworks.api.run_request import read_run_file
from trainworks.api.runs import prepare_resume, submit
from trainworks.api.sweeping.read_sweep import SweepResult, read_sweep, sweep_names
from trainworks.errors import NotOwnerError, TrainworksError, UsageError
from trainworks.report.pages.overlay import OverlaidRun
from trainworks.report.runs.run_comparison import settings_of
from trainworks.serve.access import Role, Visitor

T = TypeVar("T")
_MOST_ANSWERS = 512
_MOST_CARDS = 12
_CARDS_AGE_S = 2.0
_LOAD_AGE_S, _HEALTH_AGE_S, _JOB_AGE_S, _DIAGNOSIS_AGE_S = 5.0, 300.0, 0.5, 30.0


class Shared:
    """Answers that stay valid for a moment; visitors who ask for the same one at once wait for one computation.

    `now` is a clock that never goes back, in seconds.
    """

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._lock = threading.Lock()
        self._answers: OrderedDict[Hashable, _Answer] = OrderedDict()

    def get(self, key: Hashable, compute: Callable[[], T], *, stamp: object = None, age_s: float = 1.0) -> T:
        """The answer of this key, computed again if its stamp differs or, without stamps, if it is too old.

        While one visitor waits for a computation that age alone asks for, others get the answer of before. `stamp` is
        the state of what the answer is about. Without one the answer is valid up to `age_s`. A computation that began
        after a visitor came is new enough under any stamp: the visitors of a run that grows share it.
        """
        came_at = self._now()
        with self._lock:
            answer = self._answers.setdefault(key, _Answer())
            self._answers.move_to_end(key)
            while len(self._answers) > _MOST_ANSWERS:
                self._answers.popitem(last=False)
        if not answer.lock.acquire(blocking=stamp is not None or answer.stamp is None):
            return cast(T, answer.value)
        try:
            is_fresh = self._now() < answer.made_at + age_s if stamp is None else answer.stamp == (stamp,)
            if not is_fresh and answer.began_at < came_at:
                begins_at = self._now()
                answer.value = compute()
                answer.stamp, answer.began_at, answer.made_at = (stamp,), begins_at, self._now()
            return cast(T, answer.value)
        finally:
            answer.lock.release()


class _Answer:
    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.stamp: tuple[object, ...] | None = None
        self.began_at = self.made_at = float("-inf")
        self.value: object = None


Change = Literal["stop", "resume"]

MOST_CHANGES = 500
"""Runs that one request changes; a page of the list has 50."""


@dataclass(frozen=True, slots=True)
class ChangeResult:
    """What became of one of several runs that were to be stopped or resumed."""

    job: str
    """The run, or the number of its job, in the words of the request."""
    run: str | None
    """Its run, if it was changed."""
    problem: str | None = None
    """Why it was not."""
    hint: str | None = None


@dataclass(frozen=True, slots=True)
class MachineState:
    """The machine of the server."""

    load: MachineLoad
    health: NodeHealth


class Site:
    """The use cases behind a server, for the `folder` of runs that were started without a queue. Runs that are
    submitted here go to `submit_to`, instead of the folder of their run file.
    """

    def __init__(self, folder: Path, submit_to: Path | None = None) -> None:
        self._folder = folder
        self.board = JobBoard()
        self.views = RunViews(folder, self.board)
        self.shared = Shared()
        self._live = LiveRuns(folder, self.board.live_run_dirs, with_waiting=False, most_runs=_MOST_CARDS)
        self._submit_to = submit_to

    def view(self, name: str) -> RunView:
        """A run for a reader; its job is looked up again after half a second.

        Raises:
            UnknownRunError: no such run.
        """
        return self.shared.get(("view", name), lambda: self.views.view(name), age_s=_JOB_AGE_S)

    def live_runs(self) -> tuple[LiveRun, ...]:
        """The newest runs that hold nodes, of the queue and of the folder; two seconds old."""
        return self.shared.get("live runs", self._live.runs, age_s=_CARDS_AGE_S)

    def diagnosis(self, name: str, diagnose: Callable[..., T]) -> T:
        """The diagnosis of a run by its metrics, at most half a minute old, because it takes a second."""
        view = self.view(name)
        return self.shared.get(
            ("diagnosis", view.run.path), lambda: diagnose(view.run, view.all_metrics()), age_s=_DIAGNOSIS_AGE_S
        )

    def comparison(self, first: str, second: str) -> RunComparison:
        """Two runs side by side."""
        views = [self.view(name) for name in (first, second)]
        return self.shared.get(
            ("comparison", *(view.run.path for view in views)),
            lambda: compare_reports([(view.run.resolved, view.report()) for view in views]),
            stamp=[view.stamp() for view in views],
        )

    def overlay(self, names: Sequence[str], metric: str, *, points: int) -> list[OverlaidRun]:
        """Runs with one curve of each.

        Raises:
            UnknownRunError: one of them does not exist.
        """
        views = [self.view(name) for name in names]
        return self.shared.get(
            ("overlay", metric, points, *names),
            lambda: [
                OverlaidRun(
                    name,
                    view.report(),
                    settings_of(view.run.resolved),
                    view.curves((metric,), points=points).get(metric, []),
                )
                for name, view in zip(names, views, strict=True)
            ],
            stamp=[view.stamp() for view in views],
        )

    def sweep(self, name: str) -> SweepResult:
        """A sweep of the folder of runs, a few seconds old.

        Raises:
            UnknownRunError: no such sweep.
        """
        return self.shared.get(("sweep", name), lambda: read_sweep(name, folder=self._folder), age_s=_LOAD_AGE_S)

    def sweeps(self) -> list[str]:
        """Names of the sweeps of the folder of runs, the newest first."""
        return self.shared.get("sweeps", lambda: sweep_names(self._folder), age_s=_LOAD_AGE_S)

    def nodes(self, cluster: str | None = None) -> list[NodeStatus]:
        """Nodes of this machine's queue, or of a cluster; a few seconds old.

        Raises:
            UsageError: the cluster is none of `clusters`; a visitor names no file of the server.
        """
        if cluster is not None and cluster not in self.clusters():
            known = ", ".join(self.clusters()) or "none"
            raise UsageError(f"no cluster `{cluster}` is reached from here", hint=f"clusters: {known}")
        return self.shared.get(("nodes", cluster), lambda: nodes(cluster), age_s=_LOAD_AGE_S)

    def clusters(self) -> list[str]:
        """Clusters whose nodes this machine can ask for, besides its own queue."""
        return self.shared.get("clusters", clusters_here, age_s=_HEALTH_AGE_S)

    def machine(self) -> MachineState:
        """Load of this machine, a few seconds old, and its health, checked every few minutes."""
        load = self.shared.get("load", machine_load, age_s=_LOAD_AGE_S)
        return MachineState(load, self.shared.get("health", health, age_s=_HEALTH_AGE_S))

    def submit(self, visitor: Visitor, text: str) -> Run:
        """Submit the run that a run file's text describes, as the user of the server.

        Raises:
            NotOwnerError: the visitor may not submit, or is another user.
            RunFileError: a problem in the text.
        """
        check_role(visitor, Role.SUBMITTER)
        _check_is_server_user(visitor, "submit")
        return submit(read_run_file(text), folder=self._submit_to)

    def stop(self, visitor: Visitor, name: str, *, at_once: bool = False) -> Run:
        """Stop a run; see `Run.stop`.

        Raises:
            NotOwnerError: the visitor may not.
        """
        check_role(visitor, Role.SUBMITTER)
        run = self.views.view(name).run
        _check_may_change(visitor, run)
        run.stop(at_once=at_once)
        return run

    def resume(self, visitor: Visitor, name: str) -> Run:
        """Put a run that has ended into its queue again, as the user of the server.

        Raises:
            NotOwnerError: the visitor may not, or is another user.
            UsageError: the run is live, or has finished.
        """
        check_role(visitor, Role.SUBMITTER)
        _check_is_server_user(visitor, "resume")
        run = self.views.view(name).run
        _check_may_change(visitor, run)
        launch = prepare_resume(run, background=True)
        launch.start()
        return launch.run

    def change_all(
        self, visitor: Visitor, change: Change, names: Sequence[str], *, at_once: bool = False
    ) -> list[ChangeResult]:
        """Stop or resume several runs, one after the other; one that cannot be changed keeps none of the others.

        Raises:
            NotOwnerError: the visitor may change none.
        """
        check_role(visitor, Role.SUBMITTER)
        changed = partial(self.stop, at_once=at_once) if change == "stop" else self.resume
        results = []
        for name in dict.fromkeys(names):
            try:
                results.append(ChangeResult(name, changed(visitor, name).id))
            except TrainworksError as problem:
                results.append(ChangeResult(name, None, problem.message, problem.hint))
        return results


def _check_may_change(visitor: Visitor, run: Run) -> None:
    """Let visitors below an administrator change their own runs alone: of the user of the server, if none is named."""
    job = run.job
    user = visitor.user or current_user()
    if visitor.role < Role.ADMIN and user != (job.row.owner if job else current_user()):
        raise NotOwnerError(f"run {run.id} does not belong to {user}")


def check_role(visitor: Visitor, role: Role) -> None:
    """Refuse a visitor without a role.

    Raises:
        NotOwnerError: the visitor's role is lower.
    """
    if visitor.role < role:
        raise NotOwnerError(f"a {visitor.role.name.lower()} may not do this", hint=f"sign in as {role.name.lower()}")


def _check_is_server_user(visitor: Visitor, action: str) -> None:
    """Only the user of the server may start jobs here, because they run as this user."""
    if visitor.user not in (None, current_user()):
        raise NotOwnerError(
            f"{visitor.user} cannot {action} here: the job would run as {current_user()}",
            hint=f"run `trainworks {action}` as {visitor.user}, or start a server of your own",
        )
