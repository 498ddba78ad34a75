"""Where the tests of all backends run: a backend, a store, and what can go wrong with the two."""

from __future__ import annotations

import abc
import json
import os
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, final

import psutil
import pytest

from tests.backends.slurm_cluster import Cluster
from tests.backends.small_backend import Site, SmallBackend, end_all
from tests.backends.ssh_hosts import SshSite
from tests.fakes import FakeClock, resolved_command
from tests.kubernetes.cluster import KubernetesCluster
from trainworks.agent.launch import run_mark
from trainworks.api.notices import warn
from trainworks.backends.backend import Backend
from trainworks.backends.kubernetes.backend import KubernetesBackend
from trainworks.backends.kubernetes.client import KubernetesClient
from trainworks.backends.local.backend import LocalBackend
from trainworks.backends.local.wake import wake
from trainworks.backends.remote import follow_all, hand_over, hand_over_again
from trainworks.backends.slurm.backend import SlurmBackend
from trainworks.backends.slurm.client import SlurmClient
from trainworks.backends.ssh.backend import SshBackend
from trainworks.backends.store_place import store_url
from trainworks.backends.submission import check_waits
from trainworks.config.engines import Slurm, cluster_from_text
from trainworks.config.run_file import Cluster as ClusterOfRun
from trainworks.config.run_file import RunFile
from trainworks.errors import EnvironmentProblem, UnreachableError
from trainworks.host import process
from trainworks.host.clock import SystemClock
from trainworks.jobs.job_row import JobRow
from trainworks.jobs.job_spec import JobSpec
from trainworks.jobs.spec_of_run import spec_of
from trainworks.jobs.store import open_store
from trainworks.plan.run.processes import choose_role_processes, requested_host
from trainworks.record.code_archive import keep_code
from trainworks.record.processes import Processes
from trainworks.record.run_dir import RunDir
from trainworks.record.runs_folder import create_run_dir

PATIENCE_S = 240.0
_LOOK_S = 0.25
"""A look starts programs of Slurm, or asks an API server."""


@dataclass
class Job:
    """A run of one of these tests."""

    bed: Bed
    run_dir: RunDir
    spec: JobSpec

    @property
    def row(self) -> JobRow:
        """As the store has it, after a look at its backend."""
        self.bed.look()
        row = self.bed.store.find(str(self.run_dir.path.resolve()))
        assert row is not None
        return row

    def wait_for(self, *states: str) -> JobRow:
        """Until it is in one of these states."""
        wait_until(lambda: self.row.state in states, lambda: str(self.row))
        return self.row

    def end(self) -> JobRow:
        """Wait for it."""
        return self.wait_for("SUCCEEDED", "FAILED", "STOPPED")

    def said(self, rank: int) -> list[str]:
        """Lines of one rank, so far."""
        return self.bed.said(self, rank)

    def wait_until_said(self, line: str, ranks: int) -> None:
        """Until the first so many ranks have said it."""
        wait_until(lambda: all(line in self.said(rank) for rank in range(ranks)), lambda: str(self.row))

    def stop(self, *, at_once: bool = False) -> None:
        """Ask its backend."""
        self.bed.stop(self.row, at_once=at_once)


