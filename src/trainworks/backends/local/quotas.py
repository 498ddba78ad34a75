"""Quotas and shares of the teams and users of this machine: a file of an administrator that all queues obey.

    teams:
      vision: {members: [ann, bob], max_accelerators: 4, accelerator_hours_per_month: 2000, shares: 2}
      speech: {members: [carol], max_cores: 16}
    per_user: {max_accelerators: 2}
    fair_share: {half_life: 7d}
    ledger: /var/lib/trainworks/ledger

The file is `/etc/trainworks/queue.yaml`. Only root may own or write it, so no user can raise a limit. A user's team is
the one that the job names if the file lists the user there, else the first team that lists the user: naming another
team in a job or a claim changes nothing. What users hold comes from the ledger, where the owner of a claim is the owner
of its file. What they have held in a month comes from the files of their queues; see `fair_share.py`.
"""

from __future__ import annotations

import math
import os
import stat
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path
from typing import Annotated

from pydantic import Field, ValidationError

from trainworks.config.load import problems_of
from trainworks.config.quantities import DurationS
from trainworks.config.source import Source
from trainworks.config.spec import Spec
from trainworks.errors import EnvironmentProblem, RunFileError, TrainworksError, UsageError
from trainworks.host.ledger import Claim, MachineLedger, ledger_in
from trainworks.host.users import user_name
from trainworks.jobs.job_row import Month
from trainworks.queueing.quota import Accounts
from trainworks.queueing.snapshot import GangShape, HoursQuota, QueuedJob, Quota
from trainworks.units import DAY_S

POLICY_FILE = Path("/etc/trainworks/queue.yaml")
POLICY_VARIABLE = "TRAINWORKS_QUEUE_POLICY"
"""Names another file, for trials; without effect if `POLICY_FILE` exists."""

TeamName = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")]


class Limits(Spec):
    """Most that running jobs hold at once, and in a month."""

    max_cores: Annotated[float, Field(ge=0, allow_inf_nan=False)] | None = None
    """Cores; no limit by default."""
    max_accelerators: Annotated[int, Field(ge=0)] | None = None
    """Accelerators; no limit by default."""
    accelerator_hours_per_month: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    """Hours times accelerators held in a calendar month (UTC), after which none of the waiting jobs with accelerators
    starts until the next month; no limit by default."""


class TeamLimits(Limits):
    """A team: its members, and what their jobs hold together."""

    members: tuple[str | int, ...] = ()
    """Users, by name or number."""
    shares: Annotated[float, Field(gt=0, le=1e6)] = 1.0
    """Part of the machine that is due to it, relative to the shares of the others; for `fair_share`."""


class FairSharePolicy(Spec):
    """Jobs of one priority start in the order of fair share: who has used the least of their share goes first."""

    half_life: DurationS = 7 * DAY_S
    """Time after which a past use counts half; Slurm's PriorityDecayHalfLife."""


class QueuePolicy(Spec):
    """The file of an administrator."""

    teams: dict[TeamName, TeamLimits] = Field(default_factory=dict)
    """Teams by name. A user of several teams counts for the first one, unless a job names another one of them."""
    per_user: Limits = Limits()
    """Limits of each user, members of a team or not."""
    fair_share: FairSharePolicy | None = None
    """Order by fair share; by age alone without it."""
    ledger: Path | None = None
    """Folder of the ledger, of root and with mode 1777; `/run/lock` or `/dev/shm` by default. A user's variable does
    not move the ledger of a machine with this file."""

    def teams_of(self, uid: int) -> list[str]:
        """Teams that list a user, in the order of the file."""
        known = (uid, str(uid), user_name(uid))
        return [name for name, team in self.teams.items() if any(member in known for member in team.members)]

    def accounts_of(self, uid: int, team: str) -> tuple[str, ...]:
        """Accounts that a job of a user counts against, such as `team vision` and `user ann`."""
        teams = self.teams_of(uid)
        chosen = [team] if team in teams else teams[:1]
        return (*(f"team {name}" for name in chosen), f"user {user_name(uid)}")

    @property
    def limits_hours(self) -> bool:
        """True if a team or the users have a limit of accelerator hours."""
        return any(one.accelerator_hours_per_month is not None for one in (self.per_user, *self.teams.values()))

    def quotas(self, held: Iterable[Holding], hours: AcceleratorHours | None = None) -> tuple[Quota, ...]:
        """Quotas of all teams and users that have a limit, with what they hold and what they have held in the month.

        `held` is what the running jobs of all users hold. Limits of hours are left out without `hours`, those of the
        month.
        """
        by_account: dict[str, list[Holding]] = {}
        for one in held:
            for account in self.accounts_of(one.uid, one.team):
                by_account.setdefault(account, []).append(one)
        used: dict[str, float] = {}
        for (uid, team), count in (hours.used if hours else {}).items():
            for account in self.accounts_of(uid, team):
                used[account] = used.get(account, 0.0) + count
        limits: dict[str, Limits] = {f"team {name}": team for name, team in self.teams.items()}
        users = {account for account in (*by_account, *used, f"user {user_name()}") if account.startswith("user ")}
        limits |= dict.fromkeys(sorted(users), self.per_user)
        return tuple(
            _quota(account, limit, by_account.get(account, []), _hours_quota(limit, used.get(account, 0.0), hours))
            for account, limit in limits.items()
            if (limit.max_cores, limit.max_accelerators, limit.accelerator_hours_per_month) != (None, None, None)
        )

    def refusal(
        self, shape: GangShape, team: str, others: Iterable[Claim] = (), hours: AcceleratorHours | None = None
    ) -> str | None:
        """Why a job of this user may not start beside the claims of all other jobs; None if it may.

        Without other claims and hours held in the month, the reason why it never may.
        """
        job = QueuedJob(
            job_id=0,
            shape=shape,
            priority=0,
            submitted_at=0.0,
            time_limit_s=None,
            accounts=self.accounts_of(os.getuid(), team),
        )
        admitted = Accounts(self.quotas(map(holding_of, others), hours)).admit(job)
        return admitted if isinstance(admitted, str) else None

    def check_team(self, team: str) -> None:
        """Refuse a team of the file that does not list this user.

        Raises:
            UsageError: naming the user's teams.
        """
        own = self.teams_of(os.getuid())
        if team in self.teams and team not in own:
            hint = f"teams of {user_name()}: {', '.join(own) or 'none'}"
            raise UsageError(f"{user_name()} is not a member of the team `{team}`", place="job.team", hint=hint)


