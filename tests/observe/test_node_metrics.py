"""Metrics of a node: queue, GPUs and health; a collector that fails hides no other."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pynvml
import pytest

from tests.fakes import FakeClock, spec
from tests.health.machine import FakeNvml, gpu, healthy
from tests.observe.prometheus import values
from trainworks.api.observing import exporter
from trainworks.api.observing.exporter import NodeMetrics
from trainworks.backends.backend import NodeStatus
from trainworks.backends.slurm.backend import SlurmBackend
from trainworks.config.engines import Slurm
from trainworks.errors import ArgumentError, UnreachableError, UsageError
from trainworks.jobs.cluster_job import ClusterJob
from trainworks.jobs.job_row import Placement
from trainworks.jobs.state import JobState
from trainworks.jobs.store import JobStore
from trainworks.measure.health.node_health import check_node
from trainworks.observe.exporter import FAMILIES
from trainworks.observe.metrics.family import MetricFamily, exposition
from trainworks.observe.metrics.gpus import GPU_FAMILIES, GpuReader

BUSY: dict[str, Any] = {
    "nvmlDeviceGetUUID": "GPU-1",
    "nvmlDeviceGetClockInfo": 1755,
    "nvmlDeviceGetPowerUsage": 612_345,
    "nvmlDeviceGetTotalEnergyConsumption": 9_000_000,
    "nvmlDeviceGetUtilizationRates": SimpleNamespace(gpu=97, memory=41),
    "nvmlDeviceGetMemoryInfo": SimpleNamespace(total=80 * 2**30, used=60 * 2**30, free=20 * 2**30),
    "nvmlDeviceGetEncoderUtilization": [0, 167000],
    "nvmlDeviceGetDecoderUtilization": [0, 167000],
    "nvmlDeviceGetPcieReplayCounter": 3,
    "nvmlDeviceGetCurrPcieLinkGeneration": 5,
    "nvmlDeviceGetViolationStatus": SimpleNamespace(referenceTime=1, violationTime=2_000_000_000),
    "nvmlDeviceGetPerformanceState": 0,
    "nvmlDeviceGetComputeMode": 0,
}
NOT_THERE = "nvmlDeviceGetFanSpeed"


class BusyNvml(FakeNvml):
    """H100s at work; activities between two scrapes are those of `activity`."""

    def __init__(self, count: int) -> None:
        super().__init__([gpu(index) for index in range(count)])
        self.activity = dict.fromkeys(range(100), 50.0)
        self.freed = 0
        self.xids: list[tuple[int, int]] = []
        """GPU and code of XIDs that nothing has read."""

    def nvmlEventSetCreate(self) -> Any:  # noqa: N802
        return object()

    def nvmlDeviceRegisterEvents(self, handle: int, kinds: int, events: Any) -> None:  # noqa: N802
        """All GPUs have the events."""

    def nvmlEventSetWait_v2(self, events: Any, timeout_ms: int) -> Any:  # noqa: N802
        if not self.xids:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_TIMEOUT)
        gpu_index, code = self.xids.pop(0)
        return SimpleNamespace(device=gpu_index, eventData=code)

    def nvmlDeviceGetIndex(self, handle: int) -> int:  # noqa: N802
        return handle

    def nvmlGpmQueryDeviceSupport(self, handle: int) -> Any:  # noqa: N802
        return SimpleNamespace(isSupportedDevice=1)

    def nvmlGpmSampleAlloc(self) -> Any:  # noqa: N802
        return pynvml.c_nvmlGpmSample_t()

    def nvmlGpmSampleGet(self, handle: int, sample: Any) -> Any:  # noqa: N802
        return sample

    def nvmlGpmSampleFree(self, sample: Any) -> None:  # noqa: N802
        self.freed += 1

    def nvmlGpmMetricsGet(self, request: Any) -> Any:  # noqa: N802
        for place in range(request.numMetrics):
            request.metrics[place].value = self.activity[request.metrics[place].metricId]
        return request

    def __getattr__(self, function: str) -> Callable[..., Any]:
        if function == NOT_THERE:
            return lambda handle: self._refuse()
        return (lambda handle, *others: BUSY[function]) if function in BUSY else super().__getattr__(function)


def of_gpu(text: str, index: int) -> dict[str, float]:
    """Figures of one GPU, by the name without `DCGM_FI_`."""
    found = values(text).items()
    return {name.partition("{")[0].removeprefix("DCGM_FI_"): each for name, each in found if f'gpu="{index}"' in name}


def test_every_family_is_named_once_and_explained() -> None:
    families = [family for group in FAMILIES.values() for family in group]
    assert len({family.name for family in families}) == len(families)
    assert all(family.help.endswith(".") and family.source for family in families)


def test_gpus_have_at_least_35_metrics_in_the_words_of_dcgm() -> None:
    assert len([family for family in GPU_FAMILIES if family.name.startswith("DCGM_FI_")]) >= 35


def test_a_gpu_is_read_in_the_units_of_dcgm() -> None:
    found = of_gpu(exposition(GpuReader(BusyNvml(8)).samples()), 7)
    assert found["DEV_POWER_USAGE"] == pytest.approx(612.345)
    assert (found["DEV_FB_USED"], found["DEV_FB_TOTAL"]) == (60 * 1024, 80 * 1024)
    assert (found["DEV_GPU_TEMP"], found["DEV_SLOWDOWN_TEMP"], found["DEV_MEMORY_TEMP"]) == (31, 87, 40)
    assert (found["DEV_CORRECTABLE_REMAPPED_ROWS"], found["DEV_UNCORRECTABLE_REMAPPED_ROWS"]) == (2, 1)
    assert found["DEV_THERMAL_VIOLATION"] == 2_000_000_000


def test_a_figure_that_the_gpu_does_not_have_has_no_sample() -> None:
    assert "DEV_FAN_SPEED" not in of_gpu(exposition(GpuReader(BusyNvml(1)).samples()), 0)


def test_activity_is_a_mean_between_two_scrapes() -> None:
    nvml = BusyNvml(1)
    reader = GpuReader(nvml)
    first = of_gpu(exposition(reader.samples()), 0)
    second = of_gpu(exposition(reader.samples()), 0)
    assert "PROF_SM_ACTIVE" not in first
    assert (second["PROF_SM_ACTIVE"], second["PROF_PIPE_TENSOR_ACTIVE"]) == (0.5, 0.5)
    assert second["PROF_NVLINK_TX_BYTES"] == 50 * 2**20
    assert nvml.freed == 1


def test_the_last_xid_of_a_gpu_stays() -> None:
    nvml = BusyNvml(2)
    reader = GpuReader(nvml)
    assert of_gpu(exposition(reader.samples()), 1)["DEV_XID_ERRORS"] == 0
    nvml.xids += [(1, 31), (1, 79)]
    for _ in range(2):
        text = exposition(reader.samples())
        assert (of_gpu(text, 0)["DEV_XID_ERRORS"], of_gpu(text, 1)["DEV_XID_ERRORS"]) == (0, 79)


def test_a_driver_without_events_has_no_xid() -> None:
    nvml = BusyNvml(1)
    nvml.nvmlEventSetCreate = nvml._refuse  # type: ignore[method-assign]
    assert "DEV_XID_ERRORS" not in of_gpu(exposition(GpuReader(nvml).samples()), 0)


def test_a_lost_gpu_is_counted_and_the_others_are_read() -> None:
    nvml = BusyNvml(2)
    nvml.gpus[0]["lost"] = True
    text = exposition(GpuReader(nvml).samples())
    assert values(text)["trainworks_gpus_lost"] == 1
    assert (of_gpu(text, 0), len(of_gpu(text, 1)) > 35) == ({}, True)


def test_a_machine_without_a_driver_has_no_gpu_metrics_until_it_has_one() -> None:
    nvml = BusyNvml(1)
    nvml.broken = "no driver"
    reader = GpuReader(nvml)
    assert list(reader.samples()) == []
    nvml.broken = ""
    assert list(reader.samples())


def test_the_queue_is_counted_by_state_with_what_jobs_hold(store: JobStore, tmp_path: Path, clock: FakeClock) -> None:
    for number in range(3):
        store.add(spec(), run_dir=f"/runs/{number}", owner="ada", engine="local", now=clock.now() + number)
    first = store.get(1)
    assert first is not None
    store.start(first, [Placement("node1", 4.0, (0, 1)), Placement("node2", 4.0, (3,))], now=clock.now())
    store.drain("node3", "broken", now=clock.now())
    found = values(NodeMetrics(["queue"], tmp_path, clock=clock).text())
    expected = {"jobs": 3, "jobs_pending": 2, "jobs_configuring": 1, "jobs_gpus_alloc": 3, "jobs_cpus_alloc": 8}
    expected |= {"jobs_nodes_alloc": 2, "nodes_drain": 1}
    assert {name: found[f"trainworks_{name}"] for name in expected} == expected
    assert found["trainworks_queue_oldest_submission_timestamp_seconds"] == clock.now() + 1
    held = [name for name in found if name.startswith("trainworks_job_node_info")]
    assert [('node="node1",job_id="1"' in name, 'team=""' in name) for name in held] == [(True, True), (False, True)]


def test_a_job_names_its_team(store: JobStore, tmp_path: Path, clock: FakeClock) -> None:
    clusters = ['{"engine": "slurm", "slurm": {"account": "vision"}}', '{"kubernetes": {"queue": "speech"}}', None]
    for number, cluster in enumerate(clusters):
        store.add(spec(), run_dir=f"/runs/{number}", owner="ada", engine="local", now=clock.now(), cluster=cluster)
        job = store.get(number + 1)
        assert job is not None
        store.start(job, [Placement(f"node{number}", 1.0)], now=clock.now())
    names = "".join(values(NodeMetrics(["queue"], tmp_path, clock=clock).text()))
    teams = dict(re.findall(r'node="(node\d)".*?team="(\w*)"', names))
    assert teams == {"node0": "vision", "node1": "speech", "node2": ""}


def test_a_store_that_does_not_answer_fails_its_collector_alone(
    tmp_path: Path, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRAINWORKS_STORE", f"sqlite:///{tmp_path / 'missing' / 'jobs.db'}")
    said: list[str] = []
    metrics = NodeMetrics(["queue", "gpus"], tmp_path, clock=clock, nvml=BusyNvml(1), notify=said.append)
    found = values(metrics.text())
    success = 'trainworks_exporter_collector_success{collector="%s"}'
    assert (found[success % "queue"], found[success % "gpus"]) == (0, 1)
    clock.sleep(2)
    metrics.text()
    assert [message.partition(":")[0] for message in said] == ["collector `queue`"]


def test_an_error_that_nobody_foresaw_fails_its_collector_alone(tmp_path: Path, clock: FakeClock) -> None:
    nvml = BusyNvml(1)
    nvml.activity = {}  # a library that has changed
    metrics = NodeMetrics(["gpus", "fabric"], tmp_path, clock=clock, nvml=nvml, root=tmp_path)
    metrics.text()
    clock.sleep(2)
    found = values(metrics.text())
    success = 'trainworks_exporter_collector_success{collector="%s"}'
    assert (found[success % "gpus"], found[success % "fabric"]) == (0, 1)


def test_a_health_check_is_a_nagios_code_and_is_read_again_after_five_minutes(tmp_path: Path, clock: FakeClock) -> None:
    machine = healthy(tmp_path)
    metrics = NodeMetrics(["health"], tmp_path, clock=clock, check=lambda: check_node(machine.view()))
    status = 'trainworks_health_check_status{check="xid"}'
    assert values(metrics.text())[status] == 0
    machine.log.append("[  999.0] NVRM: Xid (PCI:0000:01:00): 79, pid=1, GPU has fallen off the bus.")
    clock.sleep(100)
    assert values(metrics.text())[status] == 0
    clock.sleep(201)
    assert values(metrics.text())[status] == 2


def test_several_readers_within_a_second_get_one_reading(tmp_path: Path, clock: FakeClock) -> None:
    metrics = NodeMetrics(["gpus"], tmp_path, clock=clock, nvml=BusyNvml(1))
    assert metrics.text() == metrics.text()


def test_an_unknown_collector_is_refused_with_the_nearest() -> None:
    with pytest.raises(ArgumentError, match="no collector `gpu`") as caught:
        NodeMetrics(["gpu"])
    assert "gpus" in str(caught.value.hint)


def test_label_values_and_help_are_escaped_and_a_doubled_series_counts_once() -> None:
    family = MetricFamily("up", "Two\nlines \\.", labels=("name",))
    text = exposition([family.sample(1, 'a"b\\c\nd'), family.sample(float("inf"), "x"), family.sample(2, "x")])
    assert text == ('# HELP up Two lines \\\\.\n# TYPE up gauge\nup{name="a\\"b\\\\c\\nd"} 1\nup{name="x"} +Inf\n')


def test_a_scheduler_that_stops_answering_leaves_its_jobs_and_says_so(
    folder: Path, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = ClusterJob(
        id="7", name="lm-1", owner="alice", team="", state=JobState.RUNNING, held=False, submitted_at=5.0, nodes=("n1",)
    )
    answers: list[list[ClusterJob] | UnreachableError] = [[job], UnreachableError("slurmctld does not answer")]
    said: list[str] = []

    class Silent(SlurmBackend):
        def queue(self) -> list[ClusterJob]:
            answer = answers[0] if len(answers) == 1 else answers.pop(0)
            if isinstance(answer, UnreachableError):
                raise answer
            return answer

        def nodes(self) -> list[NodeStatus]:
            asleep = NodeStatus(name="n3", state="down", raw="idle+cloud+powered_down")
            return [NodeStatus(name="n1", state="draining"), NodeStatus(name="n2", state="free", raw="idle"), asleep]

    monkeypatch.setattr(exporter, "backend_on", lambda cluster: Silent(Slurm()))
    metrics = NodeMetrics(["queue"], folder, cluster="slurm", clock=clock, notify=said.append)
    found = values(metrics.text())
    assert (found["trainworks_jobs_running"], found["trainworks_jobs_unreachable"]) == (1, 0)
    assert found["trainworks_nodes_drain"] == 1
    assert {name for name in found if "powered_down" in name} == {'trainworks_node_powered_down{node="n3"}'}
    clock.sleep(60)
    found = values(metrics.text())
    assert (found["trainworks_jobs_running"], found["trainworks_jobs_unreachable"]) == (1, 1)
    assert found['trainworks_exporter_collector_success{collector="queue"}'] == 0
    assert said == ["collector `queue`: slurmctld does not answer"]


def test_a_backend_that_does_not_list_the_jobs_of_others_is_refused(folder: Path) -> None:
    with pytest.raises(UsageError, match="local does not list the jobs of other users"):
        NodeMetrics(["queue"], folder, cluster="local")
