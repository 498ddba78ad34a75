"""Teams of a stack as Kubernetes sees them: the accounts of Slurm that have no account below them."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from trainworks.config.stack import Stack
from trainworks.config.stack_parts.scheduler import SlurmAccount
from trainworks.jobs.formats.manifest import queue_of_team


@dataclass(frozen=True, slots=True)
class TeamShare:
    """An account without others below it."""

    name: str
    namespace: str
    """Name of its namespace, and of its queues."""
    fraction: Fraction
    """Part of the cluster that is its own: its share among its siblings, times the part of its parent."""
    max_gpus: int | None


def teams(stack: Stack) -> list[TeamShare]:
    """Teams of a stack, by account; those that only users name have a share of 1."""
    accounts = list(stack.slurm.accounts)
    named = {each.name for each in accounts}
    extra = dict.fromkeys(user.account for user in stack.users if user.account not in named)
    accounts += [SlurmAccount(name=name) for name in extra]
    parents = {each.parent for each in accounts}
    return [
        TeamShare(each.name, queue_of_team(each.name), _fraction(each, accounts), each.max_gpus)
        for each in accounts
        if each.name not in parents
    ]


def _fraction(account: SlurmAccount, accounts: list[SlurmAccount]) -> Fraction:
    siblings = sum(each.share for each in accounts if each.parent == account.parent)
    above = [each for each in accounts if each.name == account.parent]
    return Fraction(account.share, siblings) * (_fraction(above[0], accounts) if above else 1)
