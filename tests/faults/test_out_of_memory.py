"""A rank that runs out of memory says by which term, and what would have cost least."""

from __future__ import annotations

import contextlib
import re
import uuid
from pathlib import Path

import pytest

from tests.faults.launcher import wait_until
from trainworks.record.events.log import read_events

pytestmark = [pytest.mark.slow, pytest.mark.lane("test-all")]
LARGE = {
    "workload__model": {"layers": 4, "hidden": 256, "heads": 4},
    "workload__data__sequence_length": 256,
    "workload__global_batch": 64,
    "workload__train_for": "3 steps",
    "layout": {"dp_replicate": 2, "micro_batch": 32},
}


def last_failure(program):
    events = read_events(program.run_dir.events_file)
    return [event for event in events if event["kind"] == "failure" and event["cause"] != "peer_lost"][-1]


@pytest.mark.lane("test")
def test_a_rank_whose_address_space_ends_is_explained_with_remedies(program, write_run_file):
    program.hurt("limit:1:400")
    code, stdout, stderr = program.run("run", write_run_file(program.folder, **LARGE))
    failure = last_failure(program)
    assert (code, failure["cause"], failure["rank"]) == (1, "oom", 1)
    assert failure["memory"]["limited_by"] == "address space" and failure["memory"]["requested_bytes"] > 0
    assert re.search(r"rank 1 held .* in its first step and asked for .* more", stderr)
    assert re.search(r"the address space had .* left; .* planned: there was less memory than the plan", stderr)
    assert re.search(r"hint: .*\n +.*instead of .*: saves .*\n( .*\n)? +layout: \{.*micro_batch: ", stderr)
    assert re.search(r"rank 1 failed after .* s, oom\.", " ".join(stdout.split()))
    report = program.ask("report")[1]
    assert "Out of memory" in report and "activations" in report
    assert "Traceback" not in stderr
    program.assert_nothing_left()


@contextlib.contextmanager
def memory_cgroup(limit_bytes):
    """A cgroup of either version that its members cannot exceed."""
    first = Path("/sys/fs/cgroup/memory")
    root, name = (first, "memory.limit_in_bytes") if first.is_dir() else (Path("/sys/fs/cgroup"), "memory.max")
    folder = root / f"trainworks-{uuid.uuid4().hex}"
    try:
        folder.mkdir()
        (folder / name).write_text(str(limit_bytes))
    except OSError as error:
        pytest.skip(f"NOT TESTED: the kernel's out-of-memory killer; no memory cgroup can be made here ({error})")
    try:
        yield folder
        # A process has lost its environment, by which it is found, before the cgroup has lost the process.
        wait_until(lambda: not (folder / "cgroup.procs").read_text())
    finally:
        folder.rmdir()


@pytest.mark.root
def test_a_rank_that_the_kernel_kills_for_memory_is_not_taken_for_one_that_somebody_killed(program, write_run_file):
    program.hurt("hoard:1:70")
    changes = {"recover__max_restarts": 0}
    with memory_cgroup(2 * 2**30) as folder:
        program.join = folder / "cgroup.procs"
        code, _, stderr = program.run("run", write_run_file(program.folder, **changes))
        program.assert_nothing_left()
    failure = last_failure(program)
    assert (code, failure["cause"], failure["rank"], failure["signal"]) == (137, "oom", 1, "SIGKILL")
    assert "out of memory" in stderr and "and the cgroup was full" in stderr
