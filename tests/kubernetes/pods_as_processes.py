"""Everything of a cluster that stands behind its API server: `python -m tests.kubernetes.pods_as_processes FOLDER`.

A double of the controllers of JobSet, Job and Kueue, of the scheduler, the kubelets and the garbage collector, as far
as jobs of this project notice them. A pod is a process in namespaces of its own, with an address in 127.0.0.0/8. It
differs from a cluster where that makes tests faster: pods are placed all or none, without Kueue too, and a node that
is not ready loses its pods at once.

Sources: pkg/controllers of JobSet 0.10, pkg/controller/job of Kubernetes 1.34, pkg/controller/jobs of Kueue 0.13.
"""

from __future__ import annotations

import base64
import itertools
import os
import re
import secrets
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import psutil

import trainworks
from trainworks.backends.kubernetes.client import Conflict, KubernetesClient, NotFound
from trainworks.backends.kubernetes.facts import quantity
from trainworks.errors import TrainworksError

NAMESPACE = "default"
QUEUE = "train"
"""The one that there is."""
NODES = 4
_LOOK_S = 0.1
_IDLE_LOOK_S, _BUSY_S = 1.0, 5.0
"""Between looks once there has been no job for a while: the tests of the same session go on without this cluster."""
_CORE = f"/api/v1/namespaces/{NAMESPACE}"
_JOBSETS = f"/apis/jobset.x-k8s.io/v1alpha2/namespaces/{NAMESPACE}/jobsets"
_JOBS = f"/apis/batch/v1/namespaces/{NAMESPACE}/jobs"
_WORKLOADS = f"/apis/kueue.x-k8s.io/v1beta1/namespaces/{NAMESPACE}/workloads"
_NAME, _ATTEMPT = "jobset.sigs.k8s.io/jobset-name", "jobset.sigs.k8s.io/restart-attempt"
_JOB = "batch.kubernetes.io/job-name"
_INDEX, _QUEUE = "batch.kubernetes.io/job-completion-index", "kueue.x-k8s.io/queue-name"
_TRACKING = "batch.kubernetes.io/job-tracking"
"""Finalizer by which Job's controller sees how every pod ends, even one that is deleted without grace."""
_POD_SH = Path(__file__).parent / "pod.sh"
_SOURCE = Path(trainworks.__file__).parents[1]

Object = dict[str, Any]


