"""Storage demand of a run.

Symbols: T time between checkpoints (`plan/reliability/checkpoint_interval.py`), M mean time to failure of the whole
job, N parameters, s share of the time that a synchronous save may take.

    dataset read        samples per second * bytes of a sample * read overhead
    files opened        samples per second / samples in a file
    checkpoint size     N (master weights 4 + two Adam moments 8 + 16-bit copy 2), bytes
    write time          T in the background, before the next save begins; s T where a save stops the training
    checkpoint write    size / write time
    checkpoint drain    size / T, the rate into the home of the data if a faster tier takes the checkpoint first
    work lost           (T / 2 + write time in the background) / M
    restart read        size * copies read / accepted time
    capacity            (dataset * copies + (kept + 1) checkpoints) / (1 - free space)

A save that stops the training for C = 2 s^2 M has the interval of Young T = sqrt(2 C M) = 2 s M, so that saving takes
the share s of the time, and failures lose as much again. (Young, CACM 17(9), 1974.)
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

from trainworks.errors import UsageError
from trainworks.plan.assumptions import assumed
from trainworks.plan.job import AnyJob
from trainworks.plan.prediction import Prediction
from trainworks.plan.trace import Traced, fact

Number = float | Traced
"""A plain number or a traced one."""

AGAIN = 1.05
"""Epochs from which on data are read again: the last step of a single epoch may begin a second one."""

_ASKED = "what was asked for, or its default"
_MANY_OPENS = 1000.0
"""Files per second that any shared storage can find."""
_MUCH_SMALLER = 10.0

_STATES = "AdamW: Rajbhandari et al. 2020 (ZeRO), section 3.1; the gradients are not saved"


@dataclass(frozen=True, slots=True)
class Demand:
    """Reads, writes, files and capacity of a run."""

    nodes: Traced
    dataset: Traced
    epochs: Traced
    """Number of times the run reads the dataset."""
    read: Traced
    """Bytes per second, of all nodes together, while the run trains."""
    opens: Traced
    """Files per second."""
    packed: Traced
    """Files per second if samples were packed into shards."""
    fill: Traced
    """Bytes per second to copy the dataset into a cache once."""
    fill_opens: Traced
    """Files per second meanwhile."""
    checkpoint: Traced
    interval: Traced
    save: Traced
    """Time that the storage has to take one checkpoint."""
    lost: Traced
    """Share of the work that failures undo."""
    write: Traced
    """Bytes per second of a save."""
    drain: Traced
    """Bytes per second where a faster tier took the checkpoint first."""
    restart: Traced
    """Bytes per second while all nodes read the newest checkpoint."""
    capacity: Traced
    copies: Traced
    """Copies of the dataset in the drives of all nodes, if they cache it."""

    def figures(self) -> list[Traced]:
        """All relevant figures: without the cache if data are read once, without packing if they are packed."""
        once = set() if self.rereads else {"fill", "fill_opens", "copies"}
        drained = {"drain"} if self.drain.value == self.write.value else set()
        silent = {"nodes"} | once | drained | (set() if self.small else {"packed"})
        return [getattr(self, each.name) for each in fields(self) if each.name not in silent]

    @property
    def rereads(self) -> bool:
        """True if the run reads the dataset more than once, so that a cache helps."""
        return self.epochs.value > AGAIN

    @property
    def small(self) -> bool:
        """True if files are much smaller than shards, and so many that opening them dominates."""
        return self.opens.value > max(_MANY_OPENS, _MUCH_SMALLER * self.packed.value)


def demand_of(
    *,
    samples_per_s: Number,
    sample_bytes: Number,
    samples_per_file: Number,
    num_parameters: Number,
    dataset_bytes: Number,
    num_nodes: Number,
    keep: Number = 3,
    node_mttf_s: Number = 30 * 86400.0,
    interval_s: Number,
    stall_share: Number | None = None,
    restart_s: Number = 300.0,
    epochs: Number = 1.0,
    dataset_copies: int = 1,
    restart_copies: Number = 1,
    copy_bytes: int = 2,
) -> Demand:
    """Storage demand of a run by the module's formulas.

    Args:
        samples_per_s: of all nodes together.
        sample_bytes: of one sample as it is stored.
        samples_per_file: 1 if every sample is a separate file.
        num_parameters: N.
        dataset_bytes: as it is stored, once.
        num_nodes: nodes that read and save together.
        keep: complete checkpoints to keep; one more is being written.
        node_mttf_s: mean time to failure of one node.
        interval_s: T, between checkpoints.
        stall_share: s of a synchronous save; None if saves run in the background.
        restart_s: accepted time to read the newest checkpoint.
        epochs: number of times the run reads the dataset.
        dataset_copies: raw and tokenised data are two.
        restart_copies: replicas that each read all of the state.
        copy_bytes: per parameter of a 16-bit copy that is saved beside the master weights; 0 without one.

    Raises:
        UsageError: a number is not above 0, or the share is not below 1.
    """
    nodes = given("nodes", num_nodes, "")
    reading = _reading(
        given("samples per second", samples_per_s, "samples/s"),
        given("sample size", sample_bytes, "bytes"),
        given("samples per file", samples_per_file, "samples"),
        given("dataset size", dataset_bytes, "bytes"),
    )
    size = checkpoint_size(num_parameters, copy_bytes=copy_bytes)
    node_mttf = given("node MTTF", node_mttf_s, "s")
    mttf = (node_mttf / nodes).named("job MTTF", "s", node_mttf=node_mttf)
    interval = replace(given("checkpoint interval", interval_s, "s"), name="checkpoint interval")
    if stall_share is not None and float(stall_share) >= 1:
        raise UsageError(f"stall share must be less than 1, got {float(stall_share):g}", hint="write it like `5%`")
    stall = None if stall_share is None else given("stall share", stall_share, "")
    saving = _saving(size, mttf, interval, stall)
    replicas = given("replicas that read", restart_copies, "")
    restart_time = given("restart time", restart_s, "s")
    checkpoints = ((given("keep", keep, "") + 1) * size).named("kept checkpoints", "bytes")
    copies = given("copies of the dataset", dataset_copies, "")
    free_space = assumed("free space")
    # Shards are dealt to nodes, once. Every rank draws single-sample files from the full dataset, anew in every epoch,
    # so each node eventually needs all of them.
    copies_in_drives = nodes.named("copies in local drives", "")
    if given("samples per file", samples_per_file, "samples").value > 1:
        copies_in_drives = fact("copies in local drives", 1, "", source="shards are dealt to nodes")
    return Demand(
        **reading,
        **saving,
        checkpoint=size,
        restart=(size * replicas / restart_time).named("restart read", "bytes/s", replicas=replicas),
        capacity=((reading["dataset"] * copies + checkpoints) / (1 - free_space)).named(
            "capacity", "bytes", copies=copies
        ),
        epochs=given("epochs", epochs, ""),
        nodes=nodes,
        copies=copies_in_drives,
    )


def checkpoint_of(job: AnyJob, best: Prediction) -> Traced:
    """Bytes of a checkpoint of one replica: master weights, moments, and a 16-bit copy where there is one."""
    parameters = fact("parameters", job.shape.num_parameters, "", source="the model")
    return checkpoint_size(parameters, copy_bytes=bytes_of_copy(job, best))


def bytes_of_copy(job: AnyJob, best: Prediction) -> int:
    """Bytes of a parameter in the 16-bit copy that a checkpoint has beside the master weights; 0 without one."""
    return 0 if job.precision in ("fp32", "tf32") or best.layout.zero == 3 else 2


def checkpoint_size(num_parameters: Number, *, copy_bytes: int = 2, master_bytes: int = 4) -> Traced:
    """Bytes of a checkpoint that training can resume from: N (master + 8 + copy).

    Args:
        num_parameters: N.
        copy_bytes: per parameter of a 16-bit copy; 0 if the weights are in fp32 only.
        master_bytes: per parameter of the fp32 weights; 0 without them, as in OPT.

    >>> checkpoint_size(1e9).value
    14000000000.0
    """
    parameters = given("parameters", num_parameters, "")
    master = fact("master weights", master_bytes, "bytes", source=f"fp32 per parameter; {_STATES}")
    moments = fact("Adam moments", 8, "bytes", source=f"two in fp32 per parameter; {_STATES}")
    copy = fact("weights copy", copy_bytes, "bytes", source="16-bit weights per parameter, where they are saved too")
    return (parameters * (master + moments + copy)).named(
        "checkpoint size", "bytes", master=master, moments=moments, copy=copy
    )


def given(name: str, value: Number, unit: str) -> Traced:
    """The caller's number under the name used in this module.

    Raises:
        UsageError: it is not above 0.
    """
    if float(value) <= 0:
        raise UsageError(f"{name} must be greater than 0, got {float(value):g}")
    return value if isinstance(value, Traced) else fact(name, value, unit, source=_ASKED)


def read_rate(samples_per_s: Traced, sample_bytes: Traced) -> Traced:
    """Bytes per second that training reads: samples per second * bytes of a sample * read overhead."""
    return (samples_per_s * sample_bytes * assumed("read overhead")).named("dataset read", "bytes/s")


def _reading(rate: Traced, sample: Traced, per_file: Traced, dataset: Traced) -> dict[str, Traced]:
    read = read_rate(rate, sample)
    opens = (rate / per_file).named("files opened", "files/s")
    shard_size = assumed("shard size")
    packed = (rate * sample / shard_size).named("files opened when packed", "files/s")
    files = (dataset / sample / per_file).named("files", "files")
    accepted = assumed("cache fill time")
    return {
        "read": read,
        "opens": opens,
        "packed": packed,
        "dataset": dataset,
        "fill": (dataset / accepted).named("cache fill", "bytes/s", time=accepted),
        "fill_opens": (files / accepted).named("files opened to fill", "files/s", time=accepted),
    }


def _saving(size: Traced, mttf: Traced, interval: Traced, stall: Traced | None) -> dict[str, Traced]:
    if stall is None:
        save = interval.named("write time", "s")
        lost = ((interval / 2 + save) / mttf).named("work lost", "", job_mttf=mttf)
    else:
        save = (stall * interval).named("write time", "s", stall_share=stall)
        lost = (interval / (2 * mttf)).named("work lost", "", job_mttf=mttf)
    return {
        "interval": interval,
        "save": save,
        "lost": lost,
        "write": (size / save).named("checkpoint write", "bytes/s"),
        "drain": (size / interval).named("checkpoint drain", "bytes/s"),
    }
