"""What all tests share: golden files, a fake clock and an empty run directory."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from tests.fakes import FakeClock
from trainworks.record.run_dir import RunDir, create_run_dir

GOLDEN = Path(__file__).parent / "golden"

settings.register_profile("trainworks", deadline=None, derandomize=True, database=None)
settings.load_profile("trainworks")


@pytest.fixture(scope="session", autouse=True)
def data_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A job store of the tests' own, and never that of whoever runs them."""
    folder = tmp_path_factory.mktemp("data")
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("TRAINWORKS_DATA", str(folder))
        yield folder


def pytest_addoption(parser: pytest.Parser) -> None:
    """`pytest --update-golden` writes every golden file anew; the diff is the review."""
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
