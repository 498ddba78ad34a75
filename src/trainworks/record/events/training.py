"""Events of a training: its ranks, data, attempts, checkpoints, faulty steps and profiles."""

from collections.abc import Mapping, Sequence
from typing import Literal, NotRequired, TypedDict


class Stamp(TypedDict):
    """What `append_event` adds to every event."""

    t: NotRequired[float]
    """Seconds since the epoch."""
    writer: NotRequired[int]
    """Process id."""


class RanksStartedEvent(Stamp):
    """The first node's agent starts the ranks of a workload, as all agents do."""

    kind: Literal["ranks_started"]


class DataProgressEvent(Stamp):
    """The data is being tokenized."""

    kind: Literal["data_progress"]
    done_bytes: int
    """0 in the first one alone."""
    total_bytes: int


class DataReadyEvent(Stamp):
    """The data is tokenized."""

    kind: Literal["data_ready"]
    folder: str
    num_tokens: int
    fingerprint: str
    seconds: float
    cached: bool
    tokenization: NotRequired[str | None]
    """Fingerprint of tokenizer and template."""
    template: NotRequired[str | None]
    """Where it is from."""
    chats: NotRequired[Mapping[str, int] | None]
    """conversations, cut, dropped, answer_tokens."""


class CompiledEvent(Stamp):
    """The model is compiled."""

    kind: Literal["compiled"]
    compile_s: float
    """Time to compile."""
    compiled_s: float
    """Time of one forward and backward."""
    eager_s: float
    """The same without compiling."""


class AttemptEvent(Stamp):
    """All ranks have met."""

    kind: Literal["attempt"]
    attempt: int
    world_size: int
    role: NotRequired[str]
    """The role whose ranks these are, in a job with roles."""
    resumed_from_step: NotRequired[int]
    """0 is from scratch; absent for a command, whose program may have resumed by itself."""
    layout: NotRequired[Mapping[str, int | str | list[int] | None] | str]
    """Fields of `ResolvedLayout`; its description in records of older versions."""
    pids: NotRequired[list[int]]
    """Process ids by rank."""
    rendezvous: NotRequired[str]
    allocator: NotRequired[str]
    """Settings of PyTorch's allocator (`PYTORCH_ALLOC_CONF`); empty for its defaults."""


class MetricsSourceEvent(Stamp):
    """The record of a command has its metrics from here, also in later attempts."""

    kind: Literal["metrics_source"]
    source: str
    """`rank-N.log`, `tensorboard`, `wandb`, `mlflow`, `trainworks.log` or `session`."""
    num_steps: NotRequired[int]
    """Steps of the whole training, where the program counts them: `10/500`."""


class CheckpointEvent(Stamp):
    """The manifest of a checkpoint is written."""

    kind: Literal["checkpoint"]
    attempt: int
    step: int
    stall_s: float
    """Training stopped for this time."""
    write_s: float
    """Time from then until the checkpoint was complete."""
    bytes: int


class CheckpointDamagedEvent(Stamp):
    """A checkpoint was complete before, and a resume skips it."""

    kind: Literal["checkpoint_damaged"]
    step: int
    folder: str
    file: str | None
    problem: str
    fallback_step: int | None


class CheckpointIntervalEvent(Stamp):
    """The interval `auto` is corrected by what saves cost."""

    kind: Literal["checkpoint_interval"]
    before_s: float
    after_s: float
    stall_s: float
    write_s: float
    mttf_s: float
    """Mean time between failures of the job."""


class CheckpointFailedEvent(Stamp):
    """A checkpoint could not be written."""

    kind: Literal["checkpoint_failed"]
    step: int
    message: str


class MemoryCheckpointsEndedEvent(Stamp):
    """A checkpoint could not be written to memory, and there will be no more."""

    kind: Literal["memory_checkpoints_ended"]
    step: int
    message: str


class CheckpointRestoredEvent(Stamp):
    """A resume found the checkpoint in another place, and none as new in the run."""

    kind: Literal["checkpoint_restored"]
    step: int
    place: str


class CheckpointCopiedEvent(Stamp):
    """A checkpoint is complete in another place of `checkpoint.copies`."""

    kind: Literal["checkpoint_copied"]
    step: int
    to: str
    bytes: int
    seconds: float


class CheckpointCopyFailedEvent(Stamp):
    """A copy of a checkpoint failed, and is tried again."""

    kind: Literal["checkpoint_copy_failed"]
    step: int
    to: str
    message: str


class FaultyStep(Stamp):
    """A faulty optimizer step."""

    attempt: int
    step: int
    reason: str
    """`nonfinite` or `spike`."""
    loss: float
    grad_norm: float
    losses: Sequence[float]
    """Loss of each rank."""


class SkippedEvent(FaultyStep):
    """A faulty step did not update the weights."""

    kind: Literal["skipped"]


class RollbackEvent(FaultyStep):
    """After a faulty step the run goes back to a checkpoint, and on without the batches since then."""

    kind: Literal["rollback"]
    to_step: int
    batches_left_out: int


class ProfileEvent(Stamp):
    """The traces of these steps are written."""

    kind: Literal["profile"]
    first_step: int
    last_step: int
    ranks: list[int]
    folder: str


class ProfileRefusedEvent(Stamp):
    """The steps could not be recorded."""

    kind: Literal["profile_refused"]
    first_step: int
    last_step: int
    ranks: list[int]
    message: str


class CallbackStopEvent(Stamp):
    """The ranks agree that a callback ends the run after this step."""

    kind: Literal["callback_stop"]
    step: int


class SampleEvent(Stamp):
    """A text of the trained model."""

    kind: Literal["sample"]
    step: int
    prompt: str
    text: str
    evaluation: NotRequired[bool]
    """Written by an evaluation, and not at the end of the run."""


class FinishedEvent(Stamp):
    """The ranks finished."""

    kind: Literal["finished"]
    step: int
    early: NotRequired[bool]
    """Evaluations did not improve any more."""
    asked: NotRequired[bool]
    """A callback ended the run before its last planned step."""
    callbacks_s: NotRequired[list[float]]
    """Seconds of each of `workload.callbacks` after the last step, on rank 0."""
