"""Storage and node needs of a planned training run.

samples per second   sequences (images) of a step / step time
sample size          tokens * 2 bytes where the vocabulary has at most 65,536 entries, else 4; an image's file; the
                     latent of a diffusion transformer, encoded before, in 16 bits
dataset size         for text what the run reads, as if once; for images those of ImageNet-1k
epochs               sequences of a step * steps * sample size / dataset size
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from trainworks.config.run_file import RunFile
from trainworks.plan.assumptions import assumed
from trainworks.plan.cluster.plan import ClusterPlan
from trainworks.plan.job import AnyJob
from trainworks.plan.prediction import Prediction
from trainworks.plan.reliability.defaults import usual_node_mttf
from trainworks.plan.storage.demand import Demand, bytes_of_copy, demand_of, given
from trainworks.plan.storage.node_needs import NodeNeeds, node_needs
from trainworks.plan.storage.raid import LEVELS, Raid, raid
from trainworks.plan.storage.systems import StorageVerdict
from trainworks.plan.trace import Traced, computed, fact, maximum
from trainworks.record.model_shape import ModelShape
from trainworks.results import Result

_SHORT_IDS = 65_536
_IMAGENET_IMAGES = 1_281_167
_TOKEN_BYTES = 8
"""Bytes of a token on the accelerator: a 64-bit integer."""
_PIXEL_BYTES = 12
"""Three channels in fp32."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredRun:
    """A run with its best layout, its data and its checkpoint settings."""

    job: AnyJob
    best: Prediction
    global_batch: int
    steps: int
    image_size: int | None = None
    """Pixels per side; None for text."""
    sample_bytes: int | None = None
    dataset_bytes: int | None = None
    files: int | None = None
    """Files of the dataset; by default each image is a file and text is packed."""
    images_per_core: float | None = None
    """Images per second that one core decodes and crops, as measured when they were prepared."""
    keep: int = 3
    node_mttf: Traced
    interval: Traced
    """Time between checkpoints."""
    stall_share: float | None = None
    """Share of the time that a synchronous save may take; None where saves run in the background."""
    restart_s: float = 300.0

    @classmethod
    def of(cls, plan: ClusterPlan, run_file: RunFile, interval: Traced) -> Self:
        """The best layout of the plan of a run file."""
        data = run_file.workload.data if run_file.workload else None
        has_images = run_file.workload is not None and run_file.workload.task == "image-classification"
        return cls(
            job=plan.job,
            best=plan.best[0],
            global_batch=plan.global_batch,
            steps=plan.steps,
            image_size=data.image_size if data and has_images else None,
            sample_bytes=data.sample_size if data else None,
            keep=run_file.checkpoint.keep,
            interval=interval,
            node_mttf=usual_node_mttf(plan.job.cluster.accelerator, run_file.recover.node_mttf),
        )


