"""The API server of the tests, with pods that are processes."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, ClassVar

import psutil

from benchmarks.killed.queue import Queue, killed
from tests.kubernetes.cluster import CLAIM, IMAGE, KubernetesCluster, kubernetes_cluster
from tests.users import User
from trainworks.backends.kubernetes.client import NotFound
from trainworks.backends.kubernetes.facts import JOBSET_LABEL, labels_of
from trainworks.jobs.formats.manifest import RUNS
from trainworks.jobs.job_row import JobRow
from trainworks.record.run_dir import RunDir

_POD = "trainworks.backends.kubernetes.node"


class KubernetesQueue(Queue):
    """An API server on an etcd, and four nodes with room for two pods each, for three users.

    The API server and etcd are killed, and come back after some seconds; so does a node that is taken away.
    """

    patience_s, pause_s, most_kills_of_a_job = 3000.0, (0.1, 1.0), 6
    KILLS_BETWEEN = 10
    """Fewest kills of something else between two of the API server or of etcd, without which no job starts."""
    shares: ClassVar = {
        "rank": 4,
        "agent": 4,
        "supervisor": 4,
        "agent server": 2,
        "pod": 3,
        "evicted pod": 2,
        "node": 2,
        "API server": 1,
        "etcd": 1,
    }

    def __init__(self, folder: Path, chance: random.Random, cluster: KubernetesCluster) -> None:
        super().__init__(folder, chance, {"KUBECONFIG": str(cluster.kubeconfig)})
        self._cluster = cluster
        self._back_at: dict[str, float] = {}
        """Time at which a node, the API server or etcd is there again."""
        self._may_crash_at = self.KILLS_BETWEEN
        """Number of kills from which the API server or etcd may be the next one."""
        self._books.mkdir(parents=True)

    @property
    def _books(self) -> Path:
        return self._cluster.volume / "books"

    def keys(self, number: int) -> dict[str, Any]:
        """Half of a node, or of two for every fifth submission."""
        options = {"image": IMAGE, "volume": CLAIM}
        cluster = {"engine": "kubernetes", "processes_per_node": 1, "kubernetes": options}
        resources = {"accelerators": "h100:4", "cpus": 1}
        return {"resources": resources, "num_nodes": 2 if number % 5 == 4 else 1, "cluster": cluster}

    def common(self, name: str) -> Path:
        """On the volume: the rest of a pod's files goes with it."""
        return Path(RUNS) / self._books.name / name

    def book(self, user: User, name: str) -> Path:
        """On the volume, too."""
        return self.common(f"{user.uid}-{name}")

    def seen(self, file: Path) -> Path:
        """The file on the volume."""
        return self._cluster.volume / file.relative_to(RUNS)

    def record(self, job: JobRow) -> RunDir:
        """The run directory on the volume."""
        return RunDir(self._cluster.volume / str(job.handle))

    def may_refuse(self, exit_code: int, complaints: str) -> bool:
        """The API server does not answer."""
        return exit_code == 3 and "the job was not submitted" in complaints

    def kill_one(self) -> None:
        """Kill a process of a job, a pod, a node or a part of the control plane."""
        role = self._draw()
        if role in ("API server", "etcd"):
            if self.kills.total() >= self._may_crash_at:
                self._cluster.crash("server" if role == "API server" else role)
                self._charge(role, set())
                self._may_crash_at = self.kills.total() + self.KILLS_BETWEEN
                self._back_at[role] = time.monotonic() + self._chance.uniform(0.0, 6.0)
        elif role in ("pod", "evicted pod", "node"):
            if not self._back_at.keys() & {"API server", "etcd"}:
                self._kill_pods(role)
        else:
            runs = {str(job.handle): job.run_dir for job in self._live()}
            found = [(one, runs[handle]) for one, handle in _processes(role) if handle in runs]
            for one, run_dir in self._chance.sample(found, min(1, len(found))):
                if killed(one.pid):
                    self._charge(role, {run_dir})

    def mend(self, *, all_of_it: bool = False) -> None:
        """Start what was killed again, once its time has come, and let a user look at the queue."""
        for name in [name for name, at in self._back_at.items() if all_of_it or at <= time.monotonic()]:
            if name == "etcd":
                self._cluster.start_etcd()
            elif name == "API server":
                self._cluster.start_server()
            elif self._back_at.keys() & {"API server", "etcd"}:
                continue
            else:
                self._cluster.return_node(name)
            del self._back_at[name]
        self._look()

    def _kill_pods(self, role: str) -> None:
        """Delete a pod at once or with its grace, or take away a node with all pods there."""
        client, path = self._cluster.client, self._cluster.path
        runs = {str(job.handle): job.run_dir for job in self._live()}
        pods = [pod for pod in client.list(path("pods")) if (pod.get("status") or {}).get("phase") == "Running"]
        for pod in self._chance.sample(pods, min(1, len(pods))):
            node = pod["spec"]["nodeName"]
            hit = [one for one in pods if one["spec"]["nodeName"] == node] if role == "node" else [pod]
            handles = {labels_of(one)[JOBSET_LABEL] for one in hit}
            if not handles <= runs.keys() or node in self._back_at:
                return
            if role == "node":
                self._cluster.lose(node)
                self._back_at[node] = time.monotonic() + self._chance.uniform(1.0, 8.0)
            else:
                grace = {"gracePeriodSeconds": 0} if role == "pod" else None
                with suppress(NotFound):
                    client.delete(path("pods", pod["metadata"]["name"]), grace)
            self._charge(role, {runs[handle] for handle in handles})


def _processes(role: str) -> Iterator[tuple[psutil.Process, str]]:
    """Processes of that role of all jobs, and the names of their JobSets."""
    for one in psutil.process_iter():
        with suppress(psutil.Error):
            env, words = one.environ(), one.cmdline()
            run_dir = env.get("TRAINWORKS_RUN_DIR", "")
            match role:
                case "rank":
                    plays = env.get("RANK") == "0"
                case "agent":  # in the first pod a copy of the supervisor
                    parent = one.parent()
                    is_copy = _POD in words and parent is not None and parent.cmdline() == words
                    plays = is_copy or "trainworks.agent.command_agent" in words
                case _:  # the parent of the first process: it passes on how that ends, but not by SIGKILL
                    plays = (
                        one.name() == "unshare"
                        and _POD in words
                        and (env.get("JOB_COMPLETION_INDEX") == "0") == (role == "supervisor")
                    )
                    run_dir = words[words.index(_POD) + 1] if plays else ""
            if plays and run_dir.startswith(f"{RUNS}/"):
                yield one, Path(run_dir).name


@contextmanager
def kubernetes_queue(folder: Path, chance: random.Random) -> Iterator[KubernetesQueue]:
    """A new cluster for three users."""
    with kubernetes_cluster() as cluster:
        cluster.folder.chmod(0o755)  # users read the kubeconfig and the certificate
        queue = KubernetesQueue(folder, chance, cluster)
        try:
            yield queue
        finally:
            queue.mend(all_of_it=True)
            queue.end_looks()
