"""Clock and processor seconds of every test: a table of each run of the suite, and a summary by folder."""

from __future__ import annotations

import csv
import io
import os
import time
from collections import Counter
from collections.abc import Generator
from pathlib import Path

import psutil
import pytest

from tests.growth import TABLE, read_costs, warning
from tests.lanes import Lane
from trainworks.files import write_atomic

_CLOCK, _PROCESSOR = "clock_s", "processor_s"


class Seconds:
    """A plugin of pytest that measures in the process of a test, and writes in the process that collects reports.

    Processor seconds are those of the process and of its children, also of those that live on: the fork server of ranks
    counts for the test that has ranks, not for the last one. Servers that leave their parent are in the summary's
    second number alone, which counts what the whole machine did.
    """

    def __init__(self, config: pytest.Config) -> None:
        self._root = config.rootpath
        self._lane = Lane(config.getoption("--lane"))
        self._is_whole = config.args_source is pytest.Config.ArgsSource.TESTPATHS and not (
            config.option.keyword or config.option.markexpr
        )
        self._rows: list[tuple[str, float, float]] = []
        self._began = (0.0, 0.0)
        self._machine_began = _machine_s()

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self) -> Generator[None, object, object]:
        self._began = (time.perf_counter(), _processor_s())
        return (yield)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_makereport(self, item: pytest.Item, call: pytest.CallInfo[None]) -> None:
        if call.when == "teardown":
            clock, processor = self._began
            item.user_properties.append((_CLOCK, time.perf_counter() - clock))
            item.user_properties.append((_PROCESSOR, _processor_s() - processor))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "teardown":
            measured = dict(report.user_properties)
            if _CLOCK in measured:
                self._rows.append((report.nodeid, float(str(measured[_CLOCK])), float(str(measured[_PROCESSOR]))))

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """The table is written where more than one test ran."""
        if len(self._rows) < 2:
            return
        self._write_table()
        tests = {test: processor for test, _, processor in self._rows}
        folders: Counter[str] = Counter()
        for test, processor in tests.items():
            folders[test.partition("::")[0].rpartition("/")[0]] += processor
        parts = ", ".join(f"{folder} {seconds:.0f}" for folder, seconds in folders.most_common(8))
        used = f"{sum(tests.values()):.0f} of {_machine_s() - self._machine_began:.0f}"
        terminalreporter.write_line(f"processor seconds: {used} ({parts}); each test in {TABLE}")
        if self._is_whole and (costs := read_costs(self._root, self._lane)) and (said := warning(costs, tests)):
            terminalreporter.write_line(said, yellow=True)

    def _write_table(self) -> None:
        path = self._root / TABLE
        path.parent.mkdir(exist_ok=True)
        table = io.StringIO()
        writer = csv.writer(table, lineterminator="\n")
        writer.writerow(("test", _CLOCK, _PROCESSOR))
        writer.writerows((test, f"{clock:.3f}", f"{processor:.3f}") for test, clock, processor in sorted(self._rows))
        write_atomic(path, table.getvalue())


def _processor_s() -> float:
    return sum(os.times()[:4]) + sum(map(_child_s, Path("/proc/self/task").glob("*/children")))


def _child_s(children: Path) -> float:
    """What the living children of a thread used, with the children that they waited for."""
    ticks = 0
    for pid in _read(children).split():
        ticks += sum(map(int, _read(Path(f"/proc/{pid}/stat")).rpartition(")")[2].split()[11:15]))
    return ticks / os.sysconf("SC_CLK_TCK")


def _read(path: Path) -> str:
    """Nothing of a thread or a process that has ended."""
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return ""


def _machine_s() -> float:
    used = psutil.cpu_times()
    return float(used.user + used.nice + used.system)
