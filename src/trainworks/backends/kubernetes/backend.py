"""A cluster under Kubernetes."""

from __future__ import annotations

import json
import os
import secrets
import socket
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, Self, final

import yaml

from trainworks.agent.remote_agent import TOKEN_FILE
from trainworks.backends.backend import Backend, Capability, JobStatus, NodeStatus, RenderedJob
from trainworks.backends.job_tag import mark_of
from trainworks.backends.kubernetes.client import Conflict, KubernetesClient, NotFound, NotServed, Refused
from trainworks.backends.kubernetes.facts import DRAINED, JOBSET_LABEL, node_facts
from trainworks.backends.kubernetes.output import Followed, log_lines, pod_index
from trainworks.backends.kubernetes.pod import ENVS, RESOLVED
from trainworks.backends.kubernetes.render import (
    DEFAULT_USER,
    HELD,
    POD_SECURITY_LABEL,
    QUEUE_LABEL,
    RUN_TAG,
    STOPPED,
    check,
    name_of,
    render,
    run_as,
)
from trainworks.backends.kubernetes.states import has_ended, has_failed, is_unexplained, job_status, warning_about
from trainworks.config.autoscale import Autoscale
from trainworks.config.engines import Kubernetes
from trainworks.config.run_file import Cluster
from trainworks.errors import EnvironmentProblem, TrainworksError, UnansweredError, UnreachableError, UsageError
from trainworks.host.clock import Clock, SystemClock
from trainworks.jobs.job_spec import JobSpec
from trainworks.jobs.program import Program
from trainworks.jobs.store import JobStore
from trainworks.record.run_dir import RunDir

__all__ = ["KubernetesBackend"]

_OURS = {"labelSelector": "app.kubernetes.io/managed-by=trainworks"}
_JOB_UID = "kueue.x-k8s.io/job-uid"
_LARGEST_SECRET_BYTES = 1 << 20
_DELETED_AFTER_S = 120.0

Object = Mapping[str, Any]


