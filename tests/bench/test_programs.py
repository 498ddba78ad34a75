"""Other benchmark programs measure where they are installed; here they print what real ones printed elsewhere."""

from __future__ import annotations

import json
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from trainworks.errors import EnvironmentProblem
from trainworks.measure.bench.host_programs import measure_host_link, measure_mpi
from trainworks.measure.bench.measurement import Measurement, Quantity
from trainworks.measure.bench.node import read_part
from trainworks.record.measured.bench import BenchRequest, BenchSetting
from trainworks.worker.bench import pairs
from trainworks.worker.bench.collectives import measure_with_nccl_tests
from trainworks.worker.bench.pairs import RankPlace, measure_pairs

DATA = Path(__file__).parents[1] / "data" / "bench"


class Installed:
    """A folder of programs, first on the search path."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def add(self, name: str, script: str) -> None:
        """A shell script."""
        path = self._folder / name
        path.write_text(f"#!/bin/sh\n{script}\n", encoding="utf-8")
        path.chmod(0o755)

    def add_output(self, name: str, file: str, begins: str = "") -> None:
        """A program that prints a file."""
        self.add(name, f"printf '{begins}'; cat '{DATA / file}'")


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Installed:
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    return Installed(tmp_path)


def test_nvbandwidth_measures_the_host_links(installed: Installed) -> None:
    installed.add_output("nvbandwidth", "nvbandwidth.txt")
    found = [each for each in measure_host_link() if each.quantity is Quantity.HOST_LINK]
    assert {each.tool for each in found} == {"nvbandwidth v0.10.0"}
    assert found[0].subject == "gpu0"


def test_an_nvbandwidth_that_fails_says_why(installed: Installed) -> None:
    installed.add("nvbandwidth", "echo no CUDA-capable device is detected >&2; exit 1")
    with pytest.raises(EnvironmentProblem, match="no CUDA-capable device"):
        measure_host_link()


@pytest.fixture
def osu(installed: Installed) -> None:
    """OSU's programs, and an mpirun that starts one copy and drops its own options."""
    installed.add("mpirun", 'while [ "${1#osu_}" = "$1" ]; do shift; done; exec "$@"')
    for name in ("osu_latency", "osu_bw", "osu_allreduce"):
        installed.add_output(name, f"{name}.txt")


@pytest.mark.usefixtures("osu")
def test_osu_measures_mpi_with_the_figures_of_the_program_in_its_place() -> None:
    found = measure_mpi(["10.0.0.1", "10.0.0.2", "10.0.0.3"], full=False)
    assert all(each.tool.startswith("OSU micro-benchmarks ") for each in found)
    (latency,) = (each for each in found if each.quantity is Quantity.LINK_LATENCY)
    assert (latency.subject, latency.value) == ("10.0.0.1 <-> 10.0.0.3", pytest.approx(0.25e-6))
    *_, reduced = found
    assert (reduced.quantity, reduced.subject) == (Quantity.BUS_BANDWIDTH, "3 nodes")
    assert reduced.conditions["seconds"] == pytest.approx(13097.54e-6)
    assert reduced.value == pytest.approx(8388608 / 13097.54e-6 * 4 / 3)


def printed_parts(capsys: pytest.CaptureFixture[str]) -> dict[str, tuple[Measurement, ...]]:
    """The parts that a program of the worker printed, as the program of the node reads them."""
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    return {line["part"]: read_part(line).figures for line in lines}


