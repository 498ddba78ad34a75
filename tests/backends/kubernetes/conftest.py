"""A Kubernetes of four nodes, started once, for the tests that are marked `kubernetes`."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.fakes import resolved_command
from tests.kubernetes.cluster import TIMEOUT_S, KubernetesCluster, wait_until
from tests.kubernetes.pods_as_processes import condition
from trainworks.api.launching.prepared_run import NODE_CHECK
from trainworks.backends.backend import JobStatus, RenderedJob
from trainworks.config.run_file import RunFile
from trainworks.jobs.spec_of_run import spec_of
from trainworks.plan.run.processes import choose_role_processes, requested_host
from trainworks.record.events.log import Event, read_events
from trainworks.record.processes import Processes
from trainworks.record.resolved import ResolvedRun
from trainworks.record.run_dir import RunDir
from trainworks.record.runs_folder import create_run_dir

INJECTED = Path(__file__).parents[2] / "faults" / "inject"


class Run:
    """One run under Kubernetes.

    Args:
        cluster: where it runs.
        run_dir: where it is submitted.
        resolved: what it is.
        options: of the backend, beside those of the run file.
    """

    def __init__(self, cluster: KubernetesCluster, run_dir: RunDir, resolved: ResolvedRun, **options: Any) -> None:
        run_dir.write_resolved(resolved)
        self.cluster = cluster
        self.here = run_dir
        self.backend = cluster.backend(**options)
        run_file, processes = resolved.run_file, resolved.processes if resolved.plan else None
        self.spec = spec_of(
            run_file,
            run_id=run_dir.run_id,
            working_folder="/",
            processes=processes,
        )
        self.handle = ""

    @property
    def rendered(self) -> RenderedJob:
        """What is submitted."""
        return self.backend.render(self.spec, self.here)

    def submit(self) -> Run:
        """Submit it."""
        self.backend.check(self.spec)
        self.handle = self.backend.submit(self.rendered, self.here)
        return self

    def start(self, timeout_s: float = TIMEOUT_S) -> Run:
        """Submit it, and wait until all its ranks run."""
        self.submit()
        wait_until(lambda: self.there.read_status().state == "RUNNING", timeout_s)
        return self

    @property
    def there(self) -> RunDir:
        """Its run directory on the volume."""
        return RunDir(self.cluster.volume / self.handle)

    @property
    def status(self) -> JobStatus:
        """As Kubernetes has it."""
        return self.backend.poll([self.handle])[self.handle]

    def reaches(self, state: str, timeout_s: float = TIMEOUT_S) -> JobStatus:
        """Wait for a state."""
        wait_until(lambda: self.status.state == state or self.status.state.is_final, timeout_s)
        seen = self.status
        assert seen.state == state, f"{seen}\n{self.log()}"
        return seen

    def tell(self) -> None:
        """Let a command go on that waits for the file `told` in its run directory."""
        (self.there.path / "told").touch()

    def log(self) -> str:
        """What its pods have written."""
        return "\n".join(self.backend.output(self.handle))

    def events(self, kind: str) -> list[Event]:
        """Of one kind."""
        return [event for event in read_events(self.there.events_file) if event["kind"] == kind]

    def pods(self) -> list[dict[str, Any]]:
        """Those that there are now."""
        selector = {"labelSelector": f"jobset.sigs.k8s.io/jobset-name={self.handle}"}
        return self.cluster.client.list(self.cluster.path("pods"), selector)

    def evict_pod(self, index: int) -> None:
        """As the scheduler does that needs the place for a pod of a higher priority."""
        pod = next(pod for pod in self.pods() if f"-node-0-{index}-" in pod["metadata"]["name"])
        path = self.cluster.path("pods", pod["metadata"]["name"])
        found = [condition("DisruptionTarget", True, "PreemptionByScheduler")]
        self.cluster.client.patch(f"{path}/status", {"status": {"conditions": found}})
        self.cluster.client.delete(path)

    def delete_pod(self, index: int, grace_s: int = 0, *, role: str = "node") -> None:
        """As `kubectl delete pod` does; at once, as if its machine had lost its power."""
        pod = next(pod for pod in self.pods() if f"-{role}-0-{index}-" in pod["metadata"]["name"])
        path = self.cluster.path("pods", pod["metadata"]["name"])
        self.cluster.client.delete(path, {"gracePeriodSeconds": grace_s})


class Hold:
    """Ranks in pods that wait after a step, until they are let go: what happens meanwhile never comes too late.

    Args:
        volume: content of the claim.
        step: after which every attempt waits.
    """

    def __init__(self, volume: Path, step: int) -> None:
        self._folder, self._step = volume / f"hold-{secrets.token_hex(4)}", step
        self._folder.mkdir(parents=True)  # the first pod with the claim may not have made it
        (self._folder / f"hold-{step}").touch()

    @property
    def patch(self) -> dict[str, Any]:
        """`cluster.kubernetes.patch` of the job: `tests/faults/inject` sees the folder as its pods do."""
        env = {"PYTHONPATH": str(INJECTED), "TRAINWORKS_TEST_FAULT": "held"}
        env["TRAINWORKS_TEST_HOLD"] = f"/runs/{self._folder.name}"
        values = [{"name": name, "value": value} for name, value in env.items()]
        return {"spec": {"containers": [{"name": "node", "env": values}]}}

    def is_reached(self) -> bool:
        """Whether a rank waits."""
        return (self._folder / f"held-{self._step}").exists()

    def release(self) -> None:
        """Let all ranks go on."""
        (self._folder / f"hold-{self._step}").unlink()


class Kube:
    """The cluster, and runs on it."""

    def __init__(self, cluster: KubernetesCluster, folder: Path) -> None:
        self.cluster = cluster
        self._folder = folder

    def command(
        self, run: str, *, nodes: int = 2, restarts: int = 0, envs: dict[str, str | None] | None = None,
        accelerators: int = 8, setup: str | None = None, job: dict[str, Any] | None = None, **options: Any,
    ) -> Run:  # fmt: skip
        """A run of a command, with one rank per node; not submitted yet."""
        run_file = RunFile.model_validate(
            {
                "name": "t",
                "run": run,
                "setup": setup,
                "num_nodes": nodes,
                "envs": envs or {},
                "resources": {"accelerators": f"h100:{accelerators}", "cpus": 2},
                "job": {"grace": "8 s"} | (job or {}),
                "recover": {"max_restarts": restarts},
                "cluster": {"engine": "kubernetes", "processes_per_node": 1},
            }
        )
        processes = Processes(nodes=nodes, processes_per_node=1, threads_per_process=1, device="cpu")
        return self._run(run_file, processes, options)

    def roles(self, roles: dict[str, Any], *, restarts: int = 0, job: dict[str, Any] | None = None, **options: Any):
        """A job with roles; not submitted yet."""
        run_file = RunFile.model_validate(
            {
                "name": "t",
                "roles": roles,
                "job": {"grace": "8 s"} | (job or {}),
                "recover": {"max_restarts": restarts},
                "cluster": {"engine": "kubernetes"},
            }
        )
        return self._run(run_file, choose_role_processes(run_file, requested_host(run_file)), options)

    def _run(self, run_file: RunFile, processes: Processes, options: dict[str, Any]) -> Run:
        run_dir = create_run_dir(self._folder / "runs", "t")
        check = (NODE_CHECK,) if run_file.job.health else ()
        resolved = resolved_command(run_dir.run_id, run_file=run_file, processes=processes, node_check=check)
        return Run(self.cluster, run_dir, resolved, **options)


@pytest.fixture
def kube(_kubernetes: KubernetesCluster, tmp_path: Path) -> Iterator[Kube]:
    """Four idle nodes of eight accelerators."""
    yield Kube(_kubernetes, tmp_path)
    _kubernetes.forget_all()
