"""Prove that a run survives its faults: run it undisturbed, run it again under faults, and compare."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import count
from pathlib import Path
from statistics import median
from typing import Any

import yaml

from trainworks.api.anchor import anchor
from trainworks.api.checkpointing.checkpoints import checkpoint_copies
from trainworks.api.proving.drilled_job import DrilledJob
from trainworks.api.run_request import RunTarget, read_run
from trainworks.backends.registry import backend_for, shares_files
from trainworks.config.run_file import RunFile
from trainworks.config.spec import CheckpointCopy
from trainworks.errors import EnvironmentProblem, UsageError
from trainworks.host.clock import SystemClock
from trainworks.host.copies.bringing import places
from trainworks.jobs.state import JobState
from trainworks.measure.drill.drill_fault import (
    HARMLESS_AFTERWARDS,
    IN_RUNS_OF_THEIR_OWN,
    DrillFault,
    ordered,
)
from trainworks.measure.drill.drill_report import DrillReport, Soak, soak_goodput
from trainworks.measure.drill.drilled_run import DrilledRun, DrillPlace, OnThisMachine
from trainworks.measure.drill.failing_store import FailingStore
from trainworks.measure.drill.outcome import FaultOutcome, check_record
from trainworks.measure.drill.scenario import FaultScenario, Namespace, SmallDisk
from trainworks.record.events.log import of_kind
from trainworks.record.events.training import CheckpointCopiedEvent
from trainworks.record.manifest import complete_checkpoints
from trainworks.system import check_linux
from trainworks.units import parse_duration

_MANY = 1_000_000
_DISK_CHECKPOINTS = 6
_DISK_MARGIN = 64_000_000
"""Space for the record and its reserve."""
_ENDS_S = 24 * 3600.0
_COPIED_S = 300.0
"""Longest wait, after the end of a run, for the copy of its last checkpoint."""
_COPIED_LOOK_S = 0.2
_SOAK_SHARE = 0.85
"""Steps of a soak over those that fit into its time without faults: a run that ends early shortens the soak."""
_LONGEST_GAP_S = 60.0
"""Between a run that is ready and the next fault of a soak; the shortest is a third of it."""
_NO_STORE = "needs an `s3://` place in `checkpoint.copies`, and its `http://` address there or in AWS_ENDPOINT_URL"
_FAULTS_AT_LEAST = 5
"""Faults for which a short soak makes its pauses shorter."""


def drill(
    target: RunTarget,
    *,
    faults: Sequence[str] = (),
    seed: int = 0,
    nodes: int | None = None,
    nproc: int | None = None,
    soak: str | float | None = None,
    folder: Path | str = "runs",
    progress: Callable[[str], None] = lambda line: None,
) -> DrillReport:
    """Run a workload while faults hit it, and tell what became of each.

    Args:
        target: a run file of a workload on this machine, or on a cluster whose nodes share the folder of runs.
        faults: names of faults; all when empty.
        seed: decides order and victims.
        nodes: number of nodes instead of the run file's.
        nproc: ranks per node instead of the run file's.
        soak: train for this time under random faults instead, each 20 to 60 s after the recovery from the last: `30m`.
        folder: folder of all runs; the drill makes a folder of its own below it.
        progress: receives a line per fault.

    Returns:
        The outcome of every fault; those that cannot be injected there are skipped, and say why.

    Raises:
        UsageError: the run is not a workload, its nodes do not share files with this machine, a soak is asked for on a
            cluster, or a fault has an unknown name.
        EnvironmentProblem: the run fails without any fault, or this machine does not run Linux.
    """
    check_linux("a drill")
    request = read_run(target, nodes=nodes, nproc=nproc)
    run_file = anchor(request.run_file, request.source, on_nodes=False).run_file
    if run_file.workload is None:
        raise UsageError("a drill needs a `workload`", hint="the faults of a command are its own")
    place = _place(run_file, is_soak=soak is not None)
    runs = _own_folder(Path(folder))
    chosen = [_fault(name) for name in faults] or list(HARMLESS_AFTERWARDS if soak else DrillFault)
    own = _Drill(run_file, runs, seed, _undisturbed(run_file, runs, place, progress), progress)
    if soak is not None:
        return own.soak(chosen, parse_duration(soak) if isinstance(soak, str) else soak)
    return own.play(chosen)


def _place(run_file: RunFile, *, is_soak: bool) -> DrillPlace:
    """Where the run starts; a drill refuses what it cannot reach there."""
    if run_file.cluster.engine == "local":
        return OnThisMachine(SystemClock())
    if not shares_files(run_file.cluster.engine):
        hint = "drill it with `cluster: local`, or on a cluster that shares the folder of runs"
        problem = (
            f"{run_file.cluster.engine} shares no files with this machine, and a drill reads the record as it grows"
        )
        raise UsageError(problem, hint=hint)
    if is_soak:
        raise UsageError("a soak measures the processes of this machine", hint="soak it with `cluster: local`")
    return DrilledJob(backend_for(run_file.cluster), SystemClock())


def _fault(name: str) -> DrillFault:
    try:
        return DrillFault(name)
    except ValueError:
        raise UsageError(f"`{name}` is not a fault", hint=f"choose from {', '.join(DrillFault)}") from None


def _own_folder(runs: Path) -> Path:
    """The first free `drill-N` below the folder of all runs."""
    for number in count(1):
        folder = runs.resolve() / f"drill-{number}"
        try:
            folder.mkdir(parents=True)
        except FileExistsError:
            continue
        return folder
    raise AssertionError


def _written(
    run_file: RunFile, runs: Path, name: str, *, copies: Sequence[CheckpointCopy] = (), **workload: Any
) -> Path:
    """Write the run file of a drill: the user's, with restarts enough for all faults, other copies and no messages."""
    data = run_file.model_dump(mode="json", exclude_unset=True)
    data["recover"] = {**data.get("recover", {}), "max_restarts": _MANY}
    data["workload"] |= workload
    for key in ("notify", "track", "resume"):
        data.pop(key, None)
    checkpoint = data.setdefault("checkpoint", {})
    checkpoint.pop("to", None)
    checkpoint["copies"] = [copy.model_dump(mode="json", exclude_none=True) for copy in copies]
    path = runs / f"{name}.yaml"
    path.write_text(yaml.safe_dump(data, sort_keys=False), encoding="utf-8")
    return path