@dataclass(frozen=True, slots=True)
class Holding:
    """What a running job of any user holds on this machine."""

    uid: int
    run: str
    team: str
    """Team that the job names; empty for none."""
    cores: float
    accelerators: int


@dataclass(frozen=True, slots=True)
class AcceleratorHours:
    """Hours times accelerators that the jobs of all users have held in a month."""

    month: Month
    used: Mapping[tuple[int, str], float]
    """Hours by user and by the team that the jobs name."""


def holding_of(claim: Claim) -> Holding:
    """What a claim of the ledger holds."""
    share = claim.share
    return Holding(claim.uid, share.run, share.team, share.cores, len(share.devices))


def _quota(account: str, limits: Limits, held: list[Holding], hours: HoursQuota | None) -> Quota:
    return Quota(
        account=account,
        max_cores=math.inf if limits.max_cores is None else limits.max_cores,
        max_accelerators=math.inf if limits.max_accelerators is None else limits.max_accelerators,
        cores_used=sum(one.cores for one in held),
        accelerators_used=sum(one.accelerators for one in held),
        holders=tuple(sorted(f"{user_name(one.uid)} ({one.run})" for one in held)),
        hours=hours,
    )


def _hours_quota(limits: Limits, used: float, hours: AcceleratorHours | None) -> HoursQuota | None:
    limit = limits.accelerator_hours_per_month
    if limit is None or hours is None:
        return None
    ends = f"{datetime.fromtimestamp(hours.month.ends_at, UTC):%Y-%m-%d %H:%M} UTC"
    return HoursQuota(limit=limit, used=used, month=hours.month.name, ends=ends)


def queue_policy() -> QueuePolicy | None:
    """The policy of this machine; None without a file.

    Raises:
        EnvironmentProblem: the file cannot be read, or users can change it.
        RunFileError: every problem in it, each with its line.
    """
    own = os.environ.get(POLICY_VARIABLE)
    if own and not POLICY_FILE.exists():
        return _read(Path(own), {0, os.geteuid()})
    return _read(POLICY_FILE, {0})


def machine_ledger() -> MachineLedger:
    """The ledger that the policy names; on a machine without a policy, the one in `$TRAINWORKS_LEDGER`.

    Quotas count what the ledger has, so a user who moved it would evade them. A policy with a mistake names none, and
    lets no job start.

    Raises:
        EnvironmentProblem: the folder that the policy names is missing.
    """
    policy = None
    with suppress(TrainworksError):
        policy = queue_policy()
    if policy is not None and policy.ledger is not None:
        if not policy.ledger.is_dir():
            message = f"the folder of this machine's ledger `{policy.ledger}` is missing"
            hint = f"as root: install --directory --mode 1777 {policy.ledger}"
            raise EnvironmentProblem(message, hint=hint)
        return ledger_in(policy.ledger)
    own = os.environ.get("TRAINWORKS_LEDGER")
    return ledger_in(Path(own) if own and not POLICY_FILE.exists() else None)


def _read(path: Path, owners: set[int]) -> QueuePolicy | None:
    try:
        with path.open(encoding="utf-8") as file:
            facts = os.fstat(file.fileno())
            text = file.read()
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        hint = f"as root: chmod 644 {path}"
        raise EnvironmentProblem(f"cannot read the quotas of this machine `{path}`: {reason}", hint=hint) from None
    if facts.st_uid not in owners or facts.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise EnvironmentProblem(
            f"users other than root can change the quotas of this machine `{path}`",
            hint=f"as root: chown root {path} && chmod 644 {path}",
        )
    return _parsed(text, str(path))


@lru_cache(maxsize=1)
def _parsed(text: str, name: str) -> QueuePolicy:
    source = Source(name, text)
    data = source.parse()
    if not isinstance(data, dict):
        raise RunFileError([UsageError("quotas must be a mapping of keys to values", place=f"{name}:1")])
    try:
        return QueuePolicy.model_validate(data)
    except ValidationError as error:
        raise RunFileError(list(problems_of(error, data, source, QueuePolicy))) from None
