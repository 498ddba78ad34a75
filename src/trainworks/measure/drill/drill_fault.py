"""The faults of a drill, and their seeded schedule."""

from __future__ import annotations

import enum
import random
from collections.abc import Sequence


class DrillFault(enum.StrEnum):
    """A fault that a drill injects; the value is its name on the command line."""

    KILL_RANK = "kill-rank"
    KILL_AGENT = "kill-agent"
    KILL_SUPERVISOR = "kill-supervisor"
    STOP_RANK = "stop-rank"
    SLOW_RANK = "slow-rank"
    PREEMPT = "preempt"
    FLIP_BIT = "flip-bit"
    TRUNCATE_SHARD = "truncate-shard"
    DELETE_SHARD = "delete-shard"
    CUT_NETWORK = "cut-network"
    FULL_DISK = "full-disk"
    FAIL_STORE = "fail-store"
    LOSE_NODE = "lose-node"

    @property
    def what(self) -> str:
        """What is done to the run."""
        return _WHAT[self]

    @property
    def damages_checkpoint(self) -> bool:
        """True if the fault damages the newest checkpoint; then a rank is killed, so that the run has to load one."""
        return self in DAMAGES


_WHAT = {
    DrillFault.KILL_RANK: "SIGKILL to a rank",
    DrillFault.KILL_AGENT: "SIGKILL to the agent of a node",
    DrillFault.KILL_SUPERVISOR: "SIGKILL to the supervisor",
    DrillFault.STOP_RANK: "SIGSTOP to a rank",
    DrillFault.SLOW_RANK: "a rank stopped half of the time",
    DrillFault.PREEMPT: "the nodes are taken, as for another job",
    DrillFault.FLIP_BIT: "a bit of the newest checkpoint, then SIGKILL to a rank",
    DrillFault.TRUNCATE_SHARD: "a shard of the newest checkpoint cut in half, then SIGKILL to a rank",
    DrillFault.DELETE_SHARD: "a shard of the newest checkpoint deleted, then SIGKILL to a rank",
    DrillFault.CUT_NETWORK: "no network between the ranks for some seconds",
    DrillFault.FULL_DISK: "no space left for checkpoints",
    DrillFault.FAIL_STORE: "every tenth request to the store of copies fails",
    DrillFault.LOSE_NODE: "a node is declared down",
}
DAMAGES = (DrillFault.FLIP_BIT, DrillFault.TRUNCATE_SHARD, DrillFault.DELETE_SHARD)
HARMLESS_AFTERWARDS = (DrillFault.KILL_RANK, DrillFault.KILL_AGENT, DrillFault.STOP_RANK, *DAMAGES)
"""Faults of a soak: the run survives them by itself."""

IN_RUNS_OF_THEIR_OWN = (DrillFault.FULL_DISK, DrillFault.FAIL_STORE)
"""Faults that need another disk or another store from the start of the run."""


def ordered(faults: Sequence[DrillFault], seed: int) -> list[DrillFault]:
    """The faults in the order of their injection; the same for the same seed."""
    return random.Random(seed).sample(list(faults), len(faults))  # noqa: S311  # an order, not a secret