def _undisturbed(run_file: RunFile, runs: Path, place: DrillPlace, progress: Callable[[str], None]) -> DrilledRun:
    progress("a run without faults")
    written = _written(run_file, runs, "undisturbed")
    run = DrilledRun(written, name="undisturbed", runs=runs, clock=SystemClock(), place=place)
    try:
        run.start()
        run.wait(lambda: False, _ENDS_S)
    finally:
        run.end()
    if run.state is not JobState.SUCCEEDED:
        raise EnvironmentProblem("the run fails without any fault", hint=f"read {runs / 'undisturbed.log'}")
    return run


def _losses(run: DrilledRun) -> dict[int, float]:
    return {row["step"]: row["loss"] for row in run.rows()}


@dataclass(frozen=True)
class _Drill:
    """The runs of one drill, which share what draws their victims."""

    run_file: RunFile
    runs: Path
    seed: int
    undisturbed: DrilledRun
    progress: Callable[[str], None]

    @cached_property
    def rng(self) -> random.Random:
        return random.Random(self.seed)  # noqa: S311  # victims, not secrets

    def play(self, faults: Sequence[DrillFault]) -> DrillReport:
        """Most faults in one run; a full disk and a failing store in runs of their own."""
        copy = _copy_in_a_store(self.run_file)
        place = self.undisturbed.place
        skipped = {fault: why for fault in faults if (why := place.why_not(fault)) is not None}
        if DrillFault.FAIL_STORE in faults and copy is None:
            skipped.setdefault(DrillFault.FAIL_STORE, _NO_STORE)
        able = [fault for fault in ordered(faults, self.seed) if fault not in skipped]
        with ExitStack() as open_until_end:
            network = ""
            if DrillFault.CUT_NETWORK in able:
                network = open_until_end.enter_context(Namespace(f"drill-{os.getpid()}")).name
            in_one = [fault for fault in able if fault not in IN_RUNS_OF_THEIR_OWN]
            reported, outcomes = self.undisturbed, list[FaultOutcome]()
            if in_one:
                main = self._scenario(_written(self.run_file, self.runs, "faults"), network=network)
                open_until_end.callback(main.run.end)
                main.play(in_one)
                reported, outcomes = main.run, main.outcomes(_losses(self.undisturbed))
            if DrillFault.FULL_DISK in able:
                outcomes += self._full_disk()
            if DrillFault.FAIL_STORE in able and copy is not None:
                outcomes += self._failing_store(copy)
        outcomes += [FaultOutcome(fault, skipped=why) for fault, why in skipped.items()]
        return _report(reported, self.seed, outcomes)

    def soak(self, faults: Sequence[DrillFault], seconds: float) -> DrillReport:
        """Random faults until the time is over; the run has steps enough for it, and ends without faults."""
        steps = max(10, round(_SOAK_SHARE * seconds / median(row["step_s"] for row in self.undisturbed.rows())))
        scenario = self._scenario(_written(self.run_file, self.runs, "soak", train_for=f"{steps} steps"))
        run = scenario.run
        longest_s = min(_LONGEST_GAP_S, seconds / _FAULTS_AT_LEAST)
        try:
            usage = scenario.soak(faults, seconds, (longest_s / 3, longest_s))
        finally:
            run.end()
        outcomes = scenario.outcomes({})
        rows = run.rows()
        ends = min(rows[0]["t"] + seconds, rows[-1]["t"])
        goodput = soak_goodput(rows, run.events(), outcomes, ends)
        return _report(run, self.seed, outcomes, Soak(ends - rows[0]["t"], len(outcomes), goodput, tuple(usage)))

    def _scenario(
        self, run_file: Path, *, network: str = "", disk: Path | None = None, store: FailingStore | None = None
    ) -> FaultScenario:
        prefix = ("ip", "netns", "exec", network) if network else ()
        runs, place = disk or self.runs, self.undisturbed.place
        run = DrilledRun(run_file, name=run_file.stem, runs=runs, clock=SystemClock(), place=place, prefix=prefix)
        return FaultScenario(run, self.rng, self.progress, network=network, disk=disk, store=store)

    def _full_disk(self) -> list[FaultOutcome]:
        """A run whose whole folder is on a small disk, which fills up."""
        plan = self.undisturbed.run_dir.read_resolved().plan
        assert plan is not None
        size = _DISK_CHECKPOINTS * plan.checkpoint_bytes + _DISK_MARGIN
        with SmallDisk(self.runs / "small-disk", size) as disk:
            scenario = self._scenario(_written(self.run_file, self.runs, "full-disk"), disk=disk.folder)
            try:
                scenario.play([DrillFault.FULL_DISK])
                return scenario.outcomes(_losses(self.undisturbed))
            finally:
                scenario.run.end()

    def _failing_store(self, copy: CheckpointCopy) -> list[FaultOutcome]:
        """A run whose copies go through a failing proxy; its last copy has to load, and all are deleted again."""
        assert copy.endpoint is not None
        with FailingStore(copy.endpoint) as store:
            folder = f"{copy.to}/{self.runs.name}-{SystemClock().now():.0f}"
            own = copy.model_copy(update={"to": folder, "endpoint": store.address})
            scenario = self._scenario(_written(self.run_file, self.runs, "fail-store", copies=[own]), store=store)
            try:
                scenario.play([DrillFault.FAIL_STORE])
                problem = _copy_problem(scenario.run)
                if not store.failed:
                    scenario.skipped[DrillFault.FAIL_STORE] = "fewer than ten requests went to the store"
                    scenario.injections.clear()
                return [
                    each if each.skipped else replace(each, problem=problem)
                    for each in scenario.outcomes(_losses(self.undisturbed))
                ]
            finally:
                store.recover()
                scenario.run.end()
                for place in places(scenario.run.run_dir):
                    for step in place.manifests():
                        place.delete(step)


