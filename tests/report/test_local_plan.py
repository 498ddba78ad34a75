"""The plan of a run on this machine, as its page shows it."""

from __future__ import annotations

import pytest

from tests.plan.shapes import calibration
from trainworks.report.local_plan import document
from trainworks.report.rendering.text import render_text


@pytest.mark.parametrize(
    ("share", "warns"), [(None, False), (0.02, False), (0.45, True)], ids=["unknown", "quiet", "busy"]
)
def test_a_calibration_beside_other_programs_is_a_warning(start_run, share, warns):
    resolved = start_run().run_dir.read_resolved()
    shown = document(resolved.model_copy(update={"calibration": calibration(others_share=share)}))
    text = render_text(shown, width=200)
    assert ("warning: other programs used 45% of the cores" in text) == warns
    assert ("--recalibrate" in text) == warns