def now() -> str:
    """As the API server writes it."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


def condition(kind: str, status: bool, reason: str, message: str = "") -> Object:
    """As in `status.conditions`."""
    word = "True" if status else "False"
    return {"type": kind, "status": word, "reason": reason, "message": message, "lastTransitionTime": now()}


def phase(pod: Object) -> str:
    """Pending, Running, Succeeded or Failed."""
    return str(pod["status"].get("phase", "Pending"))


def has_ended(pod: Object) -> bool:
    """Whether its process has."""
    return phase(pod) in ("Succeeded", "Failed")


def labels(thing: Object) -> dict[str, str]:
    """Of an object."""
    return thing["metadata"].get("labels") or {}


def is_ready(node: Object) -> bool:
    """Whether its kubelet answers."""
    conditions = node["status"].get("conditions") or []
    return any(one["type"] == "Ready" and one["status"] == "True" for one in conditions)


class Cluster:
    """One look at everything, and what follows, again and again.

    Args:
        client: asks the API server.
        folder: for pods' logs (`logs`), volume claims (`claims/NAME`) and what else pods need.
    """

    def __init__(self, client: KubernetesClient, folder: Path) -> None:
        self.client = client
        self.kubelets = Kubelets(client, folder)
        self.nodes: list[Object] = []
        self.pods: list[Object] = []
        self.jobsets: list[Object] = []
        self._failures: dict[tuple[str, int], tuple[str, str, str]] = {}
        self._failed: dict[tuple[str, str, str], set[str]] = {}
        self._version = ""

    def make_nodes(self) -> None:
        """Nodes of eight accelerators."""
        capacity = {"cpu": "64", "memory": "512Gi", "nvidia.com/gpu": "8"}
        ready = condition("Ready", True, "KubeletReady", "kubelet is posting ready status")
        for name in (f"node{number}" for number in range(1, NODES + 1)):
            product = {"kubernetes.io/hostname": name, "nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3"}
            try:
                self.client.create("/api/v1/nodes", {"metadata": {"name": name, "labels": product}})
            except Conflict:
                continue
            status = {"capacity": capacity, "allocatable": capacity, "conditions": [ready]}
            self.client.patch(f"/api/v1/nodes/{name}/status", {"status": status})

    def step(self) -> None:
        """Look, and act. The version of a list is that of the whole store: as long as it stays, nothing has changed."""
        found = self.client.get(_JOBSETS)
        version = found["metadata"]["resourceVersion"]
        has_changed, self._version = version != self._version, ""
        if has_changed:
            self.jobsets = found["items"]
            self.nodes = self.client.list("/api/v1/nodes")
            self.pods = self.client.list(f"{_CORE}/pods")
        self.kubelets.step(self.pods, {node["metadata"]["name"]: node for node in self.nodes})
        if has_changed:
            self._collect_garbage()
        for jobset in self.jobsets:
            if "deletionTimestamp" not in jobset["metadata"] and not (jobset.get("status") or {}).get("terminalState"):
                if _QUEUE in labels(jobset):
                    self._admit(jobset)
                self._run(jobset)
        self._version = version  # of a step that was made to its end

    # Garbage collector

    def _collect_garbage(self) -> None:
        """What a deleted owner leaves; one that is deleted in the foreground goes last."""
        owned = {path: self.client.list(path) for path in (f"{_CORE}/pods", f"{_CORE}/secrets", _WORKLOADS, _JOBS)}
        owners_now = self.client.list(_JOBSETS)  # after what they own: a job may begin between two looks
        living = {one["metadata"]["uid"] for one in owners_now if "deletionTimestamp" not in one["metadata"]}
        for path, things in owned.items():
            for thing in things:
                owners = thing["metadata"].get("ownerReferences") or []
                if owners and "deletionTimestamp" not in thing["metadata"] and owners[0]["uid"] not in living:
                    self._delete(f"{path}/{thing['metadata']['name']}")
        for jobset in self.jobsets:
            metadata = jobset["metadata"]
            if "foregroundDeletion" in (metadata.get("finalizers") or []) and not list(self._pods_of(jobset)):
                self.client.patch(f"{_JOBSETS}/{metadata['name']}", {"metadata": {"finalizers": None}})

    def _delete(self, path: str, grace_s: int | None = None) -> None:
        try:
            self.client.delete(path, None if grace_s is None else {"gracePeriodSeconds": grace_s})
        except NotFound:
            pass

    def _pods_of(self, jobset: Object) -> Iterator[Object]:
        uid = jobset["metadata"]["uid"]
        return (pod for pod in self.pods if pod["metadata"]["ownerReferences"][0]["uid"] == uid)

    def _delete_pods(self, pods: Iterable[Object]) -> None:
        for pod in pods:
            if "deletionTimestamp" not in pod["metadata"]:
                self._delete(f"{_CORE}/pods/{pod['metadata']['name']}")

    # Kueue

    def _admit(self, jobset: Object) -> None:
        """One queue, whose quota is what the nodes have left."""
        workload = self._workload(jobset)
        active = workload["spec"].get("active", True)
        if not active:
            evicted = condition("Evicted", True, "Deactivated", "The workload is deactivated")
            self._set_suspended(jobset, True)
            return self._judge(workload, evicted)
        if labels(jobset)[_QUEUE] != QUEUE:
            message = f"LocalQueue {labels(jobset)[_QUEUE]} doesn't exist"
            return self._judge(workload, condition("QuotaReserved", False, "Inadmissible", message))
        if not jobset["spec"].get("suspend"):
            return None
        if self._places(self._wanted_pods(jobset)) is None:
            group = jobset["spec"]["replicatedJobs"][-1]["name"]
            message = f"couldn't assign flavors to pod set {group}: insufficient unused quota for nvidia.com/gpu"
            return self._judge(workload, condition("QuotaReserved", False, "Pending", message))
        self._judge(workload, condition("QuotaReserved", True, "QuotaReserved"))
        return self._set_suspended(jobset, False)

    def _workload(self, jobset: Object) -> Object:
        metadata = jobset["metadata"]
        name = f"jobset-{metadata['name']}-{metadata['uid'][:5]}"
        try:
            return self.client.get(f"{_WORKLOADS}/{name}")
        except NotFound:
            owner = {key: jobset[key] for key in ("apiVersion", "kind")}
            owner |= {key: metadata[key] for key in ("name", "uid")}
            body = {"apiVersion": "kueue.x-k8s.io/v1beta1", "kind": "Workload", "spec": {"active": True}}
            body["metadata"] = {"name": name, "ownerReferences": [owner]}
            return self.client.create(_WORKLOADS, body)

    def _judge(self, workload: Object, found: Object) -> None:
        old = (workload.get("status") or {}).get("conditions") or []
        if [(one["type"], one["status"], one["message"]) for one in old] != [
            (found["type"], found["status"], found["message"])
        ]:
            name = workload["metadata"]["name"]
            self.client.patch(f"{_WORKLOADS}/{name}/status", {"status": {"conditions": [found]}})

    def _set_suspended(self, jobset: Object, suspend: bool) -> None:
        if bool(jobset["spec"].get("suspend")) != suspend:
            self.client.patch(f"{_JOBSETS}/{jobset['metadata']['name']}", {"spec": {"suspend": suspend}})
            jobset["spec"]["suspend"] = suspend

    # JobSet and Job

    def _run(self, jobset: Object) -> None:
        pods = list(self._pods_of(jobset))
        restarts = (jobset.get("status") or {}).get("restarts", 0)
        mine = [pod for pod in pods if labels(pod)[_ATTEMPT] == str(restarts)]
        self._delete_pods(pod for pod in pods if pod not in mine)
        if jobset["spec"].get("suspend"):
            return self._delete_pods(mine)
        if len(mine) < len(pods):
            return None  # those of the attempt before have to go first
        if not mine:
            mine = [self._create(pod) for pod in self._wanted_pods(jobset)]
        attempt = (jobset["metadata"]["uid"], restarts)
        if attempt not in self._failures:
            self._replace(jobset, mine)
        self._schedule([pod for pod in mine if not pod["spec"].get("nodeName")])
        if (failure := self._failures.get(attempt) or self._failure(jobset, mine)) is not None:
            self._failures[attempt] = failure  # the first one, as in the status of a Job: its pod may be gone soon
            self._delete_pods(pod for pod in mine if not has_ended(pod))
            return self._decide(jobset, *failure) if all(has_ended(pod) for pod in mine) else None
        done = {_place(pod) for pod in mine if phase(pod) == "Succeeded"}
        if all(_place(pod) in done for pod in mine):
            return self._finish(jobset, "Completed", "AllJobsCompleted", "jobset completed successfully")
        return None

    def _wanted_pods(self, jobset: Object) -> list[Object]:
        return [
            _pod(jobset, group, index)
            for group in jobset["spec"]["replicatedJobs"]
            for index in range(group["template"]["spec"]["completions"])
        ]

    def _replace(self, jobset: Object, pods: list[Object]) -> None:
        """New pods at once for those that have failed, while the backoff limit of their Job is not reached."""
        there = {_place(pod) for pod in pods if phase(pod) != "Failed"}
        for group in jobset["spec"]["replicatedJobs"]:
            job, spec = _job_name(jobset, group), group["template"]["spec"]
            failed = self._failed_pods(jobset, job, pods)
            if failed and failed <= spec.get("backoffLimit", 6):
                missing = [index for index in range(spec["completions"]) if (job, str(index)) not in there]
                pods += [self._create(_pod(jobset, group, index)) for index in missing]

    def _failed_pods(self, jobset: Object, job: str, pods: list[Object]) -> int:
        """How many pods of a Job have failed, with those that were deleted since."""
        attempt = str((jobset.get("status") or {}).get("restarts", 0))
        seen = self._failed.setdefault((jobset["metadata"]["uid"], attempt, job), set())
        seen |= {pod["metadata"]["uid"] for pod in pods if phase(pod) == "Failed" and labels(pod)[_JOB] == job}
        return len(seen)

    def _create(self, pod: Object) -> Object:
        made = self.client.create(f"{_CORE}/pods", pod)
        self.pods.append(made)
        return made

    def _failure(self, jobset: Object, pods: list[Object]) -> tuple[str, str, str] | None:
        """Name, reason and message of a Job that has failed."""
        for group in jobset["spec"]["replicatedJobs"]:
            name, job = _job_name(jobset, group), group["template"]["spec"]
            own = [pod for pod in pods if labels(pod)[_JOB] == name]
            deadline_s = job.get("activeDeadlineSeconds")
            if deadline_s is not None and self.kubelets.age_s(own) > deadline_s:
                return name, "DeadlineExceeded", "Job was active longer than specified deadline"
            failed = [pod for pod in own if phase(pod) == "Failed"]
            for pod in failed:
                for index, rule in enumerate(job.get("podFailurePolicy", {}).get("rules", [])):
                    if (words := _matches(rule, pod)) is not None:
                        return name, "PodFailurePolicy", f"{words} matching {rule['action']} rule at index {index}"
            if self._failed_pods(jobset, name, own) > job.get("backoffLimit", 6):
                return name, "BackoffLimitExceeded", "Job has reached the specified backoff limit"
        return None

    def _decide(self, jobset: Object, job: str, reason: str, message: str) -> None:
        """By the JobSet's failure policy."""
        policy, status = jobset["spec"].get("failurePolicy") or {}, jobset.get("status") or {}
        action = next((rule["action"] for rule in policy.get("rules", []) if _applies(rule, reason, message)), "")
        restarts, counted = status.get("restarts", 0), status.get("restartsCountTowardsMax", 0)
        counts = action != "RestartJobSetAndIgnoreMaxRestarts"
        name = jobset["metadata"]["name"]
        words = f"jobset failed due to one or more job failures (first failed job: {job})"
        self._note_the_failed_job(jobset, job, reason, message)
        if action == "FailJobSet":
            return self._finish(jobset, "Failed", "FailJobSetFailurePolicyAction", words)
        if counts and counted >= policy.get("maxRestarts", 0):
            reason = "ReachedMaxRestarts" if policy.get("maxRestarts") else "FailedJobs"
            return self._finish(jobset, "Failed", reason, words)
        changed = {"restarts": restarts + 1, "restartsCountTowardsMax": counted + int(counts)}
        self.client.patch(f"{_JOBSETS}/{name}/status", {"status": changed})
        return None

    def _note_the_failed_job(self, jobset: Object, name: str, reason: str, message: str) -> None:
        """The one object of a Job that is made here."""
        metadata = jobset["metadata"]
        owner = {key: jobset[key] for key in ("apiVersion", "kind")} | {key: metadata[key] for key in ("name", "uid")}
        about = {"name": name, "labels": {_NAME: metadata["name"]}, "ownerReferences": [owner]}
        self._delete(f"{_JOBS}/{name}")
        self.client.create(_JOBS, {"metadata": about, "spec": {}})
        self.client.patch(
            f"{_JOBS}/{name}/status", {"status": {"conditions": [condition("Failed", True, reason, message)]}}
        )

    def _finish(self, jobset: Object, kind: str, reason: str, message: str) -> None:
        status = {"terminalState": kind, "conditions": [condition(kind, True, reason, message)]}
        self.client.patch(f"{_JOBSETS}/{jobset['metadata']['name']}/status", {"status": status})

    # Scheduler

    def _schedule(self, pods: list[Object]) -> None:
        """All of them, or none."""
        if not pods:
            return
        places = self._places(pods)
        if places is not None:
            self.kubelets.bind(pods, places)
            return
        message = f"0/{len(self.nodes)} nodes are available: {len(self.nodes)} Insufficient nvidia.com/gpu."
        for pod in pods:
            if not pod["status"].get("conditions"):
                unschedulable = [condition("PodScheduled", False, "Unschedulable", message)]
                path = f"{_CORE}/pods/{pod['metadata']['name']}/status"
                self.client.patch(path, {"status": {"conditions": unschedulable}})

    def _places(self, pods: list[Object]) -> list[str] | None:
        """A node for each pod; None if not all of them fit."""
        free = {node["metadata"]["name"]: self._free(node) for node in self.nodes if is_ready(node)}
        cordoned = {node["metadata"]["name"] for node in self.nodes if node.get("spec", {}).get("unschedulable")}
        places = []
        for pod in pods:
            excluded = cordoned | _excluded(pod)
            fitting = [name for name in sorted(free) if name not in excluded and _fits(pod, free[name])]
            if not fitting:
                return None
            for key, amount in _asked(pod).items():
                free[fitting[0]][key] -= amount
            places.append(fitting[0])
        return places

    def _free(self, node: Object) -> dict[str, float]:
        free = {key: quantity(amount) for key, amount in node["status"]["allocatable"].items()}
        for pod in self.pods:
            if pod["spec"].get("nodeName") == node["metadata"]["name"] and not has_ended(pod):
                for key, amount in _asked(pod).items():
                    free[key] -= amount
        return free


