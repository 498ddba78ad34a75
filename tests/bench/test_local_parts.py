"""What one node measures alone: memory, storage, devices."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

from trainworks.errors import EnvironmentProblem, UsageError
from trainworks.measure.bench import storage
from trainworks.measure.bench.host_programs import (
    CACHE_MULTIPLE,
    cache_bytes,
    compiled,
    cpu_list,
    measure_mpi,
    measure_triad,
    numa_nodes,
)
from trainworks.measure.bench.measurement import Quantity
from trainworks.measure.bench.storage import JOBS, fio_arguments, measure_storage

POSSIBLE_MEMORY = (1e8, 2e13)
"""B/s between which every host memory lies."""


def cache_tree(folder: Path) -> Path:
    """Four processors: two share each last-level cache of 32 MiB."""
    for cpu in range(4):
        levels = [("1", "Data", "32K", f"{cpu}"), ("1", "Instruction", "64K", f"{cpu}"), ("3", "Unified", "32768K", "")]
        for index, (level, kind, size, shared) in enumerate(levels):
            place = folder / f"cpu{cpu}" / "cache" / f"index{index}"
            place.mkdir(parents=True)
            (place / "level").write_text(f"{level}\n")
            (place / "type").write_text(f"{kind}\n")
            (place / "size").write_text(f"{size}\n")
            (place / "shared_cpu_list").write_text(shared or ("0-1\n" if cpu < 2 else "2-3\n"))
    return folder


def test_last_level_caches_are_counted_once(tmp_path: Path) -> None:
    assert cache_bytes([0, 1, 2, 3], cache_tree(tmp_path)) == 64 << 20
    assert cache_bytes([0, 1], tmp_path) == 32 << 20


def test_a_list_of_processors_is_read_as_the_kernel_writes_it() -> None:
    assert cpu_list("0-2,8\n") == {0, 1, 2, 8}


def test_the_triad_follows_the_rule_of_stream_on_every_numa_node() -> None:
    found = measure_triad(full=False)
    assert [each.subject for each in found] == list(numa_nodes())
    for each, cpus in zip(found, numa_nodes().values(), strict=True):
        assert each.quantity is Quantity.MEMORY_BANDWIDTH
        assert POSSIBLE_MEMORY[0] < each.value < POSSIBLE_MEMORY[1]
        assert each.conditions["bytes"] >= CACHE_MULTIPLE * cache_bytes(cpus)
        assert each.conditions["threads"] == len(cpus)


def test_a_missing_compiler_is_said() -> None:
    with pytest.raises(EnvironmentProblem, match="none of no-such-cc is installed"):
        compiled("stream_triad", compilers=("no-such-cc",))


@pytest.mark.parametrize("tool", ["fio", "own", "built-in"])
def test_storage_is_measured_as_training_uses_it_and_left_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tool: str
) -> None:
    if tool == "fio" and shutil.which("fio") is None:
        pytest.skip("fio is not installed")
    monkeypatch.setattr(storage, "_BYTES", 8 << 20)
    monkeypatch.setattr(storage, "_SECONDS", 0.2)
    if tool == "own":
        monkeypatch.setenv("PATH", "")
    measure = partial(measure_storage, built_in=tool == "built-in")
    found = {str(each.conditions["operation"]): each for each in measure(tmp_path, full=False)}
    assert list(found) == ["checkpoint", "shards", "random", "create", "open", "remove"]
    assert all(each.value > 0 and each.subject == str(tmp_path) for each in found.values())
    assert found["checkpoint"].tool.startswith("fio 3" if tool == "fio" else "trainworks")
    assert found["shards"].conditions["cache"] in ("dropped", "not dropped", "unknown")
    assert list(tmp_path.iterdir()) == []


def test_a_file_in_memory_is_not_said_to_be_dropped_from_the_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(storage, "_BYTES", 4 << 20)
    monkeypatch.setattr(storage, "_SECONDS", 0.1)
    monkeypatch.setenv("PATH", "")
    found = {each.conditions["operation"]: each for each in measure_storage(Path("/dev/shm"), full=False)}
    assert found["shards"].conditions["cache"] != "dropped"


def test_a_place_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="not a folder that can be written"):
        measure_storage(tmp_path / "none", full=False)


def test_a_disk_without_space_is_not_filled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(storage, "_BYTES", 1 << 60)
    with pytest.raises(EnvironmentProblem, match="not enough free space"):
        measure_storage(tmp_path, full=False)
    assert list(tmp_path.iterdir()) == []


def test_fio_writes_through_the_cache_and_flushes_as_a_checkpoint_does() -> None:
    write, read, random = (fio_arguments(job, Path("/d/f"), 1 << 20, 2) for job in JOBS)
    assert {"--rw=write", "--end_fsync=1", "--direct=0"} <= set(write)
    assert {"--rw=read", "--invalidate=1", "--direct=0"} <= set(read)
    assert {"--rw=randread", "--direct=1", "--bs=4096", "--time_based"} <= set(random)


@pytest.mark.skipif(shutil.which("mpicc") is None, reason="no MPI")
def test_mpi_measures_a_ping_pong_and_an_all_reduce() -> None:
    found = measure_mpi(["127.0.0.1"], full=False)
    operations = [str(each.conditions["operation"]) for each in found]
    assert operations == ["ping_pong"] * 7 + ["all_reduce"] * 7
    latency, *rest = found
    assert latency.quantity is Quantity.LINK_LATENCY
    assert 1e-8 < latency.value < 1
    for each in (each for each in rest if each.quantity is Quantity.BUS_BANDWIDTH):
        assert each.value == pytest.approx(each.conditions["bytes"] / each.conditions["seconds"])  # 2 (n - 1) / n = 1


def test_devices_print_a_line_for_every_part_and_none_for_what_is_done() -> None:
    done = [f"compute/{precision}" for precision in ("fp64", "bf16", "fp16", "fp8")]
    request = json.dumps({"kinds": ["compute"], "done": done})
    command = [sys.executable, "-m", "trainworks.worker.bench.devices", request]
    lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    *parts, end = map(json.loads, lines)
    assert [part["part"] for part in parts] == ["compute/fp32", "compute/tf32"]
    assert end == {"end": True}
    (figure,) = parts[0]["figures"][:1]
    assert (figure["quantity"], figure["conditions"]["precision"]) == ("gemm", "fp32")
    assert 1e8 < figure["value"] < 1e17


def test_a_triad_that_the_kernel_ends_for_lack_of_memory_is_not_measured_with_that_reason(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    ends = tmp_path / "triad"
    ends.write_text("#!/bin/sh\nkill -9 $$\n")
    ends.chmod(0o755)
    monkeypatch.setattr("trainworks.measure.bench.host_programs.compiled", lambda *_, **__: str(ends))
    monkeypatch.setattr("trainworks.measure.bench.host_programs.cache_bytes", lambda _: 1 << 20)
    with pytest.raises(EnvironmentProblem, match="not enough free memory for three arrays"):
        measure_triad(full=False)
