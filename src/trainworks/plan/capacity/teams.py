"""Teams instead of a trace: jobs per week, sizes and run times, sampled into a trace.

Jobs of a team arrive as a Poisson process. Their run times are log-normal: with the median m and the spread f, 68 % lie
between m / f and m * f, and the mean is m * exp(ln(f)^2 / 2).
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from typing import Annotated, Any

from pydantic import Field, ValidationError

from trainworks.config.load import invalid_value
from trainworks.config.quantities import DurationS
from trainworks.config.source import Source
from trainworks.config.spec import Spec
from trainworks.errors import RunFileError, UsageError
from trainworks.plan.capacity.jobs import TraceJob
from trainworks.units import HOUR_S, WEEK_S

_WEEK_H = WEEK_S / HOUR_S
_WORKING_H = 45.0
"""Monday to Friday, 9:00 to 18:00."""
_MOST_JOBS = 200_000


class Duration(Spec):
    """Run times of a team's jobs."""

    median: DurationS
    spread: Annotated[float, Field(ge=1, le=100)] = 2.5
    """Factor within which 68 % of the run times lie; 1: all are equal."""


class Team(Spec):
    """Jobs one team submits; a team with two kinds of jobs is two teams."""

    jobs_per_week: Annotated[float, Field(gt=0, le=1e6)]
    accelerators: Annotated[int, Field(ge=1, le=10**6)]
    """Accelerators of each job."""
    duration: Duration
    priority: Annotated[int, Field(ge=-(10**6), le=10**6)] = 0
    """A higher one goes first."""
    deadline: DurationS | None = None
    """Latest end, as a time after the submission."""
    preemptible: bool = False
    """True if its jobs may run on spot nodes."""
    checkpoint: DurationS | None = None
    """Time between the checkpoints included in the run time."""
    working_hours_share: Annotated[float, Field(ge=0, le=1)] = _WORKING_H / _WEEK_H
    """Share of jobs submitted Monday to Friday, 9:00 to 18:00; by default they are even over the week."""


class Teams(Spec):
    """A file of teams."""

    weeks: Annotated[int, Field(ge=1, le=520)] = 8
    """Weeks to sample."""
    teams: Annotated[dict[str, Team], Field(min_length=1)]
    """Teams by name."""


def parse_teams(text: str, *, name: str) -> Teams:
    """The teams of a YAML text; `name` is what errors call it.

    Raises:
        RunFileError: every problem in it, each with its line.
    """
    source = Source(name, text)
    data = source.parse()
    if not isinstance(data, dict):
        raise UsageError("no teams", place=f"{name}:1", hint="write `teams:` and below it a team by name")
    try:
        teams = Teams.model_validate(data)
    except ValidationError as error:
        raise RunFileError([_problem(detail, source) for detail in error.errors(include_url=False)]) from None
    jobs = teams.weeks * sum(team.jobs_per_week for team in teams.teams.values())
    if jobs > _MOST_JOBS:
        raise UsageError(
            f"{jobs:,.0f} jobs; at most {_MOST_JOBS:,}", place=source.place(("weeks",)), hint="reduce `weeks`"
        )
    return teams


def _problem(detail: Any, source: Source) -> UsageError:
    path, kind = detail["loc"], detail["type"]
    place = source.place(path)
    if kind == "missing":
        return UsageError(f"`{path[-1]}` is missing", place=place)
    if kind == "extra_forbidden":
        known = _FIELDS.get(len(path), Duration).model_fields
        return UsageError(f"unknown key `{path[-1]}`", place=place, hint=f"known keys: {', '.join(known)}")
    message, hint = invalid_value(detail, path)
    return UsageError(message, place=place, hint=hint)


_FIELDS: dict[int, type[Spec]] = {1: Teams, 3: Team}
"""Schema by the depth of a key: `weeks`, `teams.vision.accelerators`, `teams.vision.duration.median`."""


def sampled_jobs(teams: Teams, *, seed: int) -> list[TraceJob]:
    """Jobs of all teams; a team's do not depend on the other teams.

    Raises:
        UsageError: not one job, because there are too few weeks.
    """
    jobs = [job for name, team in teams.teams.items() for job in _sampled(name, team, teams.weeks, seed)]
    if not jobs:
        raise UsageError(f"no team submits a job in {teams.weeks} weeks", hint="sample more `weeks`")
    return sorted(jobs, key=lambda job: job.submit_s)


def _sampled(name: str, team: Team, weeks: int, seed: int) -> Iterator[TraceJob]:
    chance = random.Random(f"{seed}/{name}")  # noqa: S311, no secret depends on it
    at_weeks = chance.expovariate(team.jobs_per_week)
    while at_weeks < weeks:
        duration_s = chance.lognormvariate(math.log(team.duration.median), math.log(team.duration.spread))
        yield TraceJob(
            submit_s=round((int(at_weeks) * _WEEK_H + _hour_of_week(chance, team.working_hours_share)) * HOUR_S),
            accelerators=team.accelerators,
            duration_s=max(1, round(duration_s)),
            team=name,
            priority=team.priority,
            deadline_s=team.deadline,
            preemptible=team.preemptible,
            checkpoint_s=team.checkpoint,
        )
        at_weeks += chance.expovariate(team.jobs_per_week)


def _hour_of_week(chance: random.Random, working_hours_share: float) -> float:
    if chance.random() < working_hours_share:
        day, hour = divmod(chance.uniform(0, _WORKING_H), 9)
        return 24 * day + 9 + hour
    other = chance.uniform(0, _WEEK_H - _WORKING_H)
    if other >= 75:
        return 120 + other - 75
    day, hour = divmod(other, 15)
    return 24 * day + (hour if hour < 9 else hour + 9)
