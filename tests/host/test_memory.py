"""Memory as the kernel counts it."""

from __future__ import annotations

import os
import subprocess
import sys

from trainworks.host import memory

LIMITED = (
    "import resource; resource.setrlimit(resource.RLIMIT_AS, (2**30, 2**30));"
    "from trainworks.host import memory; print(memory.address_space_left_bytes())"
)


def test_a_process_holds_no_more_than_its_peak():
    assert 0 < memory.resident_bytes() <= memory.peak_bytes()


def test_the_peak_of_another_process_is_seen_and_of_none_that_is_gone():
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"]) as child:
        peak_bytes = memory.peak_bytes(child.pid)
        child.kill()
    assert peak_bytes > 0
    assert memory.peak_bytes(child.pid) == 0


def test_a_limit_of_the_address_space_leaves_what_is_not_mapped_yet():
    done = subprocess.run([sys.executable, "-c", LIMITED], capture_output=True, text=True, check=True, env=os.environ)
    assert 0 < int(done.stdout) < 2**30


def test_what_is_left_is_said_of_the_scarcest():
    limited_by, left_bytes = memory.memory_left_bytes()
    assert limited_by in ("cgroup", "machine")
    assert left_bytes >= 0
