"""`why` names what hurts a real run."""

from __future__ import annotations

import json
from collections.abc import Callable

from tests.faults.conftest import SHORT
from tests.faults.launcher import Program

SLEEP_S = 0.2
"""What `straggle` sleeps before each batch."""


def test_a_rank_whose_data_is_late_is_named(program: Program, write_run_file: Callable[..., str]) -> None:
    program.hurt("straggle:1:0")
    code, _, stderr = program.run("run", write_run_file(program.folder, **SHORT))
    assert code == 0, stderr
    code, stdout, stderr = program.run("why", "--json")
    assert code == 0, stderr
    causes = {cause["name"]: cause for cause in json.loads(stdout)["causes"]}
    assert causes["straggler"]["title"] == "Rank 1 is slower than the others"
    assert "disk" in causes["straggler"]["remedy"]
    assert causes["straggler"]["lost_s"] > 0.5 * 60 * SLEEP_S