def test_nccl_tests_measure_what_is_installed_and_leave_the_rest(
    installed: Installed, capsys: pytest.CaptureFixture[str]
) -> None:
    installed.add_output("all_reduce_perf", "all_reduce_perf.txt", "# nccl-tests version 2.18.3 nccl-headers=1\n")
    installed.add("broadcast_perf", "echo Test NCCL failure >&2; exit 3")
    settings = (BenchSetting(), BenchSetting(name="NCCL_ALGO=Tree", env={"NCCL_ALGO": "Tree"}))
    request = BenchRequest(kinds=("collectives",), settings=settings)
    left = measure_with_nccl_tests(request, ["node7"], 8)
    assert left.done == ("collectives/all_reduce@default", "collectives/all_reduce@NCCL_ALGO=Tree")
    found = printed_parts(capsys)
    assert tuple(found) == left.done
    first, *_ = found[left.done[1]]
    assert (first.quantity, first.subject) == (Quantity.BUS_BANDWIDTH, "node7, 8 ranks")
    assert first.tool == "all_reduce of nccl-tests 2.18.3"
    assert (first.conditions["setting"], first.conditions["transport"]) == ("NCCL_ALGO=Tree", "nccl")
    assert first.value == pytest.approx(first.conditions["bytes"] / first.conditions["seconds"] * 7 / 4, rel=0.1)


