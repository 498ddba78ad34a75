"""A real Slurm of four nodes, started once, for the tests that are marked `slurm`."""

from __future__ import annotations

import logging
import os
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest

import trainworks
from tests.fakes import resolved_command
from tests.ports import free_port
from trainworks.api.launching.prepared_run import NODE_CHECK
from trainworks.backends.backend import JobStatus
from trainworks.backends.slurm.backend import SlurmBackend
from trainworks.backends.slurm.client import SlurmClient
from trainworks.config.engines import Slurm
from trainworks.config.run_file import RunFile
from trainworks.deploy.sandbox.slurm import SlurmSandbox, missing_programs
from trainworks.deploy.sandbox.slurm_files import CLUSTER, SandboxSize
from trainworks.host import process
from trainworks.jobs.spec_of_run import spec_of
from trainworks.plan.run.processes import choose_role_processes, requested_host
from trainworks.record.events.log import Event, read_events
from trainworks.record.processes import Processes
from trainworks.record.resolved import ResolvedRun
from trainworks.record.run_dir import RunDir
from trainworks.record.runs_folder import create_run_dir

TIMEOUT_S = 240.0
_STALL_S = 15
"""How long a process may get no processor on a busy machine: no node is lost and no step refused for that."""
_PORTS_OF_DAEMONS = 10
_LOG = logging.getLogger(__name__)


class Cluster:
    """The sandbox, and how a test talks to it."""

    def __init__(self, sandbox: SlurmSandbox, folder: Path) -> None:
        self.sandbox = sandbox
        self.folder = folder
        source = str(Path(trainworks.__file__).parents[1])
        own = {"PYTHONPATH": source, "TRAINWORKS_CACHE": str(folder / "cache")}
        self.env = dict(os.environ) | own | sandbox.env()

    @property
    def accounting(self) -> bool:
        """Whether it has a database."""
        return self.sandbox.size.accounting

    def call(self, *command: str) -> str:
        """Run one of Slurm's programs."""
        return subprocess.run(command, env=self.env, check=True, capture_output=True, text=True).stdout

    def command(
        self,
        run: str,
        *,
        nodes: int = 4,
        restarts: int = 0,
        slurm: dict[str, Any] | None = None,
        resources: dict[str, Any] | None = None,
        **job: Any,
    ):
        """A run of a command on nodes of eight accelerators; not submitted yet."""
        run_file = RunFile.model_validate(
            {
                "name": "t",
                "run": run,
                "num_nodes": nodes,
                "resources": resources or {"accelerators": "h100:8"},
                "job": {"grace": "8 s"} | job,
                "recover": {"max_restarts": restarts},
                "cluster": {"engine": "slurm", "slurm": slurm or {}},
            }
        )
        run_dir = create_run_dir(self.folder / "runs", "t")
        starts = {"nodes": nodes, "processes_per_node": 1, "threads_per_process": 1, "device": "cpu"}
        processes = Processes(starts=run_file.starts, **starts)
        check = (NODE_CHECK,) if run_file.job.health else ()
        resolved = resolved_command(run_dir.run_id, run_file=run_file, processes=processes, node_check=check)
        return Run(self, run_dir, resolved)

    def roles(self, *, job: dict[str, Any] | None = None, restarts: int = 0, **roles: dict[str, Any]) -> Run:
        """A job with roles; not submitted yet."""
        keys = {"name": "t", "roles": roles, "job": {"grace": "8 s"} | (job or {}), "cluster": {"engine": "slurm"}}
        run_file = RunFile.model_validate(keys | {"recover": {"max_restarts": restarts}})
        run_dir = create_run_dir(self.folder / "runs", "t")
        processes = choose_role_processes(run_file, requested_host(run_file))
        return Run(self, run_dir, resolved_command(run_dir.run_id, run_file=run_file, processes=processes))

    @contextmanager
    def configured(self, name: str, value: object) -> Iterator[None]:
        """Meanwhile a setting has another value: for programs that start, and for daemons after `reconfigure`."""
        conf = self.sandbox.paths.conf
        before = conf.read_text(encoding="utf-8")
        changed, number = re.subn(f"(?m)^{name}=.*", f"{name}={value}", before)
        assert number == 1, name
        conf.write_text(changed, encoding="utf-8")
        try:
            yield
        finally:
            conf.write_text(before, encoding="utf-8")

    def is_idle(self) -> bool:
        """Whether all nodes are. One that is drained is resumed: Slurm may do that after the test that it is due to."""
        states = dict(line.split() for line in self.call("sinfo", "-hN", "-o", "%N %T").splitlines())
        for node, state in states.items():
            if state.startswith("drain"):
                self.call("scontrol", "update", f"NodeName={node}", "State=RESUME")
        return set(states.values()) == {"idle"}

    def forget_all(self) -> None:
        """End every job, and say what there is to know of them: pytest shows it with a test that failed."""
        _LOG.warning("%s\n%s", self.call("squeue", "--long"), self.call("sinfo", "--Node", "--long", "--list-reasons"))
        for log in filter(Path.exists, map(self.sandbox.paths.log, ("slurmctld", "power"))):
            _LOG.warning("\n".join([log.name, *log.read_text().splitlines()[-40:]]))
        self.call("scancel", "--user=root")
        wait_until(lambda: not self.call("squeue", "--noheader").strip())


