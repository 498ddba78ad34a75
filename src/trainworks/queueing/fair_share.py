"""Fair share: of two jobs of one priority, the one goes first whose account has used less of its share.

The factor of an account among its siblings is that of Slurm's classic fair share:

    F = 2^(-U / S)

    U   decayed use of the account over that of all siblings; 0 without any use
    S   shares of the account over those of all siblings

F is 1 for an account without use, 1/2 for one that has used its share, and less for one that has used more. The use at
a time t that an account made at the rate r(s), such as its part of the machine, decays with the half-life h:

    use(t) = integral over s < t of r(s) 2^(-(t - s) / h) ds

Teams are compared first, and users only within one team, as in Slurm's Fair Tree; the classic algorithm mixes both
levels into one number. A user without a team is an account beside the teams.

Sources: Slurm, "Classic Fairshare Algorithm", https://slurm.schedmd.com/classic_fair_share.html, and "Fair Tree
Fairshare Algorithm", https://slurm.schedmd.com/fair_tree.html; PriorityDecayHalfLife in slurm.conf(5)
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TypeVar

_Key = TypeVar("_Key", bound=Hashable)


@dataclass(frozen=True, slots=True)
class ShareUse:
    """Use and share of an account among its siblings, both from 0 to 1."""

    account: str
    """Such as `team vision` or `user ann`."""
    used: float
    share: float

    @property
    def used_of_share(self) -> float:
        """U / S, which orders accounts as the factor does but is never rounded to 0; smaller goes first."""
        return self.used / self.share

    @property
    def factor(self) -> float:
        """F = 2^(-U / S), from 0 to 1."""
        return float(2.0**-self.used_of_share)

    def __str__(self) -> str:
        return f"{self.account} has {self.share:.0%} of the shares and made {self.used:.0%} of the use"


Rank = tuple[ShareUse, ...]
"""Use and share of a job's team among the teams, then of its user in the team; empty without fair share."""


def standings(shares: Mapping[str, float], use: Mapping[str, float]) -> dict[str, ShareUse]:
    """Use and share of every account among its siblings.

    Use has nine decimals: readers that add the same amounts in another order see the same number. Shares are above 0.
    An account that the decayed use leaves out has none.
    """
    all_use, all_shares = math.fsum(use.get(name, 0.0) for name in shares), math.fsum(shares.values())
    return {
        name: ShareUse(name, round(use.get(name, 0.0) / all_use, 9) if all_use else 0.0, share / all_shares)
        for name, share in shares.items()
    }


def decayed(use: float, elapsed_s: float, half_life_s: float) -> float:
    """What is left of a use after some time: use * 2^(-elapsed / half-life); no time has passed if clocks differ."""
    return float(use * 2.0 ** -(max(0.0, elapsed_s) / half_life_s))


def use_of(rate: float, *, began: float, ended: float, now: float, half_life_s: float) -> float:
    """Decayed use at `now` of something held from one time to another, in seconds times the unit of its rate.

    rate * h / ln 2 * (2^(-(now - ended) / h) - 2^(-(now - began) / h)); 0 if it ended before it began.
    """
    ended = min(ended, now)
    if ended <= began:
        return 0.0
    after, before = decayed(1.0, now - ended, half_life_s), decayed(1.0, now - began, half_life_s)
    return rate * half_life_s / math.log(2) * (after - before)


def why_behind(rank: Rank, first: Rank) -> str:
    """Sentence why a job of one rank goes behind one of another; empty if it does not for its use."""
    for own, other in zip(rank, first, strict=False):
        if own.used_of_share != other.used_of_share:
            return str(own) if own.used_of_share > other.used_of_share else ""
    return ""


def ranks(
    accounts: Mapping[_Key, Sequence[str]], shares: Mapping[str, float], use: Mapping[_Key, float]
) -> dict[_Key, Rank]:
    """Rank of every user and team: its use and share among the teams, then in its team.

    `accounts` has team and user of each key, or the user alone, who has one share. `use` is decayed, in one unit.
    """
    siblings: dict[str, dict[str, float]] = {"": dict(shares)}
    used: dict[tuple[str, str], float] = {}
    for key, chain in accounts.items():
        for parent, account in pairwise(("", *chain)):
            siblings.setdefault(parent, {}).setdefault(account, 1.0)
            used[parent, account] = used.get((parent, account), 0.0) + use.get(key, 0.0)
    found = {
        parent: standings(level, {account: used.get((parent, account), 0.0) for account in level})
        for parent, level in siblings.items()
    }
    return {key: tuple(found[parent][one] for parent, one in pairwise(("", *chain))) for key, chain in accounts.items()}
