"""The lanes: every test is in one, and a larger one has all tests of a smaller one."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest

from tests.lanes import STARTS_A_CLUSTER, Lane, amount, lane_of

ROOT = Path(__file__).parents[1]
CONFTEST = """
from tests import lanes

pytest_addoption = lanes.add_option
pytest_configure = lanes.choose
"""
TESTS = """
import pytest
from tests.lanes import amount

def test_small(): pass

@pytest.mark.slow
def test_run(): pass

@pytest.mark.slurm
def test_cluster(): pass

@pytest.mark.slurm
@pytest.mark.lane("test")
def test_smoke(): pass

@pytest.mark.slow
@pytest.mark.parametrize("seed", range(amount(test=1, test_all=2, nightly=4)))
def test_seeds(seed): pass

@pytest.mark.lane("nightly")
def test_at_night(): pass
"""
SAMPLED = """
import pytest

@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("layout", ["replicas", "shards"])
def test_law(rank, layout): pass
"""

ONLY_IN_CI = {
    "tests/cli/test_tune.py",
    "tests/faults/test_named_frameworks.py",
    "tests/faults/test_queue_of_users_survives.py",
    "tests/observe/test_zabbix.py",
}
"""Files of laws that no faster test represents."""


def collected(folder: Path, lane: str) -> subprocess.CompletedProcess[str]:
    """What pytest collects in a folder of its own."""
    command = [sys.executable, "-m", "pytest", "-q", "--collect-only", "-p", "no:cacheprovider", f"--lane={lane}"]
    command += ["--rootdir", str(folder), "-c", str(folder / "pytest.ini"), str(folder)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A few tests of each kind."""
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers =\n    slow\n    slurm\n    lane(name)\n")
    (tmp_path / "conftest.py").write_text(CONFTEST)
    (tmp_path / "test_kinds.py").write_text(TESTS)
    (tmp_path / "tests" / "faults").mkdir(parents=True)
    (tmp_path / "tests" / "faults" / "test_sampled.py").write_text(SAMPLED)
    return tmp_path


def test_a_lane_adds_tests_to_the_lane_before_it(project: Path) -> None:
    lanes = [set(re.findall(r"::(\S+)", collected(project, lane.value).stdout)) for lane in Lane]
    quick, *more = (larger - smaller for smaller, larger in pairwise([set(), *lanes]))
    assert quick == {"test_small"}
    assert more == [
        {"test_run", "test_smoke", "test_seeds[0]", "test_law[replicas-0]"},
        {"test_cluster", "test_seeds[1]", "test_law[replicas-1]", "test_law[shards-0]", "test_law[shards-1]"},
        {"test_at_night", "test_seeds[2]", "test_seeds[3]"},
    ]
    assert all(smaller < larger for smaller, larger in pairwise(lanes))


def test_a_test_whose_lane_does_not_exist_ends_the_run(project: Path) -> None:
    (project / "test_kinds.py").write_text(TESTS.replace('"nightly"', '"weekly"'))
    done = collected(project, "test")
    assert done.returncode == pytest.ExitCode.USAGE_ERROR
    assert "test_at_night: the mark `lane` takes one name of quick, test, test-all, nightly" in done.stderr


def test_a_larger_lane_has_no_smaller_amount() -> None:
    with pytest.raises(AssertionError, match="a larger lane has no fewer"):
        amount(test=3, test_all=2, nightly=4)


def test_every_file_has_a_test_before_a_commit(request: pytest.FixtureRequest) -> None:
    """But for those of clusters: law by law, a fault is found before CI."""
    if any("::" in chosen for chosen in request.config.args):
        pytest.skip("single tests were chosen")
    waits = {item.nodeid.partition("::")[0]: True for item in request.session.items}
    for item in request.session.items:
        clusters = STARTS_A_CLUSTER & {mark.name for mark in item.iter_markers()}
        waits[item.nodeid.partition("::")[0]] &= not (clusters or Lane.TEST.holds(lane_of(item)))
    assert {file for file, all_wait in waits.items() if all_wait} <= ONLY_IN_CI


@pytest.mark.skipif(shutil.which("make") is None, reason="no make: apt-get install make")
@pytest.mark.parametrize("lane", [lane.value for lane in Lane])
def test_a_target_of_make_runs_its_lane_and_leaves_nothing_else_out(lane: str, tmp_path: Path) -> None:
    command = ["make", "--dry-run", "--no-print-directory", f"VENV={tmp_path}", lane]
    printed = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    (called,) = [line for line in printed.splitlines() if line.startswith(f"{tmp_path}/bin/pytest")]
    assert re.fullmatch(rf"\S+ --lane {lane} --numprocesses \d --dist loadscope --no-loadscope-reorder", called)


def test_ci_runs_every_test() -> None:
    assert (ROOT / ".ci" / "run").read_text(encoding="utf-8").endswith("\nmake test-all\n")