def _job_name(jobset: Object, group: Object) -> str:
    return f"{jobset['metadata']['name']}-{group['name']}-0"


def _pod(jobset: Object, group: Object, index: int) -> Object:
    """As Job's controller makes the pod of one index."""
    metadata, template, job = jobset["metadata"], group["template"]["spec"]["template"], _job_name(jobset, group)
    of_template = template.get("metadata") or {}
    attempt = str((jobset.get("status") or {}).get("restarts", 0))
    owner = {key: jobset[key] for key in ("apiVersion", "kind")} | {key: metadata[key] for key in ("name", "uid")}
    own = {_NAME: metadata["name"], _ATTEMPT: attempt, _JOB: job}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": f"{job}-{index}-{secrets.token_hex(3)[:5]}",
            "labels": {**(of_template.get("labels") or {}), **own, _INDEX: str(index)},
            "annotations": {**(of_template.get("annotations") or {}), _INDEX: str(index)},
            "finalizers": [_TRACKING],
            "ownerReferences": [owner],
        },
        "spec": {**template["spec"], "hostname": f"{job}-{index}", "subdomain": metadata["name"]},
    }


def _place(pod: Object) -> tuple[str, str]:
    """Job and index of a pod."""
    return labels(pod)[_JOB], labels(pod)[_INDEX]


