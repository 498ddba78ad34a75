"""Metrics of this node for Prometheus: runs, the queue, GPUs, network ports and health checks."""

from __future__ import annotations

import math
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

import pynvml

from trainworks.api.nodes import backend_on
from trainworks.api.notices import Notify
from trainworks.api.observing.watched_runs import RunWatcher
from trainworks.api.proving.health import health
from trainworks.backends.backend import NodeStatus
from trainworks.backends.store_place import is_there_a_store, store_url
from trainworks.errors import ArgumentError, UnreachableError, suggest
from trainworks.files import write_atomic
from trainworks.host.clock import Clock, SystemClock
from trainworks.host.fabric import ethernet_ports, rdma_ports
from trainworks.host.listening import listen_address
from trainworks.jobs.cluster_job import ClusterJob, cluster_job
from trainworks.jobs.state import JobState
from trainworks.jobs.store import JobStore, open_store
from trainworks.measure.health.node_health import NodeHealth
from trainworks.observe import exporter
from trainworks.observe.following import describe
from trainworks.observe.metrics.fabric import fabric_samples
from trainworks.observe.metrics.family import MetricSample, exposition
from trainworks.observe.metrics.gpus import GpuReader, amd_gpu_samples
from trainworks.observe.metrics.queue import queue_samples
from trainworks.observe.metrics.runs import run_samples
from trainworks.system import user_id

COLLECTORS = ("runs", "queue", "gpus", "fabric", "health")
_LIVE = [state for state in JobState if not state.is_final]
_HEALTH_EVERY_S = 300.0
_QUEUE_EVERY_S = 10.0
"""Time between two questions to the scheduler of a cluster, however many readers there are."""
_FRESH_S = 1.0
"""Age up to which several readers get the same answer."""


class NodeMetrics:
    """The metrics of this node; one collector that fails leaves the others their values.

    `collectors` are names out of `COLLECTORS`. Collected are the queue of `cluster`, and its users' runs; this
    machine's job store when None. `root` is that of the file system that has the network ports and AMD's GPUs. `check`
    runs the health checks, and `notify` receives the reason when a collector begins to fail.

    Raises:
        ArgumentError: no such collector.
        UsageError: no such backend, or it does not list the jobs of other users.
    """

    def __init__(
        self,
        collectors: Sequence[str] = COLLECTORS,
        folder: Path | str = "runs",
        *,
        cluster: str | None = None,
        clock: Clock | None = None,
        nvml: Any = pynvml,
        root: Path = Path("/"),
        check: Callable[[], NodeHealth] = health,
        notify: Notify = lambda message: None,
    ) -> None:
        if unknown := [name for name in collectors if name not in COLLECTORS]:
            hint = suggest(unknown[0], COLLECTORS, otherwise=f"known: {', '.join(COLLECTORS)}")
            raise ArgumentError(f"no collector `{unknown[0]}`", argument="collect", hint=hint)
        self._clock = clock or SystemClock()
        self._queue: _StoreQueue | _ClusterQueue = (
            _StoreQueue() if cluster is None else _ClusterQueue(cluster, self._clock)
        )
        self._watcher = RunWatcher(Path(folder), self._queue.run_dirs, self._clock)
        self._nvidia = GpuReader(nvml)
        self._root = root
        self._check, self._checked_at = check, 0.0
        self._health: NodeHealth | None = None
        every: dict[str, Callable[[], Iterable[MetricSample]]] = {
            "runs": self._run_samples,
            "queue": self._queue.samples,
            "gpus": lambda: chain(self._nvidia.samples(), amd_gpu_samples(self._root)),
            "fabric": lambda: fabric_samples(rdma_ports(self._root), ethernet_ports(self._root)),
            "health": self._health_samples,
        }
        self._collectors = {name: every[name] for name in collectors}
        self._notify, self._problems = notify, dict[str, str]()
        self._lock = threading.Lock()
        self._text, self._read_at = "", 0.0

    def text(self) -> str:
        """The metrics in the text format of Prometheus."""
        with self._lock:
            if not self._text or self._clock.now() - self._read_at >= _FRESH_S:
                self._text = exposition(self._samples())
                self._read_at = self._clock.now()
            return self._text

    def _samples(self) -> Iterator[MetricSample]:
        for name, collect in self._collectors.items():
            start_s, samples, problem = time.perf_counter(), list[MetricSample](), ""
            try:
                samples.extend(collect())
            except Exception as error:  # a driver's library raises anything, and the other collectors have values
                problem = describe(error)
            if problem and problem != self._problems.get(name):
                self._notify(f"collector `{name}`: {problem}")
            self._problems[name] = problem
            yield from samples
            yield exporter.COLLECTOR_SUCCESS.sample(not problem, name)
            yield exporter.COLLECTOR_SECONDS.sample(time.perf_counter() - start_s, name)

    def _run_samples(self) -> Iterator[MetricSample]:
        for run in self._watcher.facts():
            yield from run_samples(run)
        yield exporter.RUNS_UNREADABLE.sample(self._watcher.unreadable)
        yield exporter.RUNS_LEFT_OUT.sample(self._watcher.left_out)

    def _health_samples(self) -> Iterable[MetricSample]:
        if self._health is None or self._clock.now() - self._checked_at >= _HEALTH_EVERY_S:
            self._health, self._checked_at = self._check(), self._clock.now()
        return exporter.health_samples({each.check: each.verdict for each in self._health.results}, self._checked_at)


