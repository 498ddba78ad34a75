"""A Kubernetes of one machine: a real API server on a real etcd, and pods that are processes; for any suite."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.kubernetes.pods_as_processes import NAMESPACE, condition
from tests.ports import free_port
from trainworks.backends.kubernetes.backend import KubernetesBackend
from trainworks.backends.kubernetes.client import KubernetesClient, KubernetesRefusedError, NotServed
from trainworks.config.engines import Kubernetes
from trainworks.errors import UnreachableError

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
CLAIM = "runs"
"""The PersistentVolumeClaim that there is."""
IMAGE = "ghcr.io/example/trainworks:1"
_JOBSETS = f"/apis/jobset.x-k8s.io/v1alpha2/namespaces/{NAMESPACE}/jobsets"
_JOBS = f"/apis/batch/v1/namespaces/{NAMESPACE}/jobs"
_KUEUE = f"/apis/kueue.x-k8s.io/v1beta1/namespaces/{NAMESPACE}"
TIMEOUT_S = 240.0
_LOOK_S = 0.2
"""A look is some questions to the server, which take more of a core than all else in a test that waits."""
_ANSWER_S = 60.0
"""In which an API server answers that gets no processor for a while."""


def api_server() -> Path:
    """Where `apiserver/build.sh` puts what it builds from these sources; skips, loudly, if it has not."""
    sources = (HERE / "apiserver" / "main.go").read_bytes() + (HERE / "apiserver" / "build.sh").read_bytes()
    cache = Path(os.environ.get("TRAINWORKS_TEST_CACHE", Path.home() / ".cache" / "trainworks-tests"))
    found = cache / f"apiserver-{hashlib.sha256(sources).hexdigest()[:12]}" / "apiserver"
    if os.geteuid() != 0:
        pytest.skip("NOT TESTED: Kubernetes; it takes root to give pods namespaces of their own")
    if not found.exists():
        pytest.skip("NOT TESTED: Kubernetes; tests/kubernetes/apiserver/build.sh builds its API server")
    return found


class KubernetesCluster:
    """Four nodes of eight accelerators, the LocalQueue `train`, and the claim `runs`.

    Args:
        folder: of its own, to be deleted afterwards.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._etcd_port = free_port(3)
        self._port = self._etcd_port + 2
        self._binary = api_server()
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self.kubeconfig = folder / "kubeconfig"
        self.client = KubernetesClient(configuration=str(self.kubeconfig)).within(_ANSWER_S)

    def start(self) -> None:
        """Everything."""
        for name in ("logs", "certificates"):
            (self.folder / name).mkdir()
        self.start_etcd()
        self.start_server()
        for kind in (_crd_of_jobsets(), *_crds_of_kueue()):
            self.client.create("/apis/apiextensions.k8s.io/v1/customresourcedefinitions", kind)
        wait_until(self._serves_all)
        self.client.create(self.path("persistentvolumeclaims"), {"metadata": {"name": CLAIM}})
        queue = {"apiVersion": "kueue.x-k8s.io/v1beta1", "kind": "LocalQueue", "metadata": {"name": "train"}}
        self.client.create(f"{_KUEUE}/localqueues", queue)
        module = [sys.executable, "-m", "tests.kubernetes.pods_as_processes", str(self.folder)]
        self._spawn("pods", module, cwd=ROOT)
        wait_until(lambda: len(self.backend().nodes()) == 4)

    def path(self, kind: str, name: str = "") -> str:
        """Of core objects."""
        return f"/api/v1/namespaces/{NAMESPACE}/{kind}/{name}".rstrip("/")

    @property
    def volume(self) -> Path:
        """The claim's content."""
        return self.folder / "claims" / CLAIM

    def backend(self, **options: Any) -> KubernetesBackend:
        """A backend for this cluster, with the claim `runs`."""
        words = {"image": IMAGE, "volume": CLAIM} | options
        return KubernetesBackend(Kubernetes.model_validate(words), client=self.client, env={"SECRET": "s3cret $(HOME)"})

    def start_server(self) -> None:
        """The API server, which may have been stopped before."""
        options = [f"--etcd=http://127.0.0.1:{self._etcd_port}", f"--port={self._port}"]
        options += [f"--folder={self.folder / 'certificates'}", f"--pod-logs={self.folder / 'logs'}"]
        self._spawn("server", [str(self._binary), *options])
        wait_until(lambda: _listens(self._port))
        self.kubeconfig.write_text(json.dumps(_kubeconfig(self._port, self.folder)), encoding="utf-8")
        wait_until(self._is_ready)
        if "pods" in self._processes:
            wait_until(self._serves_all)

    def stop_server(self) -> None:
        """The API server alone: the pods go on."""
        self._end("server")

    def crash(self, name: str) -> None:
        """Kill `server` or `etcd`: its clients see open connections break."""
        self._processes[name].kill()
        self._processes.pop(name).wait()

    def lose(self, node: str) -> None:
        """The node does not answer any more, and what ran there is gone."""
        self._set_ready(node, False)

    def return_node(self, node: str) -> None:
        """The node is there again."""
        self._set_ready(node, True)

    def _set_ready(self, node: str, ready: bool) -> None:
        found = condition("Ready", ready, "KubeletReady" if ready else "NodeStatusUnknown")
        self.client.patch(f"/api/v1/nodes/{node}/status", {"status": {"conditions": [found]}})

    def forget_all(self) -> None:
        """End every job, with all that is deleted with it, and make all nodes as they were."""
        for jobset in self.client.list(_JOBSETS):
            self.client.delete(f"{_JOBSETS}/{jobset['metadata']['name']}", {"propagationPolicy": "Background"})
        self.client.delete(self.path("pods"), {"gracePeriodSeconds": 0})
        for node in self.backend().nodes():
            self.return_node(node.name)
            self.backend().undrain(node.name)
        owned = (_JOBSETS, self.path("pods"), self.path("secrets"), f"{_KUEUE}/workloads", _JOBS)
        wait_until(lambda: not any(map(self.client.list, owned)))

    def stop(self) -> None:
        """Everything."""
        for name in ("pods", "server", "etcd"):
            self._end(name)

    def start_etcd(self) -> None:
        """The database of the API server, which may have crashed before."""
        clients, peers = (f"http://127.0.0.1:{self._etcd_port + offset}" for offset in (0, 1))
        self._spawn("etcd", [
            str(Path(sys.executable).parent / "etcd"), "--unsafe-no-fsync", f"--data-dir={self.folder / 'etcd'}",
            f"--listen-client-urls={clients}", f"--advertise-client-urls={clients}", f"--listen-peer-urls={peers}",
            f"--initial-advertise-peer-urls={peers}", f"--initial-cluster=default={peers}",
        ])  # fmt: skip
        wait_until(lambda: _listens(self._etcd_port))

    def _spawn(self, name: str, command: list[str], cwd: Path | None = None) -> None:
        with (self.folder / f"{name}.log").open("ab") as log:
            self._processes[name] = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=cwd, start_new_session=True
            )

    def _end(self, name: str) -> None:
        if (process := self._processes.pop(name, None)) is not None:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def _is_ready(self) -> bool:
        assert self._processes["server"].poll() is None, (self.folder / "server.log").read_text()[-2000:]
        try:
            self.client.list(self.path("pods"))
        except (UnreachableError, KubernetesRefusedError):
            return False
        return True

    def _serves_all(self) -> bool:
        try:
            for path in (_JOBSETS, f"{_KUEUE}/workloads", f"{_KUEUE}/localqueues"):
                self.client.list(path)
        except NotServed:
            return False
        return True