def _matches(rule: Object, pod: Object) -> str | None:
    """What Job's controller says of a pod to which a rule of its failure policy applies."""
    name = f"{NAMESPACE}/{pod['metadata']['name']}"
    found = {one["type"] for one in pod["status"].get("conditions") or [] if one["status"] == "True"}
    for wanted in rule.get("onPodConditions") or []:
        if wanted["type"] in found:
            return f"Pod {name} has condition {wanted['type']}"
    codes = rule.get("onExitCodes")
    ended = pod["status"].get("containerStatuses") or []
    code = ended[0]["state"]["terminated"]["exitCode"] if ended else 0
    if codes and code and (code in codes["values"]) == (codes["operator"] == "In"):
        return f"Container {codes['containerName']} for pod {name} failed with exit code {code}"
    return None


def _applies(rule: Object, reason: str, message: str) -> bool:
    reasons, patterns = rule.get("onJobFailureReasons"), rule.get("onJobFailureMessagePatterns")
    by_message = not patterns or any(re.search(pattern, message) for pattern in patterns)
    return (not reasons or reason in reasons) and by_message


def _asked(pod: Object) -> dict[str, float]:
    requests = pod["spec"]["containers"][0].get("resources", {}).get("requests", {})
    return {key: quantity(amount) for key, amount in requests.items()}