class Run:
    """One run under Slurm."""

    def __init__(self, cluster: Cluster, run_dir: RunDir, resolved: ResolvedRun) -> None:
        self.run_dir = run_dir
        self.cluster = cluster
        run_dir.write_resolved(resolved)
        options = resolved.run_file.cluster.slurm
        self.backend = SlurmBackend(options, client=SlurmClient(env=cluster.env))
        processes = resolved.processes if resolved.plan else None
        self.spec = spec_of(resolved.run_file, run_id=run_dir.run_id, working_folder="/", processes=processes)
        self.handle = ""

    def submit(self) -> Run:
        """Submit it."""
        self.handle = self.backend.submit(self.backend.render(self.spec, self.run_dir), self.run_dir)
        return self

    def start(self) -> Run:
        """Submit it, and wait until all its ranks run."""
        self.submit()
        wait_until(lambda: self.state == "RUNNING")
        return self

    @property
    def state(self) -> str:
        """As the record has it."""
        return self.run_dir.read_status().state

    @property
    def status(self) -> JobStatus:
        """As Slurm has it."""
        return self.backend.poll([self.handle])[self.handle]

    def end(self) -> JobStatus:
        """Wait for it."""
        wait_until(lambda: self.status.state.is_final)
        return self.status

    def events(self, kind: str) -> list[Event]:
        """Of one kind."""
        return [event for event in read_events(self.run_dir.events_file) if event["kind"] == kind]

    def rank_log(self, rank: int) -> str:
        """What a rank said."""
        return self.run_dir.rank_log(rank).read_text(encoding="utf-8")

    def processes(self) -> list[str]:
        """Command lines of what is left of it."""
        return [" ".join(words) for _, words in self._commands()]

    def kill(self, module: str) -> None:
        """Kill one of the processes that run a module on a node."""
        next(one for one, words in self._commands() if module in words and Path(words[0]).name != "srun").kill()

    def _commands(self) -> list[tuple[psutil.Process, list[str]]]:
        """Processes of the job, with their command lines; one that ends meanwhile is left out."""
        found = []
        for one in process.processes_with({"SLURM_JOB_ID": self.handle, "SLURM_CLUSTER_NAME": CLUSTER}):
            with suppress(psutil.NoSuchProcess):
                found.append((one, one.cmdline()))
        return found


def wait_until(condition: Callable[[], Any], timeout_s: float = TIMEOUT_S, *, look_s: float = 0.1) -> None:
    """Poll Slurm; there is nothing to fake there."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "timed out"
        time.sleep(look_s)


@contextmanager
def started(size: SandboxSize) -> Iterator[Cluster]:
    """A cluster on ports of its own; what it said is shown with the tests that fail."""
    folder = Path(tempfile.mkdtemp(prefix="tw-"))  # short: the paths of sockets are
    folder.chmod(0o755)
    sandbox = SlurmSandbox(folder / "s")
    try:
        patient = replace(size, message_timeout_s=2 * _STALL_S, credential_s=_STALL_S)
        sandbox.up(replace(patient, first_port=free_port(_PORTS_OF_DAEMONS + size.nodes)))
        yield Cluster(sandbox, folder)
    finally:
        sandbox.purge()
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="session")
def _cluster() -> Iterator[Cluster]:
    if os.geteuid() != 0:
        pytest.skip("NOT TESTED: Slurm; it takes root")
    if missing := missing_programs():
        pytest.skip(f"NOT TESTED: Slurm; no {', '.join(missing)}: trainworks sandbox slurm install")
    with started(SandboxSize(accounting=not missing_programs(accounting=True), node_timeout_s=_STALL_S)) as cluster:
        yield cluster


@pytest.fixture
def cluster(_cluster: Cluster) -> Iterator[Cluster]:
    """Four nodes of eight accelerators, idle once they have ended what the test before left."""
    wait_until(_cluster.is_idle)
    yield _cluster
    _cluster.forget_all()


@pytest.fixture
def backend(cluster: Cluster) -> SlurmBackend:
    """A backend without wishes."""
    return SlurmBackend(Slurm(), client=SlurmClient(env=cluster.env))