class Bed(abc.ABC):
    """One backend with four nodes."""

    tells_of_silence = True
    """Whether somebody has to ask it, and can be told nothing."""
    word = "slurm"
    """What the run file calls it."""
    requeues = True
    """Whether a job that loses a node waits for other nodes, instead of going on where it is."""
    causes_of_a_lost_node: ClassVar = {"node_lost"}
    """What an attempt may say of its end by a lost node."""
    resources: ClassVar[dict[str, Any] | None] = None
    """That every job asks for, so that no two share a node."""
    cluster: Mapping[str, Any] = {}
    """More keys of `cluster` in the run file."""
    names_machines = True
    """Whether a node of another name is another machine."""
    keeps_record = True
    """Whether a command writes its events and its end into the folder of its run."""
    code = '"$TRAINWORKS_RUN_DIR/code"'
    """Where the kept code is, as a shell of a rank writes it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.store = open_store(f"sqlite:///{folder / 'jobs.db'}")
        self.clock = SystemClock()
        self.code_folder = folder / 'it\'s a "folder" of $(id)'
        self.code_folder.mkdir()

    @property
    @abc.abstractmethod
    def backend(self) -> Backend:
        """A new object each time: nothing may depend on what an earlier one remembers."""

    @abc.abstractmethod
    def lose_a_node(self, job: Job) -> None:
        """Take one of the job's nodes away."""

    @abc.abstractmethod
    def silence(self) -> None:
        """Nobody answers for the backend."""

    @abc.abstractmethod
    def answer(self) -> None:
        """It answers again."""

    @abc.abstractmethod
    def close(self) -> None:
        """End everything."""

    def job(
        self, command: str, *, nodes: int = 2, restarts: int = 0, envs: dict[str, str] | None = None, **wishes: Any
    ):
        """A command on nodes of one rank each; not submitted yet."""
        run_file = RunFile.model_validate(
            {
                "name": "t",
                "run": command,
                "envs": envs or {},
                "resources": self.resources,
                "job": {"grace": "8 s"} | wishes,
                "recover": {"max_restarts": restarts},
                "cluster": {"engine": self.word, "nodes": nodes, "processes_per_node": 1, **self.cluster},
            }
        )
        return self._prepared(
            run_file, Processes(nodes=nodes, processes_per_node=1, threads_per_process=1, device="cpu")
        )

    def job_of_roles(self, **roles: dict[str, Any]) -> Job:
        """Commands of several roles, on nodes of one rank each; not submitted yet."""
        run_file = RunFile.model_validate(
            {
                "name": "t",
                "roles": {
                    name: {"resources": self.resources, "processes_per_node": 1, **role} for name, role in roles.items()
                },
                "job": {"grace": "8 s"},
                "cluster": {"engine": self.word, **self.cluster},
            }
        )
        return self._prepared(run_file, choose_role_processes(run_file, requested_host(run_file)))

    def _prepared(self, run_file: RunFile, processes: Processes) -> Job:
        run_dir = create_run_dir(self.folder / "runs", "t")
        resolved = resolved_command(
            run_dir.run_id, run_file=run_file, processes=processes, working_folder=str(self.code_folder), command=None
        )
        if run_file.job.keep_code:
            resolved = keep_code(resolved, run_dir, notify=warn)
        run_dir.write_resolved(resolved)
        spec = spec_of(run_file, run_id=run_dir.run_id, working_folder=resolved.working_folder)
        return Job(self, run_dir, spec)

    def submit(self, job: Job) -> Job:
        """Put it into the queue."""
        hand_over(self.store, self.backend, job.spec, job.run_dir, self.clock)
        return job

    def start(self, command: str, **keys: Any) -> Job:
        """Submit, and wait until all ranks have said `up`."""
        job = self.submit(self.job(command, **keys))
        job.wait_until_said("up", job.spec.max_nodes)
        job.wait_for("RUNNING")
        return job

    def look(self) -> None:
        """Bring the store up to date."""
        follow_all(self.store, self.clock, lambda run_dir: self.backend)

    def has_ended(self, job: Job) -> bool:
        """Whether the backend says that a job has ended; the store does not hear of it."""
        row = self.store.find(str(job.run_dir.path.resolve()))
        assert row is not None and row.handle is not None
        return self.backend.poll([row.handle])[row.handle].state.is_final

    def stop(self, row: JobRow, *, at_once: bool) -> None:
        """Ask the backend."""
        assert row.handle is not None
        self.backend.stop(row.handle, at_once=at_once)

    def retry(self, row: JobRow) -> None:
        """Submit it anew."""
        hand_over_again(self.store, self.backend, row, self.clock)

    def record(self, job: Job) -> RunDir:
        """Where the job itself writes."""
        return job.run_dir

    def shared(self, job: Job) -> Path:
        """What its ranks find as TRAINWORKS_RUN_DIR."""
        return self.record(job).path

    def said(self, job: Job, rank: int) -> list[str]:
        """Lines of one rank, so far."""
        log = self.record(job).rank_log(rank)
        return log.read_text(encoding="utf-8").splitlines() if log.exists() else []

    def marks(self, job: Job) -> dict[str, str]:
        """Variables of every process of a run."""
        return run_mark(job.run_dir)

    def left_of(self, job: Job) -> int:
        """Processes that a run still has."""
        return len(process.processes_with(self.marks(job)))

    def entering(self, job: Job, command: Sequence[str], *, node: int) -> list[str]:
        """Program that runs a command in a job."""
        row = job.row
        return self.backend.enter(job.run_dir, row.handle or str(row.id), command, node=node)

    def kill_a_rank(self, job: Job) -> None:
        """The last one."""
        for one in process.processes_with(self.marks(job) | {"RANK": str(job.spec.max_nodes - 1)}):
            process.kill(one.pid)

    def kill_the_supervisor(self, job: Job) -> None:
        """As the kernel does when a node has no memory left."""
        pid = self.record(job).read_status().supervisor_pid
        assert pid is not None
        process.kill(pid)

    def hold(self, row: JobRow) -> None:
        """As a user does."""
        check_waits(row, "hold")
        self.backend.hold(row.handle or str(row.id))

    def check_edited(self, row: JobRow, edited: JobSpec) -> None:
        """Check an edited job on a backend that has a queue of its own."""
        assert row.state.waits

    @contextmanager
    def lost_answers(self) -> Iterator[None]:
        """Meanwhile the backend takes jobs, and its answer does not arrive."""
        pytest.skip("nobody answers a submission to this backend: the store has the job at once")
        yield

    @contextmanager
    def strange_word(self) -> Iterator[None]:
        """Meanwhile the backend says something of its jobs that nobody knows."""
        pytest.skip("this backend has no words of its own")
        yield