def _fits(pod: Object, free: dict[str, float]) -> bool:
    return all(free.get(key, 0.0) >= amount for key, amount in _asked(pod).items())


def _excluded(pod: Object) -> set[str]:
    affinity = (pod["spec"].get("affinity") or {}).get("nodeAffinity") or {}
    terms = affinity.get("requiredDuringSchedulingIgnoredDuringExecution", {}).get("nodeSelectorTerms", [])
    return {name for term in terms for one in term["matchExpressions"] for name in one["values"]}


class Kubelets:
    """Start, watch and end the processes of all pods."""

    def __init__(self, client: KubernetesClient, folder: Path) -> None:
        self._client = client
        self._folder = folder
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._started_at: dict[str, float] = {}
        self._asked_at: dict[str, float] = {}
        self._lost: set[str] = set()
        self._reported: set[str] = set()
        # servers in pods have the same port everywhere: another cluster on this machine has other addresses
        network, first = 7 + secrets.randbelow(200), secrets.randbelow(200)
        self._addresses = (f"127.{network}.{b}.{c}" for b, c in itertools.product(range(first, 250), range(1, 250)))
        for name in ("logs", "claims", "pods"):
            (folder / name).mkdir(exist_ok=True)

    def end_all(self) -> None:
        """Leave nothing behind."""
        for process in self._processes.values():
            process.kill()
            process.wait()

    def age_s(self, pods: list[Object]) -> float:
        """Since the first of them started."""
        started = [self._started_at[uid] for pod in pods if (uid := pod["metadata"]["uid"]) in self._started_at]
        return time.monotonic() - min(started) if started else 0.0

    def bind(self, pods: list[Object], nodes: list[str]) -> None:
        """Give pods their nodes, and addresses that all of them know."""
        for pod, node in zip(pods, nodes, strict=True):
            path = f"{_CORE}/pods/{pod['metadata']['name']}"
            address = next(self._addresses)
            self._client.patch(path, {"spec": {"nodeName": node}})
            self._client.patch(f"{path}/status", {"status": {"podIP": address, "conditions": []}})
            pod["spec"]["nodeName"], pod["status"]["podIP"] = node, address

    def step(self, pods: list[Object], nodes: dict[str, Object]) -> None:
        """Everything that kubelets do, once."""
        for pod in pods:
            uid, node = pod["metadata"]["uid"], pod["spec"].get("nodeName")
            if node is None:
                if "deletionTimestamp" in pod["metadata"]:
                    self._forget(pod)
                continue
            if not is_ready(nodes[node]) and not has_ended(pod):
                self._lose(pod)
            if has_ended(pod) and "deletionTimestamp" in pod["metadata"] and uid in self._reported:
                self._forget(pod)
            elif uid in self._processes:
                self._watch(pod)
            elif not has_ended(pod) and uid not in self._reported:
                self._start(pod, pods)

    def _lose(self, pod: Object) -> None:
        """Its node does not answer any more: the pod is gone with it, and the taint manager deletes it."""
        self._lost.add(pod["metadata"]["uid"])
        self._kill(pod["metadata"]["uid"])
        self._client.delete(f"{_CORE}/pods/{pod['metadata']['name']}")

    def _kill(self, uid: str) -> None:
        if (process := self._processes.get(uid)) is not None and process.poll() is None:
            process.kill()

    def _forget(self, pod: Object) -> None:
        path = f"{_CORE}/pods/{pod['metadata']['name']}"
        try:
            self._client.patch(path, {"metadata": {"finalizers": None}})
            self._client.delete(path, {"gracePeriodSeconds": 0})
        except NotFound:
            pass

    def _start(self, pod: Object, pods: list[Object]) -> None:
        metadata, spec = pod["metadata"], pod["spec"]
        if "deletionTimestamp" in metadata:
            return self._report(pod, 137)
        scratch = self._folder / "pods" / metadata["uid"]
        scratch.mkdir(exist_ok=True)
        try:
            mounts = self._mounts(spec, scratch)
            env = self._env(pod)
        except NotFound as missing:
            return self._warn(pod, "FailedMount", f"MountVolume.SetUp failed: {missing}")
        (scratch / "root").mkdir()
        (scratch / "message").touch()
        hosts = self._folder / "pods" / f"hosts-{labels(pod)[_NAME]}"
        hosts.write_text("127.0.0.1 localhost\n" + "".join(_hosts(pod, pods)), encoding="utf-8")  # seen by all pods
        container = spec["containers"][0]
        command = [_expanded(word, env) for word in [*container.get("command", []), *container.get("args", [])]]
        places = [scratch / "root", spec["hostname"], hosts, scratch / "message"]
        isolated = ["unshare", "--mount", "--pid", "--uts", "--ipc", "--fork", "--kill-child", "--propagation=private"]
        binds = [part for pair in mounts for part in pair]
        with self._log(pod).open("wb") as log:
            self._processes[metadata["uid"]] = subprocess.Popen(
                [*isolated, str(_POD_SH), *map(str, places), *binds, "--", *command],
                env=env, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, start_new_session=True,
            )  # fmt: skip
        self._started_at[metadata["uid"]] = time.monotonic()
        self._set(pod, {"phase": "Running", "startTime": now(), "containerStatuses": _containers(container, {
            "running": {"startedAt": now()}})})  # fmt: skip
        return None

    def _log(self, pod: Object) -> Path:
        return self._folder / "logs" / f"{NAMESPACE}_{pod['metadata']['name']}.log"

    def _mounts(self, spec: Object, scratch: Path) -> list[tuple[str, str]]:
        """Volumes, and the folders of this test run, which may be mounted themselves."""
        sources = {volume["name"]: self._volume(volume, scratch) for volume in spec.get("volumes", [])}
        found = [(str(sources[one["name"]]), one["mountPath"]) for one in spec["containers"][0].get("volumeMounts", [])]
        return [*((str(one), str(one)) for one in (_SOURCE, Path(sys.prefix))), *found]

    def _volume(self, volume: Object, scratch: Path) -> Path:
        folder = scratch / f"volume-{volume['name']}"
        if (claim := volume.get("persistentVolumeClaim")) is not None:
            self._client.get(f"{_CORE}/persistentvolumeclaims/{claim['claimName']}")
            folder = self._folder / "claims" / claim["claimName"]
        folder.mkdir(exist_ok=True)
        for kind, key in (("secret", "secretName"), ("configMap", "name")):
            if kind in volume:
                found = self._client.get(f"{_CORE}/{kind.lower()}s/{volume[kind][key]}")
                for name, value in _content(found).items():
                    (folder / name).write_bytes(value)
        return folder

    def _env(self, pod: Object) -> dict[str, str]:
        """Those of the image, and those that the manifest asks for."""
        container = pod["spec"]["containers"][0]
        env = {"PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin:/usr/sbin:/sbin", "HOME": "/root"}
        env |= {"PYTHONPATH": str(_SOURCE), "HOSTNAME": pod["spec"]["hostname"]}
        env |= {"JOB_COMPLETION_INDEX": labels(pod)[_INDEX], "KUBERNETES_SERVICE_HOST": "10.96.0.1"}
        for one in container.get("env", []):
            source = one.get("valueFrom") or {}
            if "fieldRef" in source:
                env[one["name"]] = _field(pod, source["fieldRef"]["fieldPath"])
            elif "secretKeyRef" in source:
                found = self._client.get(f"{_CORE}/secrets/{source['secretKeyRef']['name']}")
                env[one["name"]] = _content(found)[source["secretKeyRef"]["key"]].decode()
            else:
                env[one["name"]] = _expanded(one.get("value", ""), env)
        return env

    def _watch(self, pod: Object) -> None:
        uid, process = pod["metadata"]["uid"], self._processes[pod["metadata"]["uid"]]
        code = process.poll()
        if code is not None:
            self._report(pod, 128 - code if code < 0 else code)
            del self._processes[uid]  # not before the API server knows
        elif "deletionTimestamp" in pod["metadata"]:
            self._end(pod, uid, process)

    def _end(self, pod: Object, uid: str, process: subprocess.Popen[bytes]) -> None:
        """SIGTERM for its first process, and SIGKILL for all after the grace."""
        grace_s = pod["metadata"].get("deletionGracePeriodSeconds", 30)
        if uid not in self._asked_at:
            self._asked_at[uid] = time.monotonic()
            try:
                psutil.Process(process.pid).children()[0].send_signal(signal.SIGTERM)
            except (psutil.NoSuchProcess, IndexError):
                return
        if time.monotonic() >= self._asked_at[uid] + grace_s:
            process.kill()

    def _report(self, pod: Object, code: int) -> None:
        uid = pod["metadata"]["uid"]
        message = self._folder / "pods" / uid / "message"
        terminated: Object = {"exitCode": code, "reason": "Completed" if code == 0 else "Error", "finishedAt": now()}
        if message.exists():
            terminated["message"] = message.read_text(encoding="utf-8")[:4096]
        status = {"phase": "Failed" if code else "Succeeded"}
        if uid in self._lost:
            reason = "Taint manager: deleting due to NoExecute taint"
            status["conditions"] = [condition("DisruptionTarget", True, "DeletionByTaintManager", reason)]  # type: ignore[assignment]
        container = pod["spec"]["containers"][0]
        self._set(pod, {**status, "containerStatuses": _containers(container, {"terminated": terminated})})
        self._reported.add(uid)
        Path(f"{self._log(pod)}.done").touch()
        shutil.rmtree(self._folder / "pods" / uid, ignore_errors=True)

    def _set(self, pod: Object, status: Object) -> None:
        pod["status"] |= status
        try:
            self._client.patch(f"{_CORE}/pods/{pod['metadata']['name']}/status", {"status": status})
        except NotFound:
            pass

    def _warn(self, pod: Object, reason: str, message: str) -> None:
        about = {"kind": "Pod", "name": pod["metadata"]["name"], "namespace": NAMESPACE}
        event = {"metadata": {"name": f"{pod['metadata']['name']}.{reason.lower()}"}, "involvedObject": about}
        words = {"type": "Warning", "reason": reason, "message": message, "lastTimestamp": now()}
        try:
            self._client.create(f"{_CORE}/events", event | words)
        except Conflict:
            pass


