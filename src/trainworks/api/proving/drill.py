"""Prove that a run survives its faults: run it undisturbed, run it again under faults, and compare."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from itertools import count
from pathlib import Path
from statistics import median
from typing import Any

import yaml

from trainworks.api.anchor import anchor
from trainworks.api.run_request import RunTarget, read_request
from trainworks.config.run_file import RunFile
from trainworks.errors import EnvironmentProblem, UsageError
from trainworks.host.clock import SystemClock
from trainworks.jobs.state import JobState
from trainworks.measure.drill.drill_fault import HARMLESS_AFTERWARDS, DrillFault, ordered, why_skipped
from trainworks.measure.drill.drill_report import DrillReport, Soak
from trainworks.measure.drill.drilled_run import DrilledRun
from trainworks.measure.drill.injection import Namespace, SmallDisk
from trainworks.measure.drill.outcome import FaultOutcome, check_record
from trainworks.measure.drill.scenario import FaultScenario
from trainworks.plan.reliability import scenario as reliability
from trainworks.plan.reliability.simulation import simulate
from trainworks.units import parse_duration

_MANY = 1_000_000
_DISK_CHECKPOINTS = 6
_DISK_MARGIN = 64_000_000
"""Space for the record and its reserve."""
_ENDS_S = 24 * 3600.0
_SOAK_SHARE = 0.6
"""Share of a soak in which steps are trained: an assumption that only decides their number."""
_GAPS_S = (20.0, 60.0)
_TRIALS = 200


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
    """Run a workload on this machine while faults hit it, and tell what became of each.

    Args:
        target: a run file of a workload on this machine.
        faults: names of faults; all when empty.
        seed: decides order and victims.
        nodes: number of nodes instead of the run file's.
        nproc: ranks per node instead of the run file's.
        soak: train for this time under a random fault every 20 to 60 s instead: `30m`.
        folder: folder of all runs; the drill makes a folder of its own below it.
        progress: receives a line per fault.

    Returns:
        The outcome of every fault; those that this machine cannot inject are skipped, and say why.

    Raises:
        UsageError: the run is not a workload on this machine, or a fault has an unknown name.
        EnvironmentProblem: the run fails without any fault.
    """
    request = read_request(target, nodes=nodes, nproc=nproc)
    run_file = anchor(request.run_file, request.source, on_nodes=False).run_file
    if run_file.workload is None or run_file.cluster.engine != "local":
        raise UsageError("a drill needs a `workload` with `cluster: local`")
    runs = _own_folder(Path(folder))
    chosen = [_fault(name) for name in faults] or list(HARMLESS_AFTERWARDS if soak else DrillFault)
    undisturbed = _undisturbed(run_file, runs, progress)
    if soak is not None:
        seconds = parse_duration(soak) if isinstance(soak, str) else soak
        return _soak(run_file, runs, chosen, seed, seconds, undisturbed, progress)
    return _faults(run_file, runs, chosen, seed, undisturbed, progress)


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


def _written(run_file: RunFile, runs: Path, name: str, **workload: Any) -> Path:
    """Write the run file of a drill: the user's, with restarts enough for all faults and without messages."""
    data = run_file.model_dump(mode="json", exclude_unset=True)
    data["recover"] = {**data.get("recover", {}), "max_restarts": _MANY}
    data["workload"] |= workload
    for key in ("notify", "track", "resume"):
        data.pop(key, None)
    data.get("checkpoint", {}).pop("to", None)
    path = runs / f"{name}.yaml"
    path.write_text(yaml.safe_dump(data, sort_keys=False), encoding="utf-8")
    return path


def _undisturbed(run_file: RunFile, runs: Path, progress: Callable[[str], None]) -> DrilledRun:
    progress("a run without faults")
    run = DrilledRun(_written(run_file, runs, "undisturbed"), name="undisturbed", runs=runs, clock=SystemClock())
    run.start()
    run.wait(lambda: False, _ENDS_S)
    if run.state is not JobState.SUCCEEDED:
        raise EnvironmentProblem("the run fails without any fault", hint=f"read {runs / 'undisturbed.log'}")
    return run


def _losses(run: DrilledRun) -> dict[int, float]:
    return {row["step"]: row["loss"] for row in run.rows()}


