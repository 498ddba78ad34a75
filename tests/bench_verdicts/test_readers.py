"""Readers of benchmark output: whole, cut off, mixed, and of something else.

fio 3.33, iperf3 3.12 and HPCC 1.5.0 ran on a virtual machine of two cores; their output is whole. nccl-tests,
rccl-tests, perftest, OSU, STREAM, mdtest, HPL and nvbandwidth follow public logs and issues: excerpts, with ranks left
out and hosts renamed. By hand: one pair of `nvbandwidth.txt` is halved, `nvbandwidth.json` follows the schema of its
program, and figures of `nccl_old.txt` are adjusted to add up.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from trainworks.catalog.bounds import Operation, bus_factor
from trainworks.errors import UsageError
from trainworks.measure.bench.measurement import Measurement, Quantity
from trainworks.measure.bench.readers.output import ToolOutput
from trainworks.measure.bench.readers.registry import read_file, read_output

DATA = Path(__file__).parents[1] / "data" / "bench"

FIGURES: dict[str, tuple[Quantity, float, dict[str, str | float]]] = {
    "all_reduce_perf.txt": (Quantity.BUS_BANDWIDTH, 42.34e9, {"operation": "all_reduce", "ranks": 4, "nodes": 2}),
    "all_gather_perf.txt": (Quantity.BUS_BANDWIDTH, 25.95e9, {"operation": "all_gather", "ranks": 4, "nodes": 1}),
    "rccl_all_reduce_perf.txt": (Quantity.BUS_BANDWIDTH, 365.76e9, {"operation": "all_reduce", "bytes": 268435456}),
    "nccl_old.txt": (Quantity.BUS_BANDWIDTH, 75.23e9, {"operation": "all_reduce"}),
    "ib_write_bw.txt": (Quantity.LINK_BANDWIDTH, 23317.65 * 2**20, {"bytes": 8388608}),
    "ib_write_bw_gbits.txt": (Quantity.LINK_BANDWIDTH, 111.71e9 / 8, {"direction": "both"}),
    "ib_write_lat.txt": (Quantity.LINK_LATENCY, 1.46e-6, {"bytes": 2}),
    "osu_bw.txt": (Quantity.LINK_BANDWIDTH, 93130.52e6, {"bytes": 33554432}),
    "osu_latency.txt": (Quantity.LINK_LATENCY, 275.19e-6, {"bytes": 4194304}),
    "osu_allreduce.txt": (Quantity.ALGORITHM_BANDWIDTH, 8388608 / 13097.54e-6, {"operation": "all_reduce"}),
    "fio.json": (Quantity.STORAGE_OPERATIONS, 1015.873016, {"block": "1M", "operation": "write"}),
    "fio_randread.terse": (Quantity.STORAGE_OPERATIONS, 41265.0, {"operation": "read"}),
    "fio_write.terse": (Quantity.STORAGE_OPERATIONS, 653.0, {"operation": "write"}),
    "iperf3.txt": (Quantity.LINK_BANDWIDTH, 12.9e9 / 8, {"transport": "tcp"}),
    "iperf3.json": (Quantity.LINK_BANDWIDTH, 1075803924.3, {"streams": 1}),
    "stream.txt": (Quantity.MEMORY_BANDWIDTH, 48012.9e6, {"threads": 72}),
    "mdtest.txt": (Quantity.METADATA_OPERATIONS, 6168.094, {"operation": "tree removal"}),
    "mdtest_iterations.txt": (Quantity.METADATA_OPERATIONS, 4249941.814, {"operation": "directory stat"}),
    "nvbandwidth.txt": (Quantity.LINK_BANDWIDTH, 395.23e9, {"device": "NVIDIA H200"}),
    "nvbandwidth.json": (Quantity.HOST_LINK, 55.61e9, {}),
    "hpl.txt": (Quantity.HPL, 17.533e9, {"n": 28000}),
    "hpcc.txt": (Quantity.LINK_BANDWIDTH, 0.333615e9, {"transport": "mpi"}),
}
"""The last measurement of each file."""


def read_text(text: str, name: str = "bench.log") -> list[Measurement]:
    return read_output(ToolOutput(name, text))


def test_every_file_is_tested() -> None:
    assert {path.name for path in DATA.iterdir()} == set(FIGURES)


@pytest.mark.parametrize("name", FIGURES)
def test_a_figure_has_base_units_and_its_conditions(name: str) -> None:
    quantity, value, conditions = FIGURES[name]
    last = read_file(DATA / name)[-1]
    assert last.quantity is quantity
    assert last.value == pytest.approx(value, rel=1e-6)
    assert conditions.items() <= dict(last.conditions).items()
    assert last.tool


@pytest.mark.parametrize("name", FIGURES)
def test_an_output_cut_in_its_middle_is_refused_with_its_last_line(name: str) -> None:
    text = (DATA / name).read_text(encoding="utf-8")
    cut = text[: len(text) // 2]
    try:
        kept = read_text(cut)
    except UsageError as error:
        assert error.place is not None
        assert error.place.startswith("bench.log:")
    else:  # a program without an end that it prints: rows that are there are whole
        whole = read_file(DATA / name)
        assert len(kept) < len(whole)
        assert name in ("osu_bw.txt", "osu_latency.txt", "osu_allreduce.txt", "rccl_all_reduce_perf.txt")


@pytest.mark.parametrize("text", ["", "hello\n", "{}", '{"a": 1}', "\x00\xff", "[1, 2]", "3;not fio"])
def test_something_else_is_refused_with_the_programs_that_are_read(text: str) -> None:
    with pytest.raises(UsageError, match="not the output of a known benchmark") as caught:
        read_text(text)
    assert "nccl-tests" in (caught.value.hint or "")
    assert caught.value.place == "bench.log:1"


def test_two_programs_in_one_file_are_refused_at_the_second() -> None:
    first = (DATA / "stream.txt").read_text(encoding="utf-8")
    second = (DATA / "iperf3.txt").read_text(encoding="utf-8")
    with pytest.raises(UsageError, match="STREAM and of iperf3") as caught:
        read_text(first + second)
    assert caught.value.place == f"bench.log:{len(first.splitlines()) + 3}"


def test_ranks_that_were_not_joined_are_refused() -> None:
    text = (DATA / "all_reduce_perf.txt").read_text(encoding="utf-8").replace("Rank  2", "Rank  0")
    with pytest.raises(UsageError, match="2 programs have a rank 0") as caught:
        read_text(text)
    assert "MPI=1" in (caught.value.hint or "")


def test_wrong_values_of_a_collective_are_an_error_at_their_line() -> None:
    text = (DATA / "all_gather_perf.txt").read_text(encoding="utf-8").replace("25.95      0", "25.95      7")
    with pytest.raises(UsageError, match="wrong values") as caught:
        read_text(text)
    assert caught.value.place == "bench.log:12"


def test_a_wrong_solution_of_hpl_is_an_error() -> None:
    with pytest.raises(UsageError, match="solution of the linear system is wrong"):
        read_text((DATA / "hpl.txt").read_text(encoding="utf-8").replace("PASSED", "FAILED"))


def test_a_failed_job_of_fio_is_an_error() -> None:
    data = json.loads((DATA / "fio.json").read_text(encoding="utf-8"))
    data["jobs"][0]["error"] = 28
    with pytest.raises(UsageError, match="failed with error 28"):
        read_text(json.dumps(data))


def test_a_figure_of_another_type_is_an_error_and_no_traceback() -> None:
    data = json.loads((DATA / "fio.json").read_text(encoding="utf-8"))
    data["jobs"] = [{"jobname": "x", "write": {"io_bytes": 1, "bw_bytes": None}}]
    with pytest.raises(UsageError, match="has another form"):
        read_text(json.dumps(data))


def test_warnings_before_the_json_are_skipped() -> None:
    text = "fio: this platform does not support process shared mutexes\n" + (DATA / "fio.json").read_text("utf-8")
    assert read_text(text)


def test_megabytes_of_perftest_are_mebibytes() -> None:
    assert read_file(DATA / "ib_write_bw.txt")[-1].value * 8 / 1e9 == pytest.approx(195.6, abs=0.1)


def test_two_tests_of_nccl_one_after_the_other_are_both_read() -> None:
    names = ("all_reduce_perf.txt", "all_gather_perf.txt")
    found = read_text("".join((DATA / name).read_text(encoding="utf-8") for name in names))
    assert [each.conditions["operation"] for each in found] == [*["all_reduce"] * 3, "all_gather"]
    assert found[-1].conditions["ranks"] == 4


@pytest.mark.parametrize("between", ["", "# nccl-tests version 2.18.3\n"])
def test_tables_of_nccl_without_their_average_are_read(between: str) -> None:
    names = ("all_reduce_perf.txt", "all_gather_perf.txt")
    tables = [(DATA / name).read_text(encoding="utf-8").partition("# Out of bounds")[0] for name in names]
    found = read_text(between.join(tables))
    assert [each.conditions["operation"] for each in found] == [*["all_reduce"] * 3, "all_gather"]
    assert [each.value for each in found] == [each.value for name in names for each in read_file(DATA / name)]


def nccl_row(algbw: float, busbw: float, *, redop: str = "sum", ranks: int = 0) -> str:
    """A table of nccl-tests with one row."""
    devices = [f"#  Rank {rank} Group 0 Pid 7 on node-0 device {rank} [0x10] NVIDIA H100" for rank in range(ranks)]
    head = "#       size         count    type   redop    root     time   algbw   busbw #wrong"
    return "\n".join([*devices, head, f"67108864 16777216 float {redop} -1 1568.3 {algbw:.2f} {busbw:.2f} 0"])


@pytest.mark.parametrize("operation", ["all_reduce", "reduce_scatter", "all_gather"])
@pytest.mark.parametrize("ranks", [2, 3, 8, 64])
def test_the_bandwidths_of_a_collective_tell_which_it_is(operation: Operation, ranks: int) -> None:
    redop = "none" if operation == "all_gather" else "sum"
    table = nccl_row(42.79, 42.79 * bus_factor(operation, ranks), redop=redop, ranks=ranks)
    assert [each.conditions["operation"] for each in read_text(table)] == [operation]


@pytest.mark.parametrize(
    ("ranks", "ratio", "gives"),
    [
        (0, 0.44, "all_reduce 1 to 2, reduce_scatter 0.5 to 1, reduce 1"),
        (8, 0.44, "all_reduce 1.75, reduce_scatter 0.875, reduce 1 on 8 ranks"),
        (8, 3.5, "all_reduce 1.75"),
    ],
)
def test_bandwidths_that_fit_no_collective_are_refused_with_the_ratios_that_would(
    ranks: int, ratio: float, gives: str
) -> None:
    with pytest.raises(UsageError, match=f"busbw is {ratio} of algbw, and fits no collective") as caught:
        read_text(nccl_row(100, 100 * ratio, ranks=ranks))
    assert gives in caught.value.message
    assert caught.value.place == f"bench.log:{ranks + 2}"


def test_a_bus_bandwidth_beside_none_of_the_algorithm_is_refused() -> None:
    with pytest.raises(UsageError, match="busbw is inf of algbw, and fits no collective"):
        read_text(nccl_row(0.0, 5.0))


def test_bandwidths_are_held_against_the_collective_of_the_program() -> None:
    with pytest.raises(UsageError, match=r"fits no collective: all_gather 0\.875 on 8 ranks"):
        read_text("# all_gather_perf\n" + nccl_row(100, 175, redop="none", ranks=8))


@pytest.mark.parametrize(
    ("first", "second"), [("fio.json", "fio.json"), ("iperf3.txt", "fio.json"), ("iperf3.txt",) * 2]
)
def test_a_second_output_in_a_file_is_refused_where_it_begins(first: str, second: str) -> None:
    start, follows = ((DATA / name).read_text(encoding="utf-8").rstrip() + "\n" for name in (first, second))
    with pytest.raises(UsageError) as caught:
        read_text(start + follows)
    assert caught.value.place == f"bench.log:{len(start.splitlines()) + 1}"
