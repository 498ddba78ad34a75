"""A run that is resolved and checked for its backend, and gets a run directory."""

from __future__ import annotations

import shutil
from dataclasses import dataclass, replace
from pathlib import Path

from trainworks.api.launching.resolve import resolve
from trainworks.api.notices import Notify, warn
from trainworks.api.observing.observers import check_observers, observers_of
from trainworks.api.run_request import RunRequest
from trainworks.backends.backend import Backend
from trainworks.backends.local.attached import AttachedBackend
from trainworks.backends.registry import backend_of_run
from trainworks.config.manifests.reading import ManifestSource
from trainworks.config.slurm.sbatch import BatchSource
from trainworks.config.source import Source
from trainworks.errors import EnvironmentProblem, UsageError
from trainworks.host import process
from trainworks.jobs.job_spec import JobSpec
from trainworks.jobs.spec_of_run import spec_of_run
from trainworks.measure.planning import AS_USUAL, Planning
from trainworks.plan.cost.expected import ExpectedCost
from trainworks.record.resolved import ResolvedRun
from trainworks.record.run_dir import RunDir
from trainworks.record.runs_folder import create_run_dir

__all__ = ["NODE_CHECK", "NODE_PLANNER", "Planning", "PreparedRun", "prepare"]

NODE_PLANNER = "trainworks.api.node_plan"
"""Module that plans a workload on the first node of its job."""
NODE_CHECK = "trainworks.api.proving.node_check"
"""Module that checks a node before the ranks of a job start there."""
_GIT_S = 5.0


@dataclass(frozen=True, slots=True)
class PreparedRun:
    """A resolved run before it has a run directory."""

    request: RunRequest
    resolved: ResolvedRun
    folder: Path
    backend: Backend
    is_attached: bool
    """True if the run starts at once on this machine and ends with this process; False if it enters a queue."""

    @property
    def spec(self) -> JobSpec:
        """What the run requests from its backend."""
        return spec_of_run(self.resolved)

    def rendered(self) -> str:
        """What a launch would submit, as text."""
        backend = AttachedBackend(self.resolved) if self.backend.name == "local" else self.backend
        return backend.render(self.spec, RunDir(self.folder / f"{self.resolved.run_id}-N")).text

    def with_forecast(self, *, ask: bool = True, learning: bool = True) -> PreparedRun:
        """Plan a job for another cluster by the catalogue, if its accelerators are known.

        Args:
            ask: let the scheduler say what its nodes have; else the run file alone does.
            learning: whether stored measurements of this kind of cluster correct the plan.

        Raises:
            LayoutError: the layout of the run file does not fit the accelerators or the model.
            EnvironmentProblem: the model does not fit into their memory.
        """
        run_file = self.resolved.run_file
        if run_file.cluster.engine == "local":
            return self
        from trainworks.api.planning.described import job_plan  # noqa: PLC0415  # imports the catalogue

        # the cluster as written: in place of a stack file `resolved` has words, which lack the topology
        as_written = run_file.cluster.model_copy(update={"of": self.request.run_file.cluster.of})
        run_file = run_file.model_copy(update={"cluster": as_written})
        source = self.request.source if isinstance(self.request.source, Source) else None
        found = job_plan(run_file, source, self.backend if ask else None, learning=learning)
        if found is None:
            return self
        plan = found.of_command(run_file) if run_file.trains is not None else self.resolved.plan
        return replace(self, resolved=self.resolved.model_copy(update={"forecast": found.forecast(), "plan": plan}))

    def expected_cost(self, jobs: int = 1) -> ExpectedCost | None:
        """What so many of these jobs will cost, see `forecast.expected_cost`; None where nothing tells."""
        if not self.spec.num_accelerators:
            return None
        from trainworks.api.planning.expected_cost import expected_cost  # noqa: PLC0415  # imports the catalogue

        return expected_cost(self.resolved, self.spec, jobs)

    def check(self) -> None:
        """Refuse what the backend can never run.

        Raises:
            UsageError: with the reason.
            MissingExtraError: the library of a tracker or of the messages is not installed.
        """
        self.backend.check(self.spec)
        if self.resolved.run_file.job.avoid_failing_nodes:
            from trainworks.backends.node_histories import check_has_histories  # noqa: PLC0415 - imports the database

            check_has_histories(self.backend)
        check_observers(self.resolved.run_file)

    def probe(self) -> str | None:
        """Refuse what the backend would not accept now; returns a remark on cores that other jobs use, or None.

        Raises:
            UsageError: the backend would refuse the job.
            EnvironmentProblem: other jobs hold the accelerators a run needs at once.
        """
        self.backend.probe(self.spec)
        return self.backend.sharing_note() if isinstance(self.backend, AttachedBackend) else None

    def write_run_dir(self, *, notify: Notify = warn) -> tuple[RunDir, ResolvedRun]:
        """Make the run directory, and return it with the resolved run that it now holds."""
        resolved = self.resolved
        if resolved.run_file.job.avoid_failing_nodes and not self.is_attached:
            from trainworks.backends.node_histories import avoid_failing_nodes  # noqa: PLC0415 - imports the database

            resolved = avoid_failing_nodes(resolved, self.spec, self.backend, notify=notify)
        run_dir = create_run_dir(self.folder, self.request.run_file.name)
        node_check = (NODE_CHECK,) if self.request.run_file.job.health else ()
        update = {
            "run_id": run_dir.run_id,
            "commit": _commit_of(self.resolved.working_folder),
            "node_check": node_check,
            "accelerator_check": (NODE_CHECK,) if self.backend.gives_other_accelerators else (),
            "observers": observers_of(self.resolved.run_file),
        }
        resolved = resolved.model_copy(update=update)
        try:
            source = self.request.source
            if source is not None and not isinstance(source, BatchSource | ManifestSource):
                run_dir.write_run_file(source.text, resolved)
            if resolved.run_file.job.keep_code:
                from trainworks.record.code_archive import keep_code  # noqa: PLC0415 - few runs need tarfile and pathspec

                first = self.request.turn.first if self.request.turn else None
                resolved = keep_code(resolved, run_dir, notify=notify, first=first)
            run_dir.write_resolved(resolved)
        except BaseException:
            shutil.rmtree(run_dir.path, ignore_errors=True)
            raise
        return run_dir, resolved


