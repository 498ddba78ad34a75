"""How a run survives faults: its checkpoints and their copies, its restarts, and its policy for bad steps."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, WithJsonSchema

from trainworks.config.guard_answers import OnNonfinite, OnSpike
from trainworks.config.quantities import (
    AutoDurationS,
    Budget,
    CheckpointInterval,
    CheckpointIntervalField,
    DurationS,
)
from trainworks.config.spec import CheckpointCopy, Spec

PositiveInt = Annotated[int, Field(ge=1)]


class Checkpoint(Spec):
    """Interval, number and place of checkpoints."""

    every: CheckpointIntervalField = CheckpointInterval()
    """`auto` balances the cost of saving against the work lost at the expected failure rate (Young/Daly)."""
    keep: Annotated[int, Field(ge=2)] = 3
    """Number of complete checkpoints to keep; at least two, because the newest may be on a failing disk."""
    to: str = "runs"
    """Parent folder of the run directory."""
    memory_every: PositiveInt | None = None
    """Steps between checkpoints in the shared memory of each node, copied to the next node, beside those on disk: after
    the loss of a rank, an agent or one node, no more than about these steps are repeated. Several nodes hold their part
    twice, for themselves and for the node before them; while the next one is written, four times."""
    copies: CheckpointCopies = ()
    """Further places, each of which gets the newest checkpoint beside training: a folder, or
    `s3://bucket/prefix`. `resume` takes the newest copy of all places."""


class Recover(Spec):
    """Recovery from failures."""

    max_restarts: Annotated[int, Field(ge=0)] | None = None
    """Most automatic restarts from the last checkpoint within `restart_window`; preemptions do not count. By default 3
    for a workload and 0 for a command."""
    restart_window: DurationS = 86_400.0
    """Restarts that lie further back do not count against `max_restarts`."""
    backoff: DurationS = 1.0
    """Wait before a restart if the last one has led to no new checkpoint; it doubles with each further one, up to five
    minutes."""
    repair: DurationS = 86_400.0
    """Expected time until a lost node, or another one in its place, is back. A workload with `job.min_nodes` weighs
    this wait against continuing on fewer nodes."""
    replace_stragglers: bool = False
    """Leave out a node that slows every step by a fifth or more: on Slurm the job gets another one; elsewhere it goes
    on with fewer nodes if `job.min_nodes` allows it and steps get faster. Such a node is named in any case."""
    node_mttf: DurationS | None = None
    """Mean time to failure of one node, for `checkpoint.every: auto` and for the failures that the report expects;
    by default that of a published fleet."""
    hang_timeout: AutoDurationS = "auto"
    """Longest silence of a workload's rank within a step; after it the rank counts as hung and all ranks restart from
    the last checkpoint. `auto` is 20 median steps, at least 10 s."""
    start_timeout: DurationS = 120.0
    """Longest silence of a workload's rank in each phase of its start: meeting the others, process groups, building the
    model, first step. Opening data, loading and compiling may take five times that, and 10 minutes at least."""
    notices: Literal["auto", "off", "aws", "gcp", "azure"] = "auto"
    """Cloud that every node asks whether it takes the node back; the job then saves in the time left, and ends to
    continue on other nodes. `auto` is the cloud that the machine's firmware names, and none elsewhere."""


class Goal(Spec):
    """Goals that the plan is checked against before the run starts."""

    deadline: DurationS | None = None
    """Longest acceptable time from the first launch to the last step; a resume does not start it anew."""
    budget: Budget | None = None
    """Highest cost of the run, `2000 USD` or `500万元`; needs the price of an accelerator hour. Reports are in its
    currency, by the rate of the catalogue."""
    every: DurationS | None = None
    """Interval between starts of such a run, if `trainworks size` plans for several teams; once by default."""
    wait: DurationS | None = None
    """Longest acceptable time in the queue for 90 % of the starts."""


class Guard(Spec):
    """Policy for faulty optimizer steps. A faulty step never changes weights or optimizer state."""

    nonfinite: OnNonfinite = "skip"
    """Action when the loss or gradient norm is not finite; the loss scaling of fp16 is not affected."""
    spike: OnSpike = "ignore"
    """Action when the loss or gradient norm is far above those of the previous steps."""
    sigmas: Annotated[float, Field(gt=0)] = 6.0
    """A spike is more than this many standard deviations above the mean."""
    window: Annotated[int, Field(ge=8, le=4096)] = 128
    """Number of good steps for mean and deviation; checks begin when half of them are available."""
    max_skips: PositiveInt = 16
    """Most skipped steps in a row; one more ends the run."""
    max_rollbacks: Annotated[int, Field(ge=0)] = 3
    """Most rollbacks of the whole run; one more ends it."""


MOST_COPIES = 4
_ONE = {"anyOf": [{"type": "string", "examples": ["/mnt/other", "s3://bucket/prefix"]}, {"type": "object"}]}
CheckpointCopies = Annotated[
    tuple[CheckpointCopy, ...],
    BeforeValidator(lambda value: [value] if isinstance(value, str | dict) else value),
    Field(max_length=MOST_COPIES),
    WithJsonSchema({"anyOf": [*_ONE["anyOf"], {"type": "array", "items": _ONE}]}),
]