@final
class SmallBed(Bed):
    """The smallest backend that keeps its promises."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._site = Site()

    @property
    def backend(self) -> SmallBackend:
        return SmallBackend(self._site)

    def lose_a_node(self, job: Job) -> None:
        self.backend.lose(job.row.placement[1].node)

    def silence(self) -> None:
        self._site.answers = False

    def answer(self) -> None:
        self._site.answers = True

    @contextmanager
    def lost_answers(self) -> Iterator[None]:
        self._site.loses_answers = True
        yield
        self._site.loses_answers = False

    @contextmanager
    def strange_word(self) -> Iterator[None]:
        self._site.word = "HIBERNATING"
        yield
        self._site.word = None

    def close(self) -> None:
        end_all(self._site)


@final
class LocalBed(Bed):
    """This machine as four nodes; its dispatcher is a process that can be killed."""

    tells_of_silence = False
    requeues = False
    causes_of_a_lost_node: ClassVar = {"agent_lost"}  # its machine is still there

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.store = open_store(store_url())

    @property
    def backend(self) -> LocalBackend:
        return LocalBackend(self.store)

    def submit(self, job: Job) -> Job:
        spec = replace(job.spec, node=replace(job.spec.node, cores=0.1))
        self.backend.submit(self.backend.render(spec, job.run_dir), job.run_dir)
        return job

    def retry(self, row: JobRow) -> None:
        self.backend.retry(
            self.backend.render(row.spec, RunDir(Path(row.run_dir))), RunDir(Path(row.run_dir)), str(row.id)
        )

    def stop(self, row: JobRow, *, at_once: bool) -> None:
        self.backend.stop(str(row.id), at_once=at_once)

    def look(self) -> None:
        """The dispatcher does that."""

    def has_ended(self, job: Job) -> bool:
        return job.row.state.is_final

    def lose_a_node(self, job: Job) -> None:
        """Its agent, and everything below it."""
        status = job.run_dir.read_status()
        supervisor = psutil.Process(status.supervisor_pid)
        agents = sorted(supervisor.children(), key=lambda one: one.create_time())
        for one in (agents[1], *agents[1].children(recursive=True)):
            with suppress(psutil.NoSuchProcess):  # ranks die with their agent
                one.kill()

    def silence(self) -> None:
        kill_dispatchers()

    def answer(self) -> None:
        wake()

    def close(self) -> None:
        for one in processes_of_the_queue():
            process.kill(one.pid)  # one may end with another


def processes_of_the_queue() -> list[psutil.Process]:
    """The dispatchers of a test that has a data folder of its own, and all that they started."""
    return process.processes_with({"TRAINWORKS_DATA": os.environ["TRAINWORKS_DATA"]})


def kill_dispatchers() -> None:
    """Their jobs go on."""
    for one in processes_of_the_queue():
        if any("dispatcher.lock" in file for file in _open_files(one.pid)):
            process.kill(one.pid)


def _open_files(pid: int) -> list[str]:
    try:
        return [str(link.readlink()) for link in Path(f"/proc/{pid}/fd").iterdir()]
    except OSError:
        return []


@final
class SshBed(Bed):
    """Four hosts with a real sshd each; their dispatcher is a process that can be killed."""

    word = "ssh"
    tells_of_silence = False

    def __init__(self, folder: Path, count: int = 4, **site: str) -> None:
        super().__init__(folder)
        self.site = SshSite(folder / "site", count, **site)
        self.cluster = {"hosts": self.site.names, "ssh": {"config": str(self.site.config)}}

    @property
    def backend(self) -> SshBackend:
        return SshBackend.connect(ClusterOfRun.model_validate(cluster_from_text({"engine": "ssh", **self.cluster})))

    def look(self) -> None:
        """Jobs may be in queues of several lists of hosts."""
        follow_all(self.store, self.clock)

    def lose_a_node(self, job: Job) -> None:
        self.site.kill(job.row.placement[1].node)

    def silence(self) -> None:
        kill_dispatchers()

    def answer(self) -> None:
        self.look()

    def close(self) -> None:
        for one in processes_of_the_queue():
            process.kill(one.pid)
        self.site.end()


@final
class SlurmBed(Bed):
    """A real Slurm of four nodes."""

    def __init__(self, folder: Path, cluster: Cluster) -> None:
        super().__init__(folder)
        self._cluster = cluster
        self._word: str | None = None
        self._is_deaf = self._submitted = False
        self._silence = ExitStack()

    @property
    def backend(self) -> SlurmBackend:
        clock = FakeClock() if self._is_deaf else SystemClock()  # it looks again and again, in vain
        return SlurmBackend(Slurm(), client=SlurmClient(env=self._cluster.env, run=self._run), clock=clock)

    @contextmanager
    def lost_answers(self) -> Iterator[None]:
        self._is_deaf = True
        yield
        self._is_deaf = self._submitted = False

    def _run(self, command: list[str], **options: Any) -> process.Output:
        if self._is_deaf and self._submitted and command[0] == "squeue":
            raise EnvironmentProblem("`squeue` took longer than 60 s")
        said = process.run(command, **options)
        if self._is_deaf and command[0] == "sbatch":
            self._submitted = True
            raise EnvironmentProblem("`sbatch` took longer than 60 s")
        if self._word is None or command[0] != "squeue":
            return said
        return replace(said, stdout=said.stdout.replace("RUNNING", self._word))

    def check_edited(self, row: JobRow, edited: JobSpec) -> None:
        shown = self._cluster.call("scontrol", "show", "job", row.handle or "").split()
        assert f"JobName={edited.name}" in shown and f"ExcNodeList={edited.exclude[0]}" in shown
        assert {"TimeLimit=00:15:00", "Nice=4000"} <= set(shown)

    def entering(self, job: Job, command: Sequence[str], *, node: int) -> list[str]:
        return ["env", f"SLURM_CONF={self._cluster.env['SLURM_CONF']}", *super().entering(job, command, node=node)]

    def lose_a_node(self, job: Job) -> None:
        self._lost = job.row.placement[1].node
        self._cluster.sandbox.kill_node(self._lost)

    def silence(self) -> None:
        self._cluster.sandbox.stop_controller()
        self._silence.enter_context(self._cluster.configured("MessageTimeout", 5))  # who asks in vain tries as long

    def answer(self) -> None:
        self._silence.close()
        self._cluster.sandbox.start_controller()

    @contextmanager
    def strange_word(self) -> Iterator[None]:
        self._word = "HIBERNATING"
        yield
        self._word = None

    def close(self) -> None:
        if lost := getattr(self, "_lost", None):
            self._cluster.sandbox.start_node(lost)
            wait_until(
                lambda: all(node.state == "free" for node in self.backend.nodes()), lambda: str(self.backend.nodes())
            )


class Misheard:
    """A client that hears another word for the phase of a pod that runs."""

    def __init__(self, client: KubernetesClient, word: str) -> None:
        self._client = client
        self._word = word

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)

    def list(self, *question: Any) -> list[dict[str, Any]]:
        """Objects of a kind."""
        text = json.dumps(self._client.list(*question))
        return json.loads(re.sub(r'"phase": "Running"', f'"phase": "{self._word}"', text))


class Deaf:
    """A client that hears no answer when it makes an object."""

    def __init__(self, client: KubernetesClient) -> None:
        self._client = client

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)

    def create(self, *question: Any) -> dict[str, Any]:
        """Make an object."""
        self._client.create(*question)
        raise UnreachableError("the API server does not answer: timed out")


@final
class KubernetesBed(Bed):
    """A real API server with four nodes behind it, whose pods are processes."""

    word = "kubernetes"
    causes_of_a_lost_node: ClassVar = {"node_lost", "unknown"}  # once Kubernetes has forgotten the pods of that turn
    resources: ClassVar = {"accelerators": "h100:8"}

    def __init__(self, folder: Path, cluster: KubernetesCluster) -> None:
        super().__init__(folder)
        self._cluster = cluster
        self._word: str | None = None
        self._is_deaf = False

    @property
    def backend(self) -> KubernetesBackend:
        backend = self._cluster.backend()
        if self._word is not None:
            backend._client = Misheard(self._cluster.client, self._word)
        if self._is_deaf:
            backend._client = Deaf(self._cluster.client)
        return backend

    @contextmanager
    def lost_answers(self) -> Iterator[None]:
        self._is_deaf = True
        yield
        self._is_deaf = False

    @contextmanager
    def strange_word(self) -> Iterator[None]:
        self._word = "HIBERNATING"
        yield
        self._word = None

    def lose_a_node(self, job: Job) -> None:
        self._cluster.lose(job.row.placement[1].node)

    def silence(self) -> None:
        self._cluster.stop_server()
        self.backend._client._patience_s = 1.0

    def answer(self) -> None:
        self._cluster.start_server()

    def entering(self, job: Job, command: Sequence[str], *, node: int) -> list[str]:
        pytest.skip("NOT TESTED: `kubectl exec`: this API server has no kubelet behind it")

    def record(self, job: Job) -> RunDir:
        return RunDir(self._cluster.volume / str(job.row.handle))

    def marks(self, job: Job) -> dict[str, str]:
        return {"TRAINWORKS_RUN_DIR": f"/runs/{job.row.handle}"}

    def kill_the_supervisor(self, job: Job) -> None:
        name = job.row.handle
        first = {"TRAINWORKS_PODS": f"{name}-node-0-%d.{name}", "JOB_COMPLETION_INDEX": "0"}
        for one in process.processes_with(first):
            with suppress(psutil.Error):
                if "trainworks.backends.kubernetes.node" in one.cmdline():
                    one.kill()

    def close(self) -> None:
        self._cluster.forget_all()


def wait_until(condition: Callable[[], Any], tell: Callable[[], str] = str) -> None:
    """Poll; the message says what there is instead."""
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, tell()
        time.sleep(_LOOK_S)