def _faults(
    run_file: RunFile,
    runs: Path,
    faults: Sequence[DrillFault],
    seed: int,
    undisturbed: DrilledRun,
    progress: Callable[[str], None],
) -> DrillReport:
    """Most faults in one run; a full disk in one of its own, on a disk of its own."""
    skipped = {fault: why for fault in faults if (why := why_skipped(fault)) is not None}
    able = [fault for fault in ordered(faults, seed) if fault not in skipped]
    rng = random.Random(seed)  # noqa: S311  # victims, not secrets
    with ExitStack() as open_until_end:
        network = ""
        if DrillFault.CUT_NETWORK in able:
            network = open_until_end.enter_context(Namespace(f"drill-{undisturbed.supervisor()}")).name
        in_one = [fault for fault in able if fault is not DrillFault.FULL_DISK]
        main = _scenario(_written(run_file, runs, "faults"), runs, rng, progress, network=network)
        open_until_end.callback(main.run.end)
        main.play(in_one)
        outcomes = main.outcomes(_losses(undisturbed))
        if DrillFault.FULL_DISK in able:
            outcomes += _full_disk(run_file, runs, rng, undisturbed, progress)
    outcomes += [FaultOutcome(fault, skipped=why) for fault, why in skipped.items()]
    return _report(main.run, seed, outcomes)


def _scenario(
    run_file: Path,
    runs: Path,
    rng: random.Random,
    progress: Callable[[str], None],
    *,
    network: str = "",
    disk: Path | None = None,
) -> FaultScenario:
    prefix = ("ip", "netns", "exec", network) if network else ()
    run = DrilledRun(run_file, name=run_file.stem, runs=disk or runs, clock=SystemClock(), prefix=prefix)
    return FaultScenario(run, rng, progress, network=network, disk=disk)


def _full_disk(
    run_file: RunFile,
    runs: Path,
    rng: random.Random,
    undisturbed: DrilledRun,
    progress: Callable[[str], None],
) -> list[FaultOutcome]:
    """A run whose whole folder is on a small disk, which fills up."""
    plan = undisturbed.run_dir.read_resolved().plan
    assert plan is not None
    size = _DISK_CHECKPOINTS * plan.checkpoint_bytes + _DISK_MARGIN
    with SmallDisk(runs / "small-disk", size) as disk:
        scenario = _scenario(_written(run_file, runs, "full-disk"), runs, rng, progress, disk=disk.folder)
        try:
            scenario.play([DrillFault.FULL_DISK])
            return scenario.outcomes(_losses(undisturbed))
        finally:
            scenario.run.end()


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


def _soak(
    run_file: RunFile,
    runs: Path,
    faults: Sequence[DrillFault],
    seed: int,
    seconds: float,
    undisturbed: DrilledRun,
    progress: Callable[[str], None],
) -> DrillReport:
    """Random faults until the time is over; the run is as long as it trains meanwhile."""
    rng = random.Random(seed)  # noqa: S311  # victims, not secrets
    step_s = median(row["step_s"] for row in undisturbed.rows())
    steps = max(10, round(_SOAK_SHARE * seconds / step_s))
    written = _written(run_file, runs, "soak", train_for=f"{steps} steps")
    scenario = _scenario(written, runs, rng, progress)
    run, clock = scenario.run, scenario.run.clock
    began = clock.now()
    run.start()
    before = after = (0, 0)
    try:
        while scenario.await_ready():
            after = run.usage()
            before = after if before == (0, 0) else before
            gap_end = clock.now() + rng.uniform(*_GAPS_S)
            if clock.now() - began > seconds or not run.wait(lambda: clock.now() > gap_end, _GAPS_S[1] + 1):  # noqa: B023
                break
            fault = rng.choice(list(faults))
            progress(f"{clock.now() - began:.0f} s, step {run.last_step()}: {fault}")
            scenario.hit(fault)
        scenario.finish()
    finally:
        run.end()
    outcomes = scenario.outcomes({})
    found = _soak_figures(scenario, outcomes, began, step_s, steps, before, after)
    return _report(run, seed, outcomes, found)


def _soak_figures(
    scenario: FaultScenario,
    outcomes: Sequence[FaultOutcome],
    began: float,
    step_s: float,
    steps: int,
    before: tuple[int, int],
    after: tuple[int, int],
) -> Soak:
    """Goodput from the first step to the last, against a simulation with the measured rates of its inputs."""
    rows = scenario.run.rows()
    wall_s = rows[-1]["t"] - rows[0]["t"]
    back = [each.back_s for each in outcomes if each.back_s is not None]
    checkpoints = [event for event in scenario.run.events() if event["kind"] == "checkpoint"]
    every = (max(event["step"] for event in checkpoints) / len({event["step"] for event in checkpoints})) * step_s
    model = reliability.Scenario(
        num_nodes=1,
        work_s=steps * step_s,
        interval_s=every,
        other_mttf_s=wall_s / len(outcomes) if outcomes else math.inf,
        save_s=median(float(event["stall_s"]) for event in checkpoints),
        write_s=min(every, median(float(event["write_s"]) for event in checkpoints)),
        restart_s=median(back) if back else 0.0,
    )
    simulated = simulate(model, trials=_TRIALS)
    return Soak(
        seconds=scenario.run.clock.now() - began,
        faults=len(outcomes),
        goodput=steps * step_s / wall_s,
        simulated_goodput=simulated.ettr,
        files_before=before[0],
        files_after=after[0],
        bytes_before=before[1],
        bytes_after=after[1],
    )
