"""`trainworks resume` with another answer to steps that cannot be right."""

from __future__ import annotations

import pytest

from tests.report.conftest import RunWriter, make_plan
from trainworks.api.runs import _with_guard
from trainworks.errors import UsageError


def test_another_answer_is_written_into_the_resolved_run(tmp_path):
    run_dir = RunWriter(tmp_path, make_plan(), None).run_dir
    _with_guard(run_dir, run_dir.read_resolved(), {"nonfinite": "rollback", "spike": None})
    guard = run_dir.read_resolved().run_file.guard
    assert (guard.nonfinite, guard.spike) == ("rollback", "ignore")


def test_a_command_has_no_guard(tmp_path):
    run_dir = RunWriter(tmp_path, None, "sleep 1").run_dir
    with pytest.raises(UsageError, match="runs a command"):
        _with_guard(run_dir, run_dir.read_resolved(), {"nonfinite": "skip", "spike": None})
