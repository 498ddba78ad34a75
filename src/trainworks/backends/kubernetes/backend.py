"""Backend for Kubernetes clusters with JobSet, and Kueue for queues."""

from __future__ import annotations

import copy
import os
import socket
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import ClassVar, Self, final

import yaml

from trainworks.agent.remote_agent import RemoteHosts
from trainworks.backends.backend import AllocatedNodes, Backend, Capability, JobStatus, NodeStatus, RenderedJob
from trainworks.backends.job_tag import mark_of
from trainworks.backends.kubernetes import render
from trainworks.backends.kubernetes.client import (
    Conflict,
    KubernetesClient,
    KubernetesRefusedError,
    NotFound,
    NotServed,
    Object,
)
from trainworks.backends.kubernetes.facts import DRAINED, JOBSET_LABEL, annotations_of, labels_of, node_facts
from trainworks.backends.kubernetes.kueue_api import TEAM_QUEUE, enter_team_queue, kueue_path, workloads_by_owner
from trainworks.backends.kubernetes.output import (
    LogStream,
    kubectl_exec,
    kubectl_port_forward,
    log_lines,
    pod_index,
    pod_order,
    read_by_pod,
)
from trainworks.backends.kubernetes.pod import SECRETS, check_volume, pod_of, secret, secret_content, wait_for_pods
from trainworks.backends.kubernetes.states import has_ended, has_failed, is_unexplained, job_status, warning_about
from trainworks.backends.record_parts import question, write_answer
from trainworks.config.autoscale import Autoscale
from trainworks.config.engines import Kubernetes
from trainworks.config.run_file import Cluster
from trainworks.errors import EnvironmentProblem, TrainworksError, UnansweredError, UnreachableError, UsageError
from trainworks.host.clock import Clock, SystemClock
from trainworks.jobs.formats.manifest import QUEUE_LABEL, RUNS
from trainworks.jobs.job_spec import JobSpec
from trainworks.jobs.program import Program
from trainworks.jobs.store import JobStore
from trainworks.record.run_dir import RunDir

_OURS = {"labelSelector": "app.kubernetes.io/managed-by=trainworks"}
_KEPT_PODS, _KEPT_LINES = 64, 1000
"""Pods whose last lines are kept with the run, and how many of each."""
_DELETED_AFTER_S = 120.0
_MOST_BYTES = 16 * 2**20
"""Content that one pod reads; packed it is below the 10 MiB after which a node starts a new file for a pod's log."""