def test_nccl_tests_run_under_the_variables_of_a_setting_on_every_node(
    installed: Installed, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SKYPILOT_NODE_IPS", "10.0.0.1\n10.0.0.2")
    installed.add("mpirun", f'echo "# $*"; cat {DATA / "all_reduce_perf.txt"}')
    installed.add("all_reduce_perf", "exit 1")
    setting = BenchSetting(name="NCCL_ALGO=Ring", env={"NCCL_ALGO": "Ring"})
    measure_with_nccl_tests(BenchRequest(kinds=("collectives",), settings=(setting,)), ["a", "b"], 8)
    text = json.loads(capsys.readouterr().out.splitlines()[0])["figures"][0]["output"]
    started = "-np 16 --host 10.0.0.1:8,10.0.0.2:8 env NCCL_ALGO=Ring all_reduce_perf -b 8 -e 16M -f 8 -g 1"
    assert text.splitlines()[0] == f"# {started}"


def test_nccl_tests_without_mpi_leave_several_nodes_to_what_is_built_in(
    installed: Installed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SKYPILOT_NODE_IPS", "10.0.0.1\n10.0.0.2")
    installed.add("mpirun", f"cat {DATA / 'all_reduce_perf.txt'}; cat {DATA / 'all_reduce_perf.txt'}")
    installed.add("all_reduce_perf", "exit 1")
    left = measure_with_nccl_tests(BenchRequest(kinds=("collectives",)), ["a", "b"], 8)
    assert left.done == ()


def test_an_output_that_ends_too_early_is_no_figure() -> None:
    item = {"output": "# OSU MPI Latency Test v5.8\n", "subject": "a <-> b", "version": "", "conditions": {}}
    part = read_part({"part": "network@default", "figures": [item], "skipped": ""})
    assert (part.figures, part.skipped) == ((), "the output ends before its first result")


def link_between_two(built_in: bool = False) -> list[Measurement]:
    """The figures of two nodes, whose ranks are threads here."""
    store = dist.HashStore()

    def measured(node: int) -> list[dict[str, object]]:
        place = RankPlace(node, 0, node, ("a", "b"), 1, torch.device("cpu"), store)
        return measure_pairs(place, "default", full=False, built_in=built_in)

    with ThreadPoolExecutor(2) as ranks:
        figures, _ = ranks.map(measured, range(2))
    return list(read_part({"part": "network@default", "figures": figures, "skipped": ""}).figures)


@pytest.fixture
def no_barrier(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dist, "barrier", lambda: None)  # threads of one process are no process group


@pytest.mark.usefixtures("no_barrier")
def test_perftest_measures_the_links_of_rdma_devices(
    installed: Installed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for device, state in {"mlx5_0": "1: DOWN", "mlx5_3": "4: ACTIVE"}.items():
        port = tmp_path / "infiniband" / device / "ports" / "1"
        port.mkdir(parents=True)
        (port / "state").write_text(state)
    monkeypatch.setattr(pairs, "_DEVICES", tmp_path / "infiniband")
    rate = f'[ "$1" = --version ] && echo "Version: 6.06" && exit; [ "$2" = mlx5_3 ] && cat {DATA}/ib_write_bw.txt'
    installed.add("ib_write_bw", rate)
    installed.add_output("ib_write_lat", "ib_write_lat.txt")
    found = link_between_two()
    assert {each.subject for each in found} == {"a <-> b"}
    assert {each.tool for each in found} == {"ib_write_bw 6.06", "ib_write_lat 6.06"}
    assert {each.conditions["transport"] for each in found} == {"rdma"}
    rates = [each for each in found if each.quantity is Quantity.LINK_BANDWIDTH]
    assert {each.conditions["direction"] for each in rates} == {"a to b", "b to a"}


@pytest.fixture
def two_switches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """PCI folders of a machine: mlx5_0, mlx5_2 and GPU `near` below one switch, mlx5_10 and GPU `far` below another."""
    for device, switch in {"mlx5_0": "a", "mlx5_2": "a", "mlx5_10": "b"}.items():
        card = tmp_path / "pci" / switch / device
        (tmp_path / "infiniband" / device / "ports" / "1").mkdir(parents=True)
        (tmp_path / "infiniband" / device / "ports" / "1" / "state").write_text("4: ACTIVE")
        card.mkdir(parents=True)
        (tmp_path / "infiniband" / device / "device").symlink_to(card)
    monkeypatch.setattr(pairs, "_DEVICES", tmp_path / "infiniband")
    return tmp_path / "pci"


@pytest.mark.parametrize(
    ("rule", "names"),
    [
        ("", ["mlx5_0", "mlx5_2", "mlx5_10"]),
        ("mlx5_1", ["mlx5_10"]),
        ("=mlx5_1,mlx5_2:1", ["mlx5_2"]),
        ("^mlx5_1", ["mlx5_0", "mlx5_2"]),
        ("^=mlx5_0,mlx5_1", ["mlx5_2", "mlx5_10"]),
    ],
)
@pytest.mark.usefixtures("two_switches")
def test_rdma_devices_are_those_of_nccl_in_natural_order(
    rule: str, names: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NCCL_IB_HCA", rule)
    assert pairs.rdma_devices() == names


@pytest.mark.parametrize(
    ("gpu", "local_rank", "device"),
    [("a/gpu0", 0, "mlx5_0"), ("a/gpu1", 1, "mlx5_2"), ("b/gpu2", 2, "mlx5_10"), (None, 2, "mlx5_10")],
)
def test_a_rank_measures_the_rdma_device_next_to_its_gpu(
    two_switches: Path, gpu: str | None, local_rank: int, device: str
) -> None:
    devices = pairs.rdma_devices()
    assert pairs.rail_device(devices, two_switches / gpu if gpu else None, local_rank) == device


@pytest.mark.skipif(shutil.which("iperf3") is None, reason="iperf3 is not installed")
@pytest.mark.usefixtures("no_barrier")
@pytest.mark.parametrize("built_in", [False, True], ids=["iperf3", "built-in"])
def test_iperf3_measures_tcp_unless_the_built_in_programs_are_asked_for(
    built_in: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pairs, "_START_S", 120.0)  # a server that listens late is waited for
    sent, received, latency = sorted(link_between_two(built_in), key=lambda each: each.quantity == "link_latency")
    for each in (sent, received):
        assert each.tool.startswith("trainworks" if built_in else "iperf")
        assert 1e6 < each.value < 1e12
    assert latency.tool.startswith("trainworks")


@pytest.mark.usefixtures("no_barrier")
def test_a_program_that_fails_leaves_the_link_to_the_built_in_one(
    installed: Installed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pairs, "_START_S", 0.3)
    installed.add("iperf3", "exit 1")
    assert all(each.tool.startswith("trainworks") for each in link_between_two())
