"""Storage for a run: the rates it has to deliver, the needs of a node, and the kinds of storage that are enough."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from trainworks.api.inputs import Quantity, RunInput, described_run, quantity, seconds
from trainworks.api.planning.described import plan_cluster
from trainworks.config.load import NO_SETTINGS, Settings
from trainworks.config.run_file import RunFile
from trainworks.errors import QuantityError
from trainworks.host.corpus import anchored_source
from trainworks.plan.assumptions import GIVEN
from trainworks.plan.cluster.plan import ClusterPlan
from trainworks.plan.reliability.goodput import job_interval, job_mttf
from trainworks.plan.sizing.finish import failures_of, written_interval
from trainworks.plan.storage.run import StoragePlan, StoredRun, storage_of
from trainworks.plan.storage.systems import judge
from trainworks.plan.trace import Traced, fact
from trainworks.units import parse_bytes, parse_count, parse_share
from trainworks.worker.data.card import CARD, read_card

_LEAST_STALL = 1e-6
"""Share of the time below which no storage is fast enough."""


def storage(
    run: RunInput,
    *,
    on: str | None = None,
    settings: Settings = NO_SETTINGS,
    dataset_size: Quantity | None = None,
    files: Quantity | None = None,
    stall: Quantity | None = None,
    restart: Quantity = "5m",
) -> StoragePlan:
    """Compute what storage has to deliver, and judge every kind of it.

    Args:
        run: a run file, or its path.
        on: description of a cluster, which replaces that of the run file.
        settings: other values by key of the run file: `{"optimizer.lr": 1e-4}`; text is read as YAML.
        dataset_size: bytes of the data as stored.
        files: number of files that hold the data.
        stall: share of the time that saves may stop the training; None for saves in the background.
        restart: time accepted to read the newest checkpoint.

    Raises:
        UsageError: an argument is not valid, or the run has no described cluster.
        EnvironmentProblem: no layout fits.

    >>> planned = storage("examples/plan-llama-2-7b.yaml")
    >>> [verdict.name for verdict in planned.verdicts if verdict.enough][:1]
    ['NFS']
    """
    run_file, source = described_run(run, on, task="storage is planned", settings=settings)
    dataset_bytes = quantity("dataset_size", dataset_size, parse_bytes)
    num_files = quantity("files", files, parse_count)
    stall_share = quantity("stall", stall, _parse_stall)
    restart_s = seconds("restart", restart) or 0.0
    plan = plan_cluster(run_file, source)
    stored = _as_prepared(StoredRun.of(plan, run_file, _interval(plan, run_file, stall_share)), run_file)
    demand, needs = storage_of(
        replace(
            stored,
            dataset_bytes=stored.dataset_bytes if dataset_bytes is None else int(dataset_bytes),
            files=stored.files if num_files is None else int(num_files),
            stall_share=stall_share,
            restart_s=restart_s,
        )
    )
    return StoragePlan(plan, demand, needs, judge(demand, needs))


def _as_prepared(stored: StoredRun, run_file: RunFile) -> StoredRun:
    """The run with the sizes, files and decoding rate of its images, if its data is one prepared folder of them."""
    if run_file.workload is None or len(run_file.workload.data.sources) != 1:
        return stored
    folder = Path(anchored_source(run_file.workload.data.sources[0].source))
    card = read_card(folder) if (folder / CARD).is_file() else None
    if card is None or card.kind != "images" or not card.num_items:
        return stored
    return replace(
        stored,
        sample_bytes=stored.sample_bytes or card.num_bytes // card.num_items,
        dataset_bytes=card.num_bytes,
        files=len(card.shards),
        images_per_core=card.gain.images_per_s if card.gain else None,
    )


def _interval(plan: ClusterPlan, run_file: RunFile, stall_share: float | None) -> Traced:
    """The checkpoint interval; a synchronous save may stall for a share s of the time, C = 2 s^2 M."""
    written = written_interval(plan.best[0], run_file)
    if written is not None:
        return written
    failures, step = failures_of(plan.job, plan.best[0], plan.work, run_file), plan.work.inputs["step_time"]
    if stall_share is not None:
        share = fact("stall share", stall_share, "", source=GIVEN)
        mttf = job_mttf(failures)
        stall = (2 * share * share * mttf).named("save stall", "s", share=share, mttf=mttf)
        failures = replace(failures, save=stall, write=fact("checkpoint write", 0.0, "s", source="synchronous"))
    return job_interval(failures, step)


def _parse_stall(text: str) -> float:
    share = parse_share(text)
    if 0 < share < _LEAST_STALL:
        raise QuantityError(f"`{text}` leaves no time for a save", hint=f"it is at least {_LEAST_STALL:.4%}")
    if not 0 < share < 1:
        raise QuantityError(f"`{text}` is not between 0 and 100 %", hint="write it like `5%`")
    return share