@final
class KubernetesBackend(Backend):
    """Runs jobs as JobSets through the API server, with pods for each role; Kueue reacts to the same objects.

    `env` gives values to variables that have none in the run file; by default it is the environment of this process.
    `machine` is the host with the run directories; this one when None.
    """

    name: ClassVar[str] = "kubernetes"
    gives_other_accelerators: ClassVar[bool] = True
    unsupported: ClassVar[frozenset[Capability]] = frozenset({"depends_on", "edit", "min_nodes", "drain.accelerator"})
    without_accelerator: ClassVar[str] = "NVIDIA's device plugin withholds a GPU by itself after its XID"
    shares_files: ClassVar[bool] = False

    def __init__(
        self,
        options: Kubernetes,
        *,
        client: KubernetesClient | None = None,
        clock: Clock | None = None,
        env: Mapping[str, str] | None = None,
        machine: str | None = None,
        autoscale: Autoscale | None = None,
    ) -> None:
        self._options = options
        self._autoscale = autoscale
        self._client = client or KubernetesClient(options.context)
        self._clock = clock or SystemClock()
        self._env = os.environ if env is None else env
        self._machine = socket.gethostname() if machine is None else machine

    @classmethod
    def connect(cls, cluster: Cluster, *, store: JobStore | None = None, program: Program | None = None) -> Self:
        """Create the backend of a run file's `cluster`."""
        return cls(cluster.kubernetes, autoscale=cluster.autoscale)

    @classmethod
    def allocated_nodes(cls) -> AllocatedNodes:
        """Pods of the job whose first pod runs this process."""
        pod = pod_of(os.environ, Path(SECRETS))
        hosts = RemoteHosts(wait_for_pods(pod, SystemClock()), Path(SECRETS)) if pod.num_nodes > 1 else None
        return AllocatedNodes(pod.num_nodes, pod.cores, pod.accelerators, hosts)

    @classmethod
    def check_trains(cls, cluster: Cluster) -> None:
        """Refuse pods without an image, or without a volume for checkpoints."""
        render.check_image(cluster.kubernetes)
        check_volume(cluster.kubernetes)

    @classmethod
    def is_here(cls) -> bool:
        """Whether this user has a configuration of `kubectl`."""
        return Path(os.environ.get("KUBECONFIG", "~/.kube/config")).expanduser().is_file()

    def hurried(self) -> Self:
        """This backend, with a client that waits for each answer only for the time of a list."""
        hurried = copy.copy(self)
        hurried._client = self._client.within(self.patience_s)
        return hurried

    def check(self, spec: JobSpec) -> None:
        """Refuse what a JobSet cannot express."""
        super().check(spec)
        render.check(spec, self._options, self._autoscale)

    def render(self, spec: JobSpec, run_dir: RunDir) -> RenderedJob:
        """Render the manifest of the JobSet; `submit` adds the Secret with the resolved run."""
        folder = RunDir(run_dir.path.absolute())
        return RenderedJob(spec, render.render(spec, self._options, folder, self._machine, self._autoscale))

    def submit(self, rendered: RenderedJob, run_dir: RunDir) -> str:
        """Create the JobSet, and the Secret that its pods wait for, unless this run already has them.

        Raises:
            KubernetesRefusedError: the API server refuses the job, with its own message.
            UsageError: a variable has no value, the run needs a volume, its code is too large for the Secret, or its
                team has no queue in Kueue.
            UnansweredError: the server did not answer the request; if it created the job, another `submit` finds it.
            UnreachableError: the server does not answer, and did not create the job.
        """
        manifest = yaml.safe_load(rendered.text)
        content = secret_content(run_dir, self._env, self._options)
        if self._options.run_as_user is None and self._requires_user():
            render.run_as(manifest, render.DEFAULT_USER)
        name = str(manifest["metadata"]["name"])
        existing = self._existing(name, mark_of(RunDir(run_dir.path.absolute()), self._machine))
        try:
            if existing is None:
                enter_team_queue(manifest, rendered.spec.team, self._options, self._client)
            created = existing or self._client.create(self._jobsets(), manifest)
            # a new JobSet whose Secret is refused is deleted
            try:
                self._create_secret(created, content)
            except UnreachableError:
                raise
            except TrainworksError:
                if existing is None:
                    with suppress(NotFound, EnvironmentProblem):  # its dependents go first: nothing is orphaned
                        self._client.delete(self._jobsets(name), {"propagationPolicy": "Foreground"})
                raise
        except Conflict:  # another process was faster
            return self.submit(rendered, run_dir)
        except UnreachableError as error:
            raise UnansweredError(error.message, hint=error.hint) from None
        return name

    def _requires_user(self) -> bool:
        """Whether the namespace refuses pods of root; False if its labels are not readable."""
        try:
            namespace = self._client.get(f"/api/v1/namespaces/{self._options.namespace}")
        except (KubernetesRefusedError, NotServed):
            return False
        return labels_of(namespace).get(render.POD_SECURITY_LABEL) == "restricted"

    def _jobsets(self, name: str = "") -> str:
        return f"/apis/jobset.x-k8s.io/v1alpha2/namespaces/{self._options.namespace}/jobsets/{name}".rstrip("/")

    def _core(self, kind: str, name: str = "") -> str:
        return f"/api/v1/namespaces/{self._options.namespace}/{kind}/{name}".rstrip("/")

    @cached_property
    def _kueue(self) -> str:
        return kueue_path(self._client, self._options.namespace)

    def _existing(self, name: str, tag: str) -> Object | None:
        """The JobSet of this run, unless it is being deleted; raises if the name belongs to another one."""
        jobset = self._find(name)
        if jobset is None:
            return None
        if (owner := annotations_of(jobset).get(render.RUN_TAG)) != tag:
            whose = f"of run {owner}" if owner else "of another owner"
            raise UsageError(f"a JobSet `{name}` {whose} already exists", hint=f"kubectl delete jobset {name}")
        if "deletionTimestamp" not in jobset["metadata"]:
            return jobset
        self._wait_until_deleted(name)
        return None

    def _create_secret(self, owner: Object, content: Mapping[str, bytes]) -> None:
        """Create a Secret that is deleted with its JobSet; replace one left by an earlier JobSet of the same name."""
        metadata, body = owner["metadata"], secret(owner, content)
        path = self._core("secrets")
        try:
            self._client.create(path, body)
        except Conflict:
            with suppress(NotFound):  # the garbage collector may be faster
                existing = self._client.get(self._core("secrets", metadata["name"]))
                if any(one.get("uid") == metadata["uid"] for one in existing["metadata"].get("ownerReferences") or []):
                    return
                self._client.delete(self._core("secrets", metadata["name"]))
            self._client.create(path, body)

    def retry(self, rendered: RenderedJob, run_dir: RunDir, handle: str) -> str:
        """Replace the JobSet by a new one of the same name, unless it has not ended.

        Raises: as `submit`.
        """
        seen = self.poll([handle]).get(handle)
        if seen is not None and not seen.state.is_final:
            return handle
        if seen is not None:
            self._client.delete(self._jobsets(handle), {"propagationPolicy": "Foreground"})
            self._wait_until_deleted(handle)
        return self.submit(rendered, run_dir)

    def _wait_until_deleted(self, name: str) -> None:
        deadline = self._clock.now() + _DELETED_AFTER_S
        while True:
            try:
                self._client.get(self._jobsets(name))
            except NotFound:
                return
            if self._clock.now() > deadline:
                hint = f"kubectl get pods -l {JOBSET_LABEL}={name}"
                raise EnvironmentProblem(
                    f"cannot replace JobSet `{name}`: some of its pods are still being deleted", hint=hint
                )
            self._clock.sleep(0.2)

    def poll(self, handles: Sequence[str]) -> dict[str, JobStatus]:
        """Status of several jobs, from one query per kind of object."""
        if not handles:
            return {}
        jobsets = {one["metadata"]["name"]: one for one in self._client.list(self._jobsets(), _OURS)}
        jobsets = {name: jobset for name, jobset in jobsets.items() if name in set(handles)}
        pods: defaultdict[str, list[Object]] = defaultdict(list)
        for pod in self._client.list(self._core("pods"), _OURS) if jobsets else ():
            pods[labels_of(pod).get(JOBSET_LABEL, "")].append(pod)
        workloads = self._workloads_by_uid() if any(QUEUE_LABEL in labels_of(one) for one in jobsets.values()) else {}
        jobs: dict[str, Object] = {}
        if any(map(has_failed, jobsets.values())):  # the conditions of a Job tell why it failed
            path = f"/apis/batch/v1/namespaces/{self._options.namespace}/jobs"
            found = self._client.list(path, {"labelSelector": JOBSET_LABEL})
            jobs = {labels_of(job)[JOBSET_LABEL]: job for job in found if has_failed(job)}
        statuses = {
            name: job_status(one, workload=workloads.get(one["metadata"]["uid"]), pods=pods[name], job=jobs.get(name))
            for name, one in jobsets.items()
        }
        return self._with_warnings(statuses, jobsets)

    def _workloads_by_uid(self) -> dict[str, Object]:
        """Workloads of Kueue by the UID of their JobSet; empty without Kueue."""
        try:
            return workloads_by_owner(self._client, self._kueue)
        except NotServed:
            return {}

    def _with_warnings(self, statuses: dict[str, JobStatus], jobsets: Mapping[str, Object]) -> dict[str, JobStatus]:
        """Statuses in which jobs that wait for pods have the last warning as their reason."""
        if not any(map(is_unexplained, statuses.values())):
            return statuses
        events = self._client.list(self._core("events"))
        return {
            name: warning_about(jobsets[name], seen, events) if is_unexplained(seen) else seen
            for name, seen in statuses.items()
        }

    def find(self, run_dir: RunDir) -> str | None:
        """Find the JobSet by its name and by the run tag in its annotations."""
        folder, name = RunDir(run_dir.path.absolute()), self._name_of(run_dir)
        found = self._find(name)
        is_ours = found is not None and annotations_of(found).get(render.RUN_TAG) == mark_of(folder, self._machine)
        return name if found is not None and is_ours and not has_ended(found) else None

    def _name_of(self, run_dir: RunDir) -> str:
        """Name of a run's JobSet."""
        roles = run_dir.read_resolved().run_file.roles
        return render.name_of(RunDir(run_dir.path.absolute()), self._machine, roles)

    def _find(self, handle: str) -> Object | None:
        try:
            return self._client.get(self._jobsets(handle))
        except NotFound:
            return None

    def stop(self, handle: str, *, at_once: bool = False) -> None:
        """Suspend the JobSet for good: its pods get their grace, and it keeps the status of the job."""
        found = self._find(handle)
        if found is None or has_ended(found):
            return
        self._set_active(found, active=False)
        change = {"metadata": {"annotations": {render.STOPPED: "true"}}, "spec": {"suspend": True}}
        self._client.patch(self._jobsets(handle), change)
        if at_once:
            self._client.delete(
                self._core("pods"), {"gracePeriodSeconds": 0}, {"labelSelector": f"{JOBSET_LABEL}={handle}"}
            )

    def _set_active(self, jobset: Object, *, active: bool) -> bool:
        """Activate or deactivate the Workload, so that Kueue follows; False if Kueue does not know the job."""
        if QUEUE_LABEL not in labels_of(jobset):
            return False
        workload = self._workloads_by_uid().get(jobset["metadata"]["uid"])
        if workload is None:
            return False
        self._client.patch(f"{self._kueue}/workloads/{workload['metadata']['name']}", {"spec": {"active": active}})
        return True

    def hold(self, handle: str) -> None:
        """Keep a waiting job from starting.

        Raises:
            KubernetesRefusedError: the job does not wait.
        """
        seen = self.poll([handle]).get(handle)
        if seen is None or not seen.state.waits:
            raise KubernetesRefusedError(
                f"cannot hold `{handle}`: it is {seen.state if seen else 'unknown'}, not waiting"
            )
        found = self._client.get(self._jobsets(handle))
        known = self._set_active(found, active=False)
        labels = {} if known or QUEUE_LABEL not in labels_of(found) else {"labels": {QUEUE_LABEL: None}}
        metadata = {"annotations": {render.HELD: "true"}, **labels}
        self._client.patch(self._jobsets(handle), {"metadata": metadata, "spec": {"suspend": True}})

    def release(self, handle: str) -> None:
        """Let a held job start or wait in its queue."""
        found = self._client.get(self._jobsets(handle))
        if render.HELD not in annotations_of(found):
            return
        queue = self._options.queue or annotations_of(found).get(TEAM_QUEUE)
        metadata = {"annotations": {render.HELD: None}, **({"labels": {QUEUE_LABEL: queue}} if queue else {})}
        spec = {} if queue else {"spec": {"suspend": False}}
        self._client.patch(self._jobsets(handle), {"metadata": metadata, **spec})
        self._set_active(found, active=True)

    def enter(
        self, run_dir: RunDir, handle: str, command: Sequence[str], *, node: int = 0, terminal: bool = False
    ) -> list[str]:
        """`kubectl exec` in the pod of the node."""
        return kubectl_exec(self._options, self._pods(handle), handle, command, node=node, terminal=terminal)

    def forward(self, run_dir: RunDir, handle: str, port: int, local_port: int, *, node: int = 0) -> list[str]:
        """`kubectl port-forward` to the pod of the node."""
        return kubectl_port_forward(self._options, self._pods(handle), f"{local_port}:{port}", node=node)

    def _pods(self, handle: str) -> Sequence[Object]:
        return self._client.list(self._core("pods"), {"labelSelector": f"{JOBSET_LABEL}={handle}"})

    def output(self, handle: str, *, node: int | None = None, follow: bool = False) -> Iterator[str]:
        """Output of the job's current pods; Kubernetes keeps that of the last allocation."""

        def pods() -> list[Object]:
            return sorted((pod for pod in self._pods(handle) if node in (None, pod_index(pod))), key=pod_order)

        def has_ended() -> bool:
            seen = self.poll([handle]).get(handle)
            return seen is None or seen.state.is_final

        if follow:
            return iter(LogStream(self._client, pods, has_ended))
        return (line for pod in pods() for line in log_lines(self._client, pod, follow=False))

    def fetch(self, run_dirs: Sequence[RunDir]) -> bool:
        """Read each record on the volume by a pod, in seconds; the state and the logs come from the API server."""
        options = self._options
        if options.run_as_user is None and self._requires_user():
            options = options.model_copy(update={"run_as_user": render.DEFAULT_USER})
        for run_dir in run_dirs if options.volume is not None else ():
            name, roles = self._name_of(run_dir), run_dir.read_resolved().run_file.roles.values()
            image = options.image or next(filter(None, (role.image for role in roles)), None)
            there, is_whole = {f"{RUNS}/{name}": run_dir}, False
            while not is_whole:
                asked = question(there, _MOST_BYTES, without=("status.json", "logs"))
                reader = render.reader(options.model_copy(update={"image": image}), name, asked)
                is_whole = write_answer(there, read_by_pod(self._client, self._jobsets(), reader, self._clock))
        return True

    def last_output(self, handle: str) -> Iterator[str]:
        """Last lines of the first pods."""
        for pod in sorted(self._pods(handle), key=pod_order)[:_KEPT_PODS]:
            yield from log_lines(self._client, pod, follow=False, last=_KEPT_LINES)

    def nodes(self) -> list[NodeStatus]:
        """All nodes, with the load of all pods, or of this namespace's pods if others are not visible."""
        nodes = self._client.list("/api/v1/nodes")
        try:
            pods = self._client.list("/api/v1/pods")
        except KubernetesRefusedError:
            pods = self._client.list(self._core("pods"))
        return sorted((node_facts(node, pods) for node in nodes), key=lambda facts: facts.name)

    def drain(self, node: str, reason: str) -> None:
        """Cordon the node, and annotate it with the reason."""
        text = " ".join(reason.split()) or "drained by trainworks"
        change = {"metadata": {"annotations": {DRAINED: text}}, "spec": {"unschedulable": True}}
        self._client.patch(f"/api/v1/nodes/{node}", change)

    def undrain(self, node: str) -> None:
        """Uncordon the node."""
        change = {"metadata": {"annotations": {DRAINED: None}}, "spec": {"unschedulable": False}}
        self._client.patch(f"/api/v1/nodes/{node}", change)