def _containers(container: Object, state: Object) -> list[Object]:
    status = {"name": container["name"], "image": container["image"], "imageID": "", "restartCount": 0}
    return [status | {"ready": "running" in state, "state": state}]


def _content(thing: Object) -> dict[str, bytes]:
    """Of a Secret or a ConfigMap; this API server leaves `stringData` as it is."""
    decoded = {name: base64.b64decode(value) for name, value in (thing.get("data") or {}).items()}
    if thing.get("kind") == "ConfigMap":
        decoded = {name: value.encode() for name, value in (thing.get("data") or {}).items()}
    return decoded | {name: value.encode() for name, value in (thing.get("stringData") or {}).items()}


def _field(pod: Object, path: str) -> str:
    """`metadata.labels['NAME']`, `status.podIP`."""
    if match := re.fullmatch(r"metadata\.(labels|annotations)\['(.*)'\]", path):
        return str(pod["metadata"][match[1]][match[2]])
    first, second = path.split(".")
    return str(pod[first][second])


def _expanded(text: str, env: dict[str, str]) -> str:
    """`$(NAME)` is a variable's value, and `$$` a dollar; a name that is not known stays."""

    def value(match: re.Match[str]) -> str:
        return "$" if match[0] == "$$" else env.get(match[1], match[0])

    return re.sub(r"\$\$|\$\(([^()]+)\)", value, text)