@final
class KubernetesBackend(Backend):
    """Talks to an API server about JobSets, and to Kueue by what it reads and writes there.

    Args:
        options: what the run file says about Kubernetes.
        client: asks the API server.
        clock: waits for a job to be deleted.
        env: where variables of a run file come from that have no value there; this process's own when None.
        machine: name of the one that has the run directories; this one when None.
        autoscale: how nodes come and go, where they do.
    """

    name: ClassVar[str] = "kubernetes"
    unsupported: ClassVar[frozenset[Capability]] = frozenset({"depends_on", "min_nodes"})
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

    def check(self, spec: JobSpec) -> None:
        """Refuse what Kubernetes cannot be told."""
        super().check(spec)
        check(spec, self._options, self._autoscale)

    def render(self, spec: JobSpec, run_dir: RunDir) -> RenderedJob:
        """The manifest of the JobSet; what the run holds is added when it is submitted."""
        folder = RunDir(run_dir.path.absolute())
        return RenderedJob(spec, render(spec, self._options, folder, self._machine, self._autoscale))

    def submit(self, rendered: RenderedJob, run_dir: RunDir) -> str:
        """Make the JobSet, and the Secret that its pods wait for, unless this run has them already.

        Raises:
            Refused: by the API server, in its words.
            UsageError: a variable has no value anywhere, or the run needs a volume.
            UnansweredError: no answer to what was sent; if the server has the job, another `submit` finds it.
            UnreachableError: the server does not answer, and has not got the job.
        """
        manifest, secret = yaml.safe_load(rendered.text), self._secret(run_dir)
        if self._options.run_as_user is None and self._wants_a_user():
            run_as(manifest, DEFAULT_USER)
        name = str(manifest["metadata"]["name"])
        there = self._same(name, mark_of(RunDir(run_dir.path.absolute()), self._machine))
        try:
            made = there or self._client.create(self._jobsets(), manifest)
            self._make_secret_or_delete(made, secret, is_new=there is None)
        except Conflict:  # somebody was faster
            return self.submit(rendered, run_dir)
        except UnreachableError as silent:
            raise UnansweredError(silent.message, hint=silent.hint) from None
        return name

    def _make_secret_or_delete(self, jobset: Object, secret: Mapping[str, str], *, is_new: bool) -> None:
        """The Secret of a JobSet; a new JobSet that may not have one is deleted."""
        try:
            self._make_secret(jobset, secret)
        except UnreachableError:
            raise
        except TrainworksError:
            if is_new:
                self._delete(jobset["metadata"]["name"])
            raise

    def _wants_a_user(self) -> bool:
        """Whether the namespace refuses pods of root; False where its labels may not be read."""
        try:
            namespace = self._client.get(f"/api/v1/namespaces/{self._options.namespace}")
        except (Refused, NotServed):
            return False
        return _labels(namespace).get(POD_SECURITY_LABEL) == "restricted"

    def _jobsets(self, name: str = "") -> str:
        return f"/apis/jobset.x-k8s.io/v1alpha2/namespaces/{self._options.namespace}/jobsets/{name}".rstrip("/")

    def _core(self, kind: str, name: str = "") -> str:
        return f"/api/v1/namespaces/{self._options.namespace}/{kind}/{name}".rstrip("/")

    def _workloads(self, name: str = "") -> str:
        return f"/apis/kueue.x-k8s.io/v1beta1/namespaces/{self._options.namespace}/workloads/{name}".rstrip("/")

    def _secret(self, run_dir: RunDir) -> dict[str, str]:
        """What every pod is told beside its manifest."""
        resolved = run_dir.read_resolved()
        if resolved.run_file.workload is not None and self._options.volume is None:
            hint = "set `cluster.kubernetes.volume` to a PersistentVolumeClaim"
            raise UsageError("checkpoints need a place that outlives a pod", hint=hint)
        wanted = [name for name, value in resolved.run_file.envs.items() if value is None]
        if missing := [name for name in wanted if name not in self._env]:
            raise UsageError(f"`envs.{missing[0]}` has no value", hint=f"export {missing[0]}=..., and submit again")
        text = run_dir.resolved_file.read_text(encoding="utf-8")
        if len(text.encode()) > _LARGEST_SECRET_BYTES:
            raise UsageError(f"the run file is too long: {len(text)} characters, and Kubernetes keeps 1 MiB")
        envs = {name: self._env[name] for name in wanted}
        return {RESOLVED: text, ENVS: json.dumps(envs), TOKEN_FILE: secrets.token_hex(32)}

    def _same(self, name: str, mark: str) -> Object | None:
        """The JobSet of that name, which has to be this run's; None if there is none any more."""
        found = self._find(name)
        if found is None:
            return None
        if (owner := _annotations(found).get(RUN_TAG)) != mark:
            whose = f"run {owner}" if owner else "somebody else"
            raise UsageError(f"there is a JobSet `{name}` already, of {whose}", hint=f"kubectl delete jobset {name}")
        if "deletionTimestamp" not in found["metadata"]:
            return found
        self._wait_until_deleted(name)
        return None

    def _make_secret(self, owner: Object, content: Mapping[str, str]) -> None:
        """Deleted with its JobSet; one that is left from a JobSet of the same name before goes first."""
        metadata = owner["metadata"]
        reference = {"apiVersion": owner["apiVersion"], "kind": "JobSet", "name": metadata["name"]}
        body = {
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {
                "name": metadata["name"],
                "namespace": self._options.namespace,
                "labels": {"app.kubernetes.io/managed-by": "trainworks"},
                "ownerReferences": [{**reference, "uid": metadata["uid"], "controller": True}],
            },
            "stringData": dict(content),
        }
        path = self._core("secrets")
        try:
            self._client.create(path, body)
        except Conflict:
            there = self._client.get(self._core("secrets", metadata["name"]))
            if any(one.get("uid") == metadata["uid"] for one in there["metadata"].get("ownerReferences") or []):
                return
            self._client.delete(self._core("secrets", metadata["name"]))
            self._client.create(path, body)

    def _delete(self, name: str) -> None:
        """With all that belongs to it, in the order in which nothing is left alone."""
        try:
            self._client.delete(self._jobsets(name), {"propagationPolicy": "Foreground"})
        except (NotFound, EnvironmentProblem):
            return

    def retry(self, rendered: RenderedJob, run_dir: RunDir, handle: str) -> str:
        """Replace the JobSet by a new one of the same name; one that has not ended is left as it is.

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
                raise EnvironmentProblem(f"JobSet `{name}` is being deleted, and some of its pods stay", hint=hint)
            self._clock.sleep(0.2)

    def poll(self, handles: Sequence[str]) -> dict[str, JobStatus]:
        """What the API server knows: one question for each kind of object, whatever the number of jobs."""
        if not handles:
            return {}
        wanted = set(handles)
        jobsets = {one["metadata"]["name"]: one for one in self._client.list(self._jobsets(), _OURS)}
        found = {name: one for name, one in jobsets.items() if name in wanted}
        pods = _by_jobset(self._client.list(self._core("pods"), _OURS)) if found else {}
        workloads = self._workloads_by_uid() if any(QUEUE_LABEL in _labels(one) for one in found.values()) else {}
        jobs = self._failed_jobs() if any(map(has_failed, found.values())) else {}
        statuses = {
            name: job_status(
                one, workload=workloads.get(one["metadata"]["uid"]), pods=pods.get(name, []), job=jobs.get(name)
            )
            for name, one in found.items()
        }
        return self._with_warnings(statuses)

    def _failed_jobs(self) -> dict[str, Object]:
        """By JobSet: its condition names the Job that failed, and the Job knows why."""
        path = f"/apis/batch/v1/namespaces/{self._options.namespace}/jobs"
        found = self._client.list(path, {"labelSelector": JOBSET_LABEL})
        return {_labels(job)[JOBSET_LABEL]: job for job in found}

    def _workloads_by_uid(self) -> dict[str, Object]:
        """Kueue's; none where there is no Kueue."""
        try:
            found = self._client.list(self._workloads())
        except NotServed:
            return {}
        return {uid: one for one in found for uid in _owners(one)}

    def _with_warnings(self, statuses: dict[str, JobStatus]) -> dict[str, JobStatus]:
        """Where a job waits for its pods, the cluster's last warning says why."""
        if not any(map(is_unexplained, statuses.values())):
            return statuses
        events = self._client.list(self._core("events"))
        return {
            name: warning_about(name, seen, events) if is_unexplained(seen) else seen for name, seen in statuses.items()
        }

    def find(self, run_dir: RunDir) -> str | None:
        """By the JobSet's name, and the mark in its annotation."""
        folder = RunDir(run_dir.path.absolute())
        name = name_of(folder, self._machine)
        found = self._find(name)
        is_ours = found is not None and _annotations(found).get(RUN_TAG) == mark_of(folder, self._machine)
        return name if found is not None and is_ours and not has_ended(found) else None

    def _find(self, handle: str) -> Object | None:
        try:
            return self._client.get(self._jobsets(handle))
        except NotFound:
            return None

    def stop(self, handle: str, *, at_once: bool = False) -> None:
        """Suspend the JobSet for good: its pods have their grace, and it stays to tell of the job."""
        found = self._find(handle)
        if found is None or has_ended(found):
            return
        self._set_active(found, active=False)
        wish = {"metadata": {"annotations": {STOPPED: "true"}}, "spec": {"suspend": True}}
        self._client.patch(self._jobsets(handle), wish)
        if at_once:
            self._client.delete(
                self._core("pods"), {"gracePeriodSeconds": 0}, {"labelSelector": f"{JOBSET_LABEL}={handle}"}
            )

    def _set_active(self, jobset: Object, *, active: bool) -> bool:
        """Tell Kueue, which would start it again; False where it does not know of the job."""
        if QUEUE_LABEL not in _labels(jobset):
            return False
        workload = self._workloads_by_uid().get(jobset["metadata"]["uid"])
        if workload is None:
            return False
        self._client.patch(self._workloads(workload["metadata"]["name"]), {"spec": {"active": active}})
        return True

    def hold(self, handle: str) -> None:
        """Keep a job that waits from starting.

        Raises:
            Refused: it does not wait.
        """
        seen = self.poll([handle]).get(handle)
        if seen is None or not seen.state.waits:
            raise Refused(f"`{handle}` is {seen.state if seen else 'not known'}, and only a job that waits can be held")
        found = self._client.get(self._jobsets(handle))
        known = self._set_active(found, active=False)
        labels = {} if known or QUEUE_LABEL not in _labels(found) else {"labels": {QUEUE_LABEL: None}}
        metadata = {"annotations": {HELD: "true"}, **labels}
        self._client.patch(self._jobsets(handle), {"metadata": metadata, "spec": {"suspend": True}})

    def release(self, handle: str) -> None:
        """Let a held job start, or wait in its queue."""
        found = self._client.get(self._jobsets(handle))
        if HELD not in _annotations(found):
            return
        queue = self._options.queue
        metadata = {"annotations": {HELD: None}, **({"labels": {QUEUE_LABEL: queue}} if queue else {})}
        spec = {} if queue else {"spec": {"suspend": False}}
        self._client.patch(self._jobsets(handle), {"metadata": metadata, **spec})
        self._set_active(found, active=True)

    def output(self, handle: str, *, node: int | None = None, follow: bool = False) -> Iterator[str]:
        """Lines of the job's pods, as long as Kubernetes keeps them: those of its last turn."""

        def pods() -> list[Object]:
            found = self._client.list(self._core("pods"), {"labelSelector": f"{JOBSET_LABEL}={handle}"})
            return sorted((pod for pod in found if node in (None, pod_index(pod))), key=pod_index)

        def has_ended() -> bool:
            seen = self.poll([handle]).get(handle)
            return seen is None or seen.state.is_final

        if follow:
            return iter(Followed(self._client, pods, has_ended))
        return (line for pod in pods() for line in log_lines(self._client, pod, follow=False))

    def nodes(self) -> list[NodeStatus]:
        """All nodes, with what pods of all namespaces take, or of this one where nobody may see more."""
        nodes = self._client.list("/api/v1/nodes")
        try:
            pods = self._client.list("/api/v1/pods")
        except Refused:
            pods = self._client.list(self._core("pods"))
        return sorted((node_facts(node, pods) for node in nodes), key=lambda facts: facts.name)

    def drain(self, node: str, reason: str) -> None:
        """Cordon the node; the reason is an annotation."""
        words = " ".join(reason.split()) or "drained by trainworks"
        change = {"metadata": {"annotations": {DRAINED: words}}, "spec": {"unschedulable": True}}
        self._client.patch(f"/api/v1/nodes/{node}", change)

    def undrain(self, node: str) -> None:
        """Give the node pods again."""
        change = {"metadata": {"annotations": {DRAINED: None}}, "spec": {"unschedulable": False}}
        self._client.patch(f"/api/v1/nodes/{node}", change)


def _labels(thing: Object) -> Mapping[str, str]:
    labels: Mapping[str, str] = thing["metadata"].get("labels") or {}
    return labels


def _annotations(thing: Object) -> Mapping[str, str]:
    annotations: Mapping[str, str] = thing["metadata"].get("annotations") or {}
    return annotations


def _owners(workload: Object) -> set[str]:
    owners = {str(one["uid"]) for one in workload["metadata"].get("ownerReferences") or []}
    label = _labels(workload).get(_JOB_UID)
    return owners | ({label} if label else set())


def _by_jobset(pods: Iterable[Object]) -> dict[str, list[Object]]:
    found: dict[str, list[Object]] = {}
    for pod in pods:
        found.setdefault(_labels(pod).get(JOBSET_LABEL, ""), []).append(pod)
    return found