def _copy_in_a_store(run_file: RunFile) -> CheckpointCopy | None:
    """The first place of copies in a store that a proxy can stand in front of."""
    with_address = (
        copy.model_copy(update={"endpoint": copy.endpoint or os.environ.get("AWS_ENDPOINT_URL", "")})
        for copy in run_file.checkpoint.copies
        if copy.is_s3
    )
    return next((copy for copy in with_address if (copy.endpoint or "").startswith("http://")), None)


def _copy_problem(run: DrilledRun) -> str:
    """What is wrong with the copy of the last checkpoint, which may still be on its way; empty if it loads."""
    deadline = run.clock.now() + _COPIED_S
    last = complete_checkpoints(run.run_dir)[-1][0].step
    while last not in [event["step"] for event in of_kind(run.events(), CheckpointCopiedEvent)]:
        if run.clock.now() > deadline:
            return f"the last checkpoint, of step {last:,}, was not copied"
        run.clock.sleep(_COPIED_LOOK_S)
    (copy,) = checkpoint_copies(str(run.run_dir.path), rehearsed=True)
    return copy.problem or ""


def _report(run: DrilledRun, seed: int, outcomes: Sequence[FaultOutcome], soak: Soak | None = None) -> DrillReport:
    resolved = run.run_dir.read_resolved()
    assert resolved.plan is not None
    return DrillReport(
        run=str(run.run_dir.path),
        seed=seed,
        nodes=resolved.processes.nodes,
        steps=resolved.plan.num_steps,
        outcomes=tuple(outcomes),
        checks=check_record(run.rows(), resolved.plan.num_steps),
        state=str(run.state),
        soak=soak,
    )
