"""Quotas: the most that the running jobs of an account, such as a team or a user, hold at once.

A job counts against every account that it names. It is admitted to a decision if the limits of all of them leave room
for its minimum number of nodes, and gets no more nodes than they allow. The accounts are served in the order of the
queue: behind a job that waits for an account, no later job of that account is admitted, so that a wide job does not
starve behind narrow ones. A job that exceeds a limit by itself holds up no other.

An account whose jobs have held its accelerator hours of the month starts no job with accelerators until the month ends.
Its jobs without accelerators start all the same. What a job will hold is not known before it ends, so an account may
exceed its hours by what the jobs hold that run at that time.

Running jobs of an account are not preempted for its waiting ones.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace

from trainworks.queueing.reasons import amounts_text, count_of, joined
from trainworks.queueing.snapshot import GangShape, QueuedJob, Quota

_MOST_HOLDERS = 3
"""Jobs that a sentence names one by one."""
_ROUNDING = 1e-9
"""Cores are sums of fractions."""


@dataclass(slots=True)
class _Account:
    quota: Quota
    cores: float
    """Cores left; infinite without a limit."""
    accelerators: float
    first_waiting: str = ""
    """The first job that waits for this account."""


class Accounts:
    """What the quotas leave while a decision is made."""

    def __init__(self, quotas: Iterable[Quota]) -> None:
        self._accounts = {
            quota.account: _Account(
                quota, quota.max_cores - quota.cores_used, quota.max_accelerators - quota.accelerators_used
            )
            for quota in quotas
        }

    def admit(self, job: QueuedJob) -> QueuedJob | str:
        """The job with at most as many nodes as its accounts allow, or the reason why it waits."""
        accounts = [self._accounts[name] for name in job.accounts if name in self._accounts]
        if not accounts:
            return job
        for account in accounts:
            if why := _exceeded(account.quota, job.shape):
                return why
        allowed = [_nodes_within(job.shape, account.cores, account.accelerators) for account in accounts]
        reasons = []
        for account, nodes in zip(accounts, allowed, strict=True):
            if account.first_waiting:
                reasons.append(f"behind {account.first_waiting} of {account.quota.account}")
            elif nodes < job.shape.nodes_min:
                account.first_waiting = job.label
                reasons.append(_used_text(job.shape, account))
        if reasons:
            return reasons[0]
        most = min(allowed)
        return job if most >= job.shape.nodes_max else replace(job, shape=replace(job.shape, nodes_max=int(most)))

    def charge(self, job: QueuedJob, nodes: int) -> None:
        """Count so many nodes of a job that starts, or for which nodes are kept."""
        for name in job.accounts:
            if (account := self._accounts.get(name)) is not None:
                cores, accelerators = job.shape.amounts(nodes)
                account.cores -= cores
                account.accelerators -= accelerators


def _exceeded(quota: Quota, shape: GangShape) -> str | None:
    """Limit that keeps a job of a shape waiting beside any other jobs of the account; None if there is none."""
    if _nodes_within(shape, quota.max_cores, quota.max_accelerators) < shape.nodes_min:
        texts = []
        if quota.max_accelerators < math.inf:
            texts.append(count_of(int(quota.max_accelerators), "accelerator"))
        if quota.max_cores < math.inf:
            texts.append(amounts_text(0, None, quota.max_cores, 0) or "no core")
        return f"needs {_held_text(shape)}, and {quota.account} may hold {joined(texts)} at once"
    if shape.accelerators_per_node and quota.hours is not None and quota.hours.used >= quota.hours.limit:
        hours = quota.hours
        used = f"used {hours.used:.1f} of its {hours.limit:g} accelerator hours in {hours.month}"
        return f"needs {_held_text(shape)}; {quota.account} has {used}; the next month begins {hours.ends}"
    return None


def _nodes_within(shape: GangShape, cores: float, accelerators: float) -> float:
    """Number of nodes of a shape that fit into a limit; infinite if it needs nothing that is limited.

    Those of roles fit together, or none does.
    """
    each = shape.amounts(1)
    limits = [left / need for left, need in zip((cores, accelerators), each, strict=True) if need and left < math.inf]
    if not limits:
        return math.inf
    most = max(0, math.floor(min(limits) + _ROUNDING))
    return most * shape.nodes_min if shape.roles else most


def _used_text(shape: GangShape, account: _Account) -> str:
    """What an account holds of the limited resources that the job needs, and who holds it."""
    quota, texts = account.quota, []
    if shape.accelerators_per_node and quota.max_accelerators < math.inf:
        limit = count_of(int(quota.max_accelerators), "accelerator")
        texts.append(f"{quota.max_accelerators - account.accelerators:g} of its {limit}")
    if shape.cores_per_node and quota.max_cores < math.inf:
        texts.append(f"{quota.max_cores - account.cores:g} of its {amounts_text(0, None, quota.max_cores, 0)}")
    more = len(quota.holders) - _MOST_HOLDERS
    some = [*quota.holders[:_MOST_HOLDERS], *([f"{more} more"] if more > 0 else [])]
    by = f", by {joined(some)}" if some else ""
    return f"needs {_held_text(shape)}; {quota.account} holds {joined(texts)}{by}"


def _held_text(shape: GangShape) -> str:
    cores, accelerators = shape.amounts(shape.nodes_min)
    return amounts_text(accelerators, shape.accelerator, cores, 0)