@contextmanager
def kubernetes_cluster() -> Iterator[KubernetesCluster]:
    """A cluster, until the end of the block; skips where there cannot be one."""
    folder = Path(tempfile.mkdtemp(prefix="tw-k8s-"))
    cluster = KubernetesCluster(folder)
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop()
        shutil.rmtree(folder, ignore_errors=True)


def wait_until(condition: Callable[[], Any], timeout_s: float = TIMEOUT_S) -> None:
    """Poll: a server of its own keeps its own time."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "timed out"
        time.sleep(_LOOK_S)


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def _kubeconfig(port: int, folder: Path) -> dict[str, Any]:
    certificate = str(folder / "certificates" / "apiserver.crt")
    cluster = {"server": f"https://127.0.0.1:{port}", "certificate-authority": certificate}
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "tests", "cluster": cluster}],
        "users": [{"name": "tests", "user": {"token": "tests"}}],
        "contexts": [{"name": "tests", "context": {"cluster": "tests", "user": "tests"}}],
        "current-context": "tests",
    }


def crd(
    group: str, versions: Sequence[str], kind: str, schema: dict[str, Any], *, scope: str = "Namespaced"
) -> dict[str, Any]:
    """A kind of objects with one schema in all its versions, of which the first is stored."""
    plural = f"{kind.lower()}s"
    served = {"served": True, "subresources": {"status": {}}, "schema": {"openAPIV3Schema": schema}}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {
            "name": f"{plural}.{group}",
            "annotations": {"api-approved.kubernetes.io": "https://github.com/kubernetes-sigs"},
        },
        "spec": {
            "group": group,
            "names": {"kind": kind, "listKind": f"{kind}List", "plural": plural, "singular": kind.lower()},
            "scope": scope,
            "versions": [{"name": version, "storage": version == versions[0], **served} for version in versions],
        },
    }


def _crd_of_jobsets() -> dict[str, Any]:
    """With upstream's schema and rules."""
    schema = json.loads((ROOT / "tests" / "data" / "jobset_v1alpha2.json").read_text(encoding="utf-8"))
    del schema["$comment"]
    return crd("jobset.x-k8s.io", ["v1alpha2"], "JobSet", schema)


def _crds_of_kueue() -> Iterator[dict[str, Any]]:
    anything = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    for kind in ("Workload", "LocalQueue"):
        yield crd("kueue.x-k8s.io", ["v1beta2", "v1beta1"], kind, anything)