def storage_of(run: StoredRun) -> tuple[Demand, NodeNeeds]:
    """Storage demand of the run, and needs of each of its nodes.

    Raises:
        UsageError: a number is not above 0.
    """
    batch = fact("samples per step", run.global_batch, "samples", source="global_batch of the run file")
    best = run.best
    step = computed("step time", best.step_time_s, "s", by="layout search", low=best.low_s, high=best.high_s)
    rate = (batch / step).named("samples per second", "samples/s", batch=batch, step=step)
    sample = _sample_size(run)
    steps = fact("steps", run.steps, "", source="train_for of the run file")
    total = (batch * steps * sample).named("read in all", "bytes", batch=batch, sample=sample)
    dataset = _dataset(run, sample, total)
    layout, cluster, images = run.best.layout, run.job.cluster, run.image_size
    demand = demand_of(
        samples_per_s=rate,
        sample_bytes=sample,
        samples_per_file=_samples_per_file(run, sample, dataset),
        num_parameters=fact("parameters", run.job.shape.num_parameters, "", source="the model"),
        dataset_bytes=dataset,
        num_nodes=fact("nodes", cluster.num_nodes, "", source=cluster.name),
        keep=fact("keep", run.keep, "", source="checkpoint.keep of the run file"),
        node_mttf_s=run.node_mttf,
        stall_share=run.stall_share,
        restart_s=run.restart_s,
        interval_s=run.interval,
        epochs=(total / dataset).named("epochs", "", total=total, dataset=dataset),
        restart_copies=fact("replicas that read", layout.dp_replicate, "", source="dp_replicate of the layout"),
        copy_bytes=bytes_of_copy(run.job, run.best),
    )
    is_latent = isinstance(run.job.shape, ModelShape) and run.job.shape.diffusion is not None
    tokens_bytes = sample.value if is_latent else _TOKEN_BYTES * run.job.sequence_length
    needs = node_needs(
        demand,
        samples_per_s=rate,
        sample_bytes=sample,
        prepared_bytes=tokens_bytes if images is None else _PIXEL_BYTES * images**2,
        batch_samples=layout.micro_batch,
        accelerators_per_node=fact("accelerators per node", cluster.accelerators_per_node, "", source=cluster.name),
        images=images is not None,
        images_per_core=run.images_per_core,
        saving_nodes=max(1, cluster.num_nodes // layout.dp_replicate),
    )
    return demand, needs


def _sample_size(run: StoredRun) -> Traced:
    if run.sample_bytes is not None:
        return given("sample size", run.sample_bytes, "bytes")
    if run.image_size is not None:
        image_file_size = assumed("image file size")
        return image_file_size.named("sample size", "bytes")
    shape = run.job.shape
    if isinstance(shape, ModelShape) and shape.diffusion is not None:
        values = (run.job.sequence_length - shape.diffusion.text_in_sequence) * shape.patch_values
        latent = fact("values of a latent", values, "", source="patches of a sample times the values of one")
        return (latent * 2).named("sample size", "bytes", latent=latent)
    entries = int(getattr(shape, "vocabulary", 0))
    short = entries <= _SHORT_IDS
    why = f"a vocabulary of {entries:,} entries {'fits' if short else 'does not fit'} 16 bits"
    tokens = fact("tokens of a sequence", run.job.sequence_length, "", source="sequence_length of the run file")
    token_size = fact("token size", 2 if short else 4, "bytes", source=why)
    return (tokens * token_size).named("sample size", "bytes", tokens=tokens)


def _dataset(run: StoredRun, sample: Traced, total: Traced) -> Traced:
    if run.dataset_bytes is not None:
        return given("dataset size", run.dataset_bytes, "bytes")
    if run.image_size is None:
        return total.named("dataset size", "bytes")
    if run.files is not None:
        files = given("files of the dataset", run.files, "files")
        return (files * sample).named("dataset size", "bytes", files=files)
    images = fact("images", _IMAGENET_IMAGES, "", source="ImageNet-1k, training set (Russakovsky et al. 2015)")
    return (images * sample).named("dataset size", "bytes")


def _samples_per_file(run: StoredRun, sample: Traced, dataset: Traced) -> Traced:
    if run.files is not None:
        files = given("files of the dataset", run.files, "files")
        return (dataset / sample / files).named(
            "samples per file", "samples", dataset=dataset, sample=sample, files=files
        )
    if run.image_size is not None:
        return fact("samples per file", 1, "samples", source="images are files of their own when nothing is said")
    shard = assumed("shard size")
    return maximum(1, shard / sample).named("samples per file", "samples", shard=shard, sample=sample)


RAID_DRIVES = 8
RAID_DRIVE_BYTES = 3.84e12


@dataclass(frozen=True, slots=True)
class StoragePlan(Result):
    """Storage that a run demands, and the kinds of storage that deliver it."""

    plan: ClusterPlan
    demand: Demand
    needs: NodeNeeds
    verdicts: list[StorageVerdict]

    def arrays(self) -> list[Raid]:
        """RAID levels with the drives of one server."""
        return [raid(level, RAID_DRIVES, drive_bytes=RAID_DRIVE_BYTES) for level in LEVELS]

    @property
    def figures(self) -> list[Traced]:
        """Figures that can be explained."""
        servers = [count for verdict in self.verdicts for count in verdict.servers]
        return [*self.demand.figures(), *self.needs.figures(), *servers, *raid_figures(self.arrays()[2])]


def raid_figures(array: Raid) -> list[Traced]:
    """Capacity, bandwidth and risks of an array."""
    return [array.capacity, array.reads, array.writes, array.rebuild, array.loss, array.read_error]
