"""What all tests share: lanes, golden files, a fake clock and an empty run directory."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from xdist.scheduler import LoadScopeScheduling

from tests import lanes
from tests.fakes import FakeClock
from tests.seconds import Seconds
from trainworks.record.run_dir import RunDir
from trainworks.record.runs_folder import create_run_dir

GOLDEN = Path(__file__).parent / "golden"

_SLOW_FIRST = ("slurm", "kubernetes", "tests/worker", "tests/faults", "tests/validation", "tests/cli")
"""Where the longest tests are: a process that begins with them is not waited for in the end."""


def pytest_configure(config: pytest.Config) -> None:
    lanes.choose(config)
    examples = lanes.examples(100)
    settings.register_profile("trainworks", deadline=None, derandomize=True, database=None, max_examples=examples)
    settings.load_profile("trainworks")
    config.pluginmanager.register(Seconds(config))


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Half a million objects of tests stay to the end: Python's collector looks rarely meanwhile, then no more."""
    usual = gc.get_threshold()
    gc.set_threshold(50_000, 20, 1_000)
    try:
        return (yield)
    finally:
        gc.set_threshold(*usual)
        gc.freeze()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The longest first."""
    items.sort(key=lambda item: _turn(_group(item.nodeid)))


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadScopeScheduling:
    """Tests of one file, or of one real cluster, follow each other in one process; those of faults start one by one."""
    scheduler = LoadScopeScheduling(config, log)
    scheduler._split_scope = _group  # xdist's own way to group tests
    return scheduler


def _group(test: str) -> str:
    file = test.partition("::")[0]
    alone = test if file.startswith("tests/faults/") else file
    return next((name for name in ("slurm", "kubernetes") if f"/{name}/" in file or f"[{name}" in test), alone)


def _turn(group: str) -> int:
    return next((turn for turn, start in enumerate(_SLOW_FIRST) if group.startswith(start)), len(_SLOW_FIRST))


@pytest.fixture(scope="session", autouse=True)
def data_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A job store and a ledger of the tests' own, and never those of the machine; nor is the terminal's width used."""
    folder = tmp_path_factory.mktemp("data")
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("TRAINWORKS_DATA", str(folder))
        patched.setenv("TRAINWORKS_LEDGER", str(folder / "ledger"))
        patched.setenv("TRAINWORKS_CATALOG", "")
        patched.delenv("COLUMNS", raising=False)
        yield folder


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> None:
    """Tests run beside each other: more threads of torch would wait for a core, and turn in circles meanwhile."""
    if (torch := sys.modules.get("torch")) is not None:
        torch.set_num_threads(1)


def pytest_addoption(parser: pytest.Parser) -> None:
    """`pytest --update-golden` writes every golden file anew; the diff is the review."""
    lanes.add_option(parser)
    parser.addoption("--update-golden", action="store_true", help="write the golden files anew instead of comparing")


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Callable[[str, str], None]:
    """A function that holds a text against `tests/golden/NAME`."""

    def matches(name: str, text: str) -> None:
        if request.config.getoption("--update-golden"):
            (GOLDEN / name).write_text(text, encoding="utf-8")
        assert text == (GOLDEN / name).read_text(encoding="utf-8")

    return matches


@pytest.fixture
def clock() -> FakeClock:
    """Time that passes when somebody sleeps."""
    return FakeClock()


@pytest.fixture
def run_dir(tmp_path: Path) -> RunDir:
    """The first run of a fresh folder."""
    return create_run_dir(tmp_path / "runs", "demo")
