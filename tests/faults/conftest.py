"""One cache of tokens and calibrations for all the programs that the tests start."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="faults are injected into real training: trainworks[train]")

from tests.faults.launcher import Program
from tests.small_disk import mounted
from tests.worker.harness import run_file_text, write_corpus

STEPS = 200


@pytest.fixture(scope="session")
def fault_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """$TRAINWORKS_CACHE."""
    return tmp_path_factory.mktemp("fault-cache")


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


@pytest.fixture(scope="session")
def write_run_file(fault_corpus: Path) -> Callable[..., str]:
    """A function that writes `run.yaml` of a tiny run of 200 steps into a folder."""

    def write(folder: Path, **changes: Any) -> str:
        defaults = {"workload__train_for": f"{STEPS} steps", "checkpoint__every": "20 steps"}
        (folder / "run.yaml").write_text(run_file_text(fault_corpus, **(defaults | changes)), encoding="utf-8")
        return "run.yaml"

    return write


@pytest.fixture(scope="session")
def uninterrupted(
    tmp_path_factory: pytest.TempPathFactory, fault_cache: Path, write_run_file: Callable[..., str]
) -> list[tuple[float, float]]:
    """The curve of a run that nobody hurt, on one node of two ranks."""
    program = Program(tmp_path_factory.mktemp("uninterrupted"), fault_cache)
    code, _, stderr = program.run("run", write_run_file(program.folder))
    assert code == 0, stderr
    return program.curve()


@pytest.fixture
def small_disk() -> Iterator[Callable[[str], Path]]:
    """A function that mounts a file system of a few megabytes."""
    with ExitStack() as disks:
        yield lambda size: disks.enter_context(mounted(f"size={size}"))
