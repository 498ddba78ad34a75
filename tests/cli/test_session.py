"""A loop of one's own with a session: recorded, stopped, killed and resumed."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="a session is torch's: trainworks[train]")
pytest.importorskip("sklearn", reason="the example reads digits of scikit-learn")

from tests.fakes import read_rows
from tests.faults.launcher import Program, finished, wait_until
from trainworks.record.events.log import read_events

pytestmark = [pytest.mark.slow, pytest.mark.lane("test-all")]
LOOP = ("run", "--nproc", "2", "--", "python", "session_loop.py")
EXAMPLE = Path(__file__).parents[2] / "examples" / "session_loop.py"


@pytest.fixture
def program(tmp_path):
    """The program beside the example; whatever a failed test leaves is killed."""
    program = Program(tmp_path, tmp_path / "cache")
    shutil.copy(EXAMPLE, tmp_path)
    yield program
    program.kill_all()


def held(program, at):
    """The loop, whose ranks wait after a step as long as there is a file `hold`, once they do."""
    hold, is_held = program.folder / "hold", program.folder / "held"
    waits = f"    if step == {at}:\n        Path('{is_held}').touch()\n"
    waits += f"    while step == {at} and Path('{hold}').exists():\n        time.sleep(0.01)\n"
    script = EXAMPLE.read_text()
    for line, more in (
        ("import torch\n", "import time\nfrom pathlib import Path\n"),
        ("    scheduler.step()\n", waits),
    ):
        assert line in script
        script = script.replace(line, line + more, 1)
    (program.folder / EXAMPLE.name).write_text(script)
    hold.touch()
    process = program.start(*LOOP)
    wait_until(is_held.exists)
    return process


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The curve of a loop that nobody hurt, and its report."""
    program = Program(tmp_path_factory.mktemp("whole"), tmp_path_factory.mktemp("cache"))
    shutil.copy(EXAMPLE, program.folder)
    code, stdout, stderr = program.run(*LOOP)
    assert code == 0, stderr
    assert "of the digits are read right" in stdout + stderr
    _, report, _ = program.run("report", "--json")
    rows = read_rows(program.run_dir.metrics_file)
    assert all(row["checkpoint_s"] >= 0 and row["optimizer_s"] == 0 and row["compute_s"] > 0 for row in rows)
    return program.curve(), json.loads(report)


@pytest.mark.lane("test")
def test_a_loop_that_is_killed_goes_on_bit_identically(program, whole):
    process = held(program, 120)
    rank = next(event for event in read_events(program.run_dir.events_file) if event["kind"] == "attempt")
    assert rank["world_size"] == 2
    program.find(lambda each: each.cmdline()[1:] == ["session_loop.py"]).kill()
    code, _, _ = finished(process)
    assert code != 0
    (program.folder / "hold").unlink()
    code, _, stderr = program.run("resume")
    assert code == 0, stderr
    assert program.curve() == whole[0]


def test_a_loop_that_is_stopped_saves_its_last_step_and_goes_on(program, whole):
    process = held(program, 60)
    stopping = program.start("stop")
    wait_until(program.run_dir.stop_file.exists)
    (program.folder / "hold").unlink()
    code, _, stderr = finished(stopping)
    assert code == 0, stderr
    finished(process)
    kinds = [event["kind"] for event in read_events(program.run_dir.events_file)]
    assert "stopped" in kinds
    code, _, stderr = program.run("resume")
    assert code == 0, stderr
    assert program.curve() == whole[0]


def test_the_report_of_a_loop_has_its_curve_and_its_checkpoints(whole):
    _, report = whole
    assert report["curves"]["loss"][-1]["points"][-1][0] == 400
    assert report["checkpoints"]["steps"] == list(range(50, 401, 50))
