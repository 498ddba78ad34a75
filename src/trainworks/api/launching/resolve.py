"""Resolve a run in four steps: anchor, probe, decide, plan. The same code runs here and on the nodes of a job."""

from __future__ import annotations

import time
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import cast

from trainworks import __version__
from trainworks.agent.environments.files import read_environment, with_image
from trainworks.api.anchor import AnchoredRun, anchor
from trainworks.config.run_file import RunFile
from trainworks.config.source import Source
from trainworks.errors import LayoutError, UsageError
from trainworks.host.copies.record_copy import with_store
from trainworks.host.network import Machines
from trainworks.host.probe import command_host, package_versions, probe_host
from trainworks.measure.planning import AS_USUAL, Planning
from trainworks.measure.ranks_environment import OWN_INTERPRETER, RanksInterpreter, ranks_interpreter
from trainworks.plan.run.processes import (
    ResourceError,
    choose_command_processes,
    choose_role_processes,
    choose_workload_processes,
    requested_host,
)
from trainworks.record.environment import HostFacts
from trainworks.record.model_shape import ModelShape
from trainworks.record.processes import Processes
from trainworks.record.resolved import ResolvedRun
from trainworks.record.run_environment import ResolvedEnvironment


def resolve(
    run_file: RunFile,
    source: Source | None,
    *,
    run_id: str,
    runs: Path,
    command: list[str] | None = None,
    host: HostFacts | None = None,
    machines: Machines | None = None,
    shape: ModelShape | None = None,
    node_planner: str | None = None,
    planning: Planning = AS_USUAL,
    environment: ResolvedEnvironment | None = None,
) -> ResolvedRun:
    """Decide everything that the run file leaves open, and predict the run.

    Args:
        run_file: the run to resolve.
        source: text of the run file, for the place of an error.
        run_id: of the run directory.
        runs: folder of all runs.
        command: argument vector, where one is given instead of a text.
        host: all nodes of the job as one machine; when left out, this machine is probed, and a workload for another
            backend is planned later, on its nodes.
        machines: how to start a process on these nodes.
        shape: of a preset, which can be planned and not trained; the model's own when left out.
        node_planner: module that plans a workload on its nodes later, with the run directory as its argument.
        planning: what is measured for the plan.
        environment: packages of the ranks as an earlier launch recorded them; read from their file when left out.

    Raises:
        TrainworksError: the run cannot be resolved, with the line of the run file at fault.
    """
    run_file = with_store(with_image(run_file))
    if run_file.cluster.of is not None or (run_file.resources and run_file.cluster.engine != "local"):
        from trainworks.jobs.described_nodes import check_worker, with_described_nodes  # noqa: PLC0415  # the catalogue

        run_file = with_described_nodes(run_file, source)
        if shape is None and run_file.cluster.engine not in ("local", "described"):
            check_worker(run_file, source)
    anchored = anchor(run_file, source, on_nodes=host is not None, shape=shape)
    environment = environment or read_environment(run_file, source)
    probed = probe(anchored, runs, host=host, environment=environment)
    try:
        resolved = decide(probed, run_id=run_id, command=command, node_planner=node_planner)
        workload = resolved.run_file.workload
        if workload is None or probed.is_planned_later:
            planning.refuse_tuning()
            if run_file.trains is not None:
                return _with_plan_of_command(resolved, source, planning)
            if workload is not None:
                from trainworks.measure.model_config import check_support_early  # noqa: PLC0415 - it imports numpy

                check_support_early(workload, resolved.run_file.layout, package_versions())
            return resolved
        from trainworks.api.launching.workload_plan import ReadyWorkload, plan_workload  # noqa: PLC0415 - imports the planner

        ready = ReadyWorkload(resolved, workload, probed.interpreter, machines, anchored.shape)
        return plan_workload(ready, runs, planning)
    except LayoutError as error:
        if source is None:
            raise
        raise source.locate(error) from None