def _hosts(pod: Object, pods: list[Object]) -> Iterator[str]:
    """What the headless service of the JobSet says in DNS, and the kubelet of a pod's own name."""
    for one in pods:
        is_there = "podIP" in one["status"] and not has_ended(one)
        if labels(one)[_NAME] == labels(pod)[_NAME] and is_there:
            name, domain = one["spec"]["hostname"], one["spec"]["subdomain"]
            yield f"{one['status']['podIP']} {name}.{domain} {name}\n"


def main(folder: str) -> None:
    """Until somebody ends this; an API server that does not answer is asked again."""
    os.environ.pop("KUBERNETES_SERVICE_HOST", None)
    cluster = Cluster(KubernetesClient(configuration=f"{folder}/kubeconfig"), Path(folder))
    cluster.make_nodes()
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit())
    busy_at = time.monotonic()
    try:
        while True:
            try:
                cluster.step()
            except TrainworksError as problem:
                sys.stderr.write(f"{type(problem).__name__} {problem}\n")
            if cluster.jobsets or cluster.pods:
                busy_at = time.monotonic()
            time.sleep(_LOOK_S if time.monotonic() < busy_at + _BUSY_S else _IDLE_LOOK_S)
    finally:
        cluster.kubelets.end_all()


if __name__ == "__main__":
    main(sys.argv[1])