class _StoreQueue:
    """The job store of this machine."""

    def __init__(self) -> None:
        self._store: JobStore | None = None

    def run_dirs(self) -> Iterable[str]:
        store = self._open()
        return [] if store is None else [job.run_dir for job in store.search(states=_LIVE, uid=user_id())]

    def samples(self) -> Iterable[MetricSample]:
        store = self._open()
        if store is None:
            return ()
        live = [cluster_job(row) for row in store.search(states=_LIVE)]
        return queue_samples(store.counts(), live, drained_nodes=len(store.drains()))

    def _open(self) -> JobStore | None:
        if self._store is not None and self._store.is_replaced():
            self._store.close()
            self._store = None
        if self._store is None and is_there_a_store():
            self._store = open_store(store_url())
        return self._store


class _ClusterQueue:
    """The queue of a cluster, with the jobs of all its users; while it does not answer, they stay as they were."""

    def __init__(self, cluster: str, clock: Clock) -> None:
        self._backend, self._clock = backend_on(cluster).hurried(), clock
        self._jobs, self._nodes = list[ClusterJob](), list[NodeStatus]()
        self._silence: UnreachableError | None = None
        self._looked_at = -math.inf
        self._look()

    def run_dirs(self) -> Iterable[str]:
        self._look()
        return [str(job.run_dir) for job in self._jobs if job.run_dir is not None]

    def samples(self) -> Iterator[MetricSample]:
        self._look()
        reachable = self._silence is None
        live = [replace(job, reachable=reachable) for job in self._jobs if not job.state.is_final]
        drained = sum(node.state in ("draining", "drained") for node in self._nodes)
        asleep = [
            node.name for node in self._nodes if "power" in node.raw.lower()
        ]  # idle+powered_down, mixed+powering_up
        counts = Counter(job.state for job in self._jobs)
        yield from queue_samples(counts, live, drained_nodes=drained, asleep=asleep)
        if self._silence is not None:
            raise self._silence

    def _look(self) -> None:
        if self._clock.now() - self._looked_at < _QUEUE_EVERY_S:
            return
        self._looked_at = self._clock.now()
        try:
            self._jobs = self._backend.queue()
            self._nodes = self._backend.nodes()
            self._silence = None
        except UnreachableError as error:
            self._silence = error


def metrics_server(
    metrics: NodeMetrics,
    listen: str,
    *,
    token_file: Path | None = None,
    tls_cert: Path | None = None,
    tls_key: Path | None = None,
) -> exporter.MetricsServer:
    """A server that answers GET /metrics.

    It listens on `HOST:PORT`; port 0 takes a free one. Every request must have the token in `token_file`. The
    certificate is a PEM file, and so is its key, if that is another file.

    Raises:
        ArgumentError: other machines could connect without a token, or a file is not as it must be.
        PortInUseError: another program listens there.
    """
    hint = "add `--token-file FILE` and `--tls-cert FILE`, or listen on 127.0.0.1"
    address = listen_address(listen, token_file, hint=hint)
    if tls_key is not None and tls_cert is None:
        raise ArgumentError("a key needs its certificate", argument="tls_key", hint="add `--tls-cert FILE`")
    token = None if token_file is None else exporter.read_token(token_file)
    return exporter.MetricsServer(metrics.text, address, exporter.ServerSecurity(token, tls_cert, tls_key))


def write_metrics(
    metrics: NodeMetrics, path: Path, *, every_s: float | None = None, clock: Clock | None = None
) -> None:
    """Write the metrics to a file of node_exporter's textfile collector, once or again and again.

    Raises:
        ArgumentError: node_exporter does not read a file of that name.
    """
    if path.suffix != ".prom":
        raise ArgumentError(
            f"node_exporter reads no `{path.name}`", argument="textfile", hint=f"call it `{path.stem}.prom`"
        )
    clock = clock or SystemClock()
    write_atomic(path, metrics.text(), durable=False)
    while every_s is not None:
        clock.sleep(every_s)
        write_atomic(path, metrics.text(), durable=False)