def _with_plan_of_command(resolved: ResolvedRun, source: Source | None, planning: Planning) -> ResolvedRun:
    """The command with the plan of what it trains: by measured rates on this machine, else by the catalogue."""
    run_file, described = resolved.run_file, import_module("trainworks.api.planning.described")
    if run_file.cluster.engine == "local":
        shape = described.measurable_shape(run_file, source)
        workloads = import_module("trainworks.api.launching.workload_plan")  # it imports the planner
        return cast(ResolvedRun, workloads.plan_command(resolved, shape, planning))
    found = described.job_plan(run_file, source, None, learning=planning.learning)
    return resolved.model_copy(update={"plan": found and found.of_command(run_file)})


@dataclass(frozen=True, slots=True)
class ProbedRun:
    """A run and the machine, or the nodes of its job, that it starts on."""

    anchored: AnchoredRun
    host: HostFacts
    is_planned_later: bool
    """Whether the nodes are not known yet: what the run file requests stands in for them."""
    environment: ResolvedEnvironment | None = None
    interpreter: RanksInterpreter = OWN_INTERPRETER
    """Python of a workload that is planned now."""


def probe(
    anchored: AnchoredRun,
    runs: Path,
    *,
    host: HostFacts | None,
    environment: ResolvedEnvironment | None = None,
) -> ProbedRun:
    """Probe this machine and build the environment of a workload, unless the nodes of the job come later."""
    run_file = anchored.run_file
    if host is None and run_file.cluster.engine != "local":
        return ProbedRun(anchored, requested_host(run_file), is_planned_later=True, environment=environment)
    interpreter = ranks_interpreter(environment if run_file.workload else None)
    if host is None and run_file.as_planned.workload is None:
        host = command_host(runs, has_environment=run_file.environment is not None)
    host = interpreter.seen_by(host or probe_host(runs))
    return ProbedRun(anchored, host, False, environment, interpreter)


def decide(probed: ProbedRun, *, run_id: str, command: list[str] | None, node_planner: str | None) -> ResolvedRun:
    """Choose processes and precision; a workload has no plan yet.

    Raises:
        UsageError: the run requests what the machine does not have.
    """
    anchored, host = probed.anchored, probed.host
    run_file, source = anchored.run_file, anchored.source
    processes = _with_nccl(_processes(run_file, source, host), run_file, source)
    is_planned_later = probed.is_planned_later and run_file.workload is not None
    if not probed.is_planned_later:
        run_file = _with_precision(run_file, source, host, processes.device)
    return ResolvedRun(
        run_id=run_id,
        created_at=time.time(),
        trainworks=__version__,
        run_file=run_file,
        command=tuple(command) if command else None,
        working_folder=str(anchored.working_folder),
        environment=probed.environment,
        processes=processes,
        host=host,
        planner=(node_planner,) if node_planner and is_planned_later else (),
    )


def _processes(run_file: RunFile, source: Source | None, host: HostFacts) -> Processes:
    choose = choose_role_processes if run_file.roles else choose_command_processes
    choose = choose_workload_processes if run_file.workload else choose
    try:
        return choose(run_file, host)
    except ResourceError as error:
        place = source.place(error.path) if source else None
        raise UsageError(error.message, place=place, hint=error.hint) from None


def _with_nccl(processes: Processes, run_file: RunFile, source: Source | None) -> Processes:
    """The same processes with the NCCL settings of the cluster, where the run file describes it."""
    if run_file.cluster.of is None:
        return processes
    from trainworks.jobs.described_nodes import described_part  # noqa: PLC0415 - imports the catalogue
    from trainworks.plan.network.nccl import nccl_environment  # noqa: PLC0415

    cluster = described_part(run_file, source)
    return processes.model_copy(update={"nccl_environment": nccl_environment(cluster, processes)})


def _with_precision(run_file: RunFile, source: Source | None, host: HostFacts, device: str) -> RunFile:
    """The same run file with a precision that the machine has."""
    key, workload = "trains" if run_file.workload is None else "workload", run_file.as_planned.workload
    if workload is None:
        return run_file
    from trainworks.plan.run.trainable import check_precision, default_precision  # noqa: PLC0415 - it imports numpy

    if "precision" in workload.model_fields_set:
        check_precision(workload.precision, host, source)
        return run_file
    chosen = workload.model_copy(update={"precision": default_precision(host, device)})
    return run_file.model_copy(update={key: chosen})