def prepare(request: RunRequest, *, folder: Path, queued: bool, planning: Planning = AS_USUAL) -> PreparedRun:
    """Resolve a run for its backend.

    Args:
        request: the run file and its command.
        folder: folder of all runs.
        queued: put a run on this machine into its queue; a run elsewhere is always queued there.
        planning: what is measured for the plan of a run on this machine.

    Raises:
        UsageError: the jobs of its array or pipeline cannot wait for each other.
    """
    resolved = resolve(
        request.run_file,
        request.source,
        run_id=request.run_file.name,
        runs=folder,
        command=request.command,
        planning=planning,
        node_planner=NODE_PLANNER,
    )
    is_attached = not queued and resolved.run_file.cluster.engine == "local"
    backend = AttachedBackend(resolved) if is_attached else backend_of_run(resolved)
    if request.turn is not None and request.turn.at_once is not None and "depends_on" in backend.unsupported:
        what = "a pipeline" if request.needs_success else f"an array with `%{request.turn.at_once}`"
        hint = "submit each task by itself" if request.needs_success else "leave out `%` and the number behind it"
        raise UsageError(f"{backend.name} cannot make a job wait for another, as {what} needs", hint=hint)
    return PreparedRun(request, resolved, folder, backend, is_attached)


def _commit_of(folder: str) -> str | None:
    """Hash of the checked-out commit, with `-dirty` if tracked files differ from it.

    Returns:
        None outside of a repository, without git, and in a repository that takes longer than five seconds.
    """
    command = ["git", "-C", folder, "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    try:
        output = process.run(command, timeout_s=_GIT_S)
    except (OSError, EnvironmentProblem):
        return None
    return output.stdout.strip() or None if output.exit_code == 0 else None
