"""Profiled steps in the report."""

from __future__ import annotations

import pytest

from trainworks.files import write_atomic
from trainworks.record.profile import OperatorTime, ProfileSummary, summary_file

SUMMARY = ProfileSummary(
    rank=0,
    first_step=20,
    last_step=25,
    window_s=1.0,
    compute_s=0.6,
    optimizer_s=0.1,
    communication_s=0.2,
    idle_s=0.1,
    operators=(OperatorTime(name="aten::mm<float>", calls=120, self_s=0.4),),
)


@pytest.fixture
def profiled(start_run):
    run = start_run().launch().steps(30)
    run.event("profile", first_step=20, last_step=25, ranks=[0], folder="profiles/steps-20-25")
    folder = run.run_dir.profile(20, 25)
    folder.mkdir(parents=True)
    write_atomic(summary_file(folder, 0), SUMMARY.model_dump_json())
    return run


def test_the_page_shows_operators_shares_and_a_link_to_the_trace(profiled):
    page = profiled.report().to_html()
    assert 'href="profiles/steps-20-25/rank-0.trace.json.gz"' in page
    assert "aten::mm&lt;float&gt;" in page
    assert "communication 20.0 %" in page


def test_a_trace_that_was_deleted_is_left_out(profiled):
    summary_file(profiled.run_dir.profile(20, 25), 0).unlink()
    assert profiled.report().profiles == ()


def test_the_shares_add_up():
    assert sum(SUMMARY.shares().values()) == pytest.approx(1)
