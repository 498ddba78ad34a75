"""Service quality of a replay: waiting times and deadlines."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from trainworks.errors import UsageError
from trainworks.plan.capacity.jobs import JobTrace
from trainworks.plan.capacity.outcome import Replay

_ROUNDING = 1e-12
"""Relative rounding error of sums of seconds; a job that ends at its deadline is in time."""


@dataclass(frozen=True, slots=True)
class Service:
    """Waiting times of some jobs, each that of an actual job, and their deadlines."""

    jobs: int
    wait_p50_s: float
    wait_p90_s: float
    wait_max_s: float
    deadlines_met: float | None
    """Share of the deadlines that could be met at all; None without any."""
    teams: Mapping[str, Service] = field(default_factory=dict)
    """Service by team name; empty for a team itself."""

    @property
    def worst_wait_s(self) -> float:
        """Wait that 90 % of the jobs of every team do not exceed."""
        return max((team.wait_p90_s for team in self.teams.values()), default=self.wait_p90_s)

    @property
    def worst_deadlines_met(self) -> float | None:
        """Share of deadlines met by the team with the lowest share."""
        shares = [team.deadlines_met for team in self.teams.values() if team.deadlines_met is not None]
        return min(shares, default=self.deadlines_met)


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """Service target of every team; exactly one of the two is set."""

    wait_s: float | None = None
    """Longest wait of 90 % of a team's jobs."""
    deadlines: float | None = None
    """Share to meet of a team's deadlines, as far as they can be met at all."""

    def is_met(self, service: Service) -> bool:
        """True if this service meets the target.

        Raises:
            UsageError: deadlines are promised and no job has one that it can meet.
        """
        if self.deadlines is None:
            return self.wait_s is not None and service.worst_wait_s <= self.wait_s
        if service.worst_deadlines_met is None:
            hint = "set a target for the wait instead"
            raise UsageError("no job of the trace has a deadline that it can meet", hint=hint)
        return service.worst_deadlines_met >= self.deadlines


def service_of(trace: JobTrace, replay: Replay) -> Service:
    """Service of all jobs, and of each team's."""
    wait_s, took_s = np.array(replay.wait_s), np.array(replay.end_s) - trace.submit_s
    in_time = took_s <= trace.deadline_s * (1 + _ROUNDING)
    possible, names = _possible(trace), np.array(trace.team)

    def of(jobs: NDArray[np.bool_]) -> Service:
        p50, p90, most = np.quantile(wait_s[jobs], [0.5, 0.9, 1.0], method="higher")
        with_deadline = possible & jobs
        met = float(np.mean(in_time[with_deadline])) if with_deadline.any() else None
        return Service(int(jobs.sum()), float(p50), float(p90), float(most), met)

    teams = {team: of(names == team) for team in dict.fromkeys(trace.team)}
    return replace(of(np.ones(len(trace), dtype=np.bool_)), teams=teams)


def num_deadlines(trace: JobTrace) -> tuple[int, int]:
    """Jobs with a deadline, and those of them that run longer than it even without a wait."""
    count = int(np.isfinite(trace.deadline_s).sum())
    return count, count - int(_possible(trace).sum())


def _possible(trace: JobTrace) -> NDArray[np.bool_]:
    return np.isfinite(trace.deadline_s) & (trace.duration_s <= trace.deadline_s)
