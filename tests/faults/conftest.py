"""One cache of tokens and calibrations, and one uninterrupted run, for all the programs that the tests start."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="faults are injected into real training: trainworks[train]")

from tests.faults.launcher import Program
from tests.small_disk import mounted
from tests.worker.harness import run_file_text, write_corpus

STEPS = 120  # beyond every step after which a run is held to be hurt
SHORT = {"workload__train_for": "60 steps", "checkpoint__every": "6 steps"}
"""Of a run that is hurt from inside, at a step."""
LAYOUT = {"dp_replicate": 2, "micro_batch": 4, "recompute": "none"}
"""Of runs whose curves are compared. Each test process may measure this machine anew, and one of two nodes is measured
by itself: on a busy machine another layout may seem faster in one of these plans, and its sums round differently."""


@pytest.fixture(scope="session")
def of_all_processes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that all test processes of this session share."""
    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "faults"
    folder.mkdir(exist_ok=True)
    return folder


@pytest.fixture(scope="session")
def fault_cache(of_all_processes: Path) -> Path:
    """$TRAINWORKS_CACHE."""
    return of_all_processes / "cache"


@pytest.fixture(scope="session")
def fault_corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three text files."""
    return write_corpus(tmp_path_factory.mktemp("fault-corpus") / "text")


@pytest.fixture
def program(tmp_path: Path, fault_cache: Path) -> Iterator[Program]:
    """The program in an empty folder; whatever a failed test leaves is killed."""
    program = Program(tmp_path, fault_cache)
    yield program
    program.kill_all()


@pytest.fixture
def examples(program: Program) -> Program:
    """The program in a folder with the examples, as in a clone."""
    shutil.copytree(Path(__file__).parents[2] / "examples", program.folder / "examples")
    return program


@pytest.fixture(scope="session")
def write_run_file(fault_corpus: Path) -> Callable[..., str]:
    """A function that writes `run.yaml` of a tiny run into a folder."""

    def write(folder: Path, **changes: Any) -> str:
        defaults = {"workload__train_for": f"{STEPS} steps", "checkpoint__every": "12 steps", "layout": LAYOUT}
        (folder / "run.yaml").write_text(run_file_text(fault_corpus, **(defaults | changes)), encoding="utf-8")
        return "run.yaml"

    return write


@pytest.fixture(scope="session")
def curve_of(
    of_all_processes: Path,
    tmp_path_factory: pytest.TempPathFactory,
    fault_cache: Path,
    write_run_file: Callable[..., str],
) -> Callable[..., list[tuple[float, float]]]:
    """A function: the curve of a run that is not hurt, on one node of two ranks, made once by one test process."""

    def curve(name: str, **changes: Any) -> list[tuple[float, float]]:
        known = of_all_processes / f"{name}.json"
        with (of_all_processes / f"{name}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not known.exists():
                program = Program(tmp_path_factory.mktemp(name), fault_cache)
                code, _, stderr = program.run("run", write_run_file(program.folder, **changes))
                assert code == 0, stderr
                known.write_text(json.dumps(program.curve()), encoding="utf-8")
        return [(loss, norm) for loss, norm in json.loads(known.read_text(encoding="utf-8"))]

    return curve


@pytest.fixture(scope="session")
def uninterrupted(curve_of: Callable[..., list[tuple[float, float]]]) -> list[tuple[float, float]]:
    """The curve of a run that is not hurt."""
    return curve_of("uninterrupted")


@pytest.fixture(scope="session")
def uninterrupted_short(curve_of: Callable[..., list[tuple[float, float]]]) -> list[tuple[float, float]]:
    """The same of a short one."""
    return curve_of("uninterrupted-short", **SHORT)


@pytest.fixture
def small_disk() -> Iterator[Callable[[str], Path]]:
    """A function that mounts a file system of a few megabytes."""
    with ExitStack() as disks:
        yield lambda size: disks.enter_context(mounted(f"size={size}"))
