"""The plan of a run on this machine, as its page shows it."""

from __future__ import annotations

import pytest

from tests.plan.shapes import calibration
from trainworks.config.layout import ModelSupport
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


@pytest.mark.parametrize(
    ("weight", "text"),
    [(0.0, "no balance loss (`model.balance_loss` sets one)"), (0.01, "a balance loss of weight 0.01")],
)
def test_the_plan_of_a_mixture_of_experts_states_its_balance_loss(start_run, weight, text):
    resolved = start_run().run_dir.read_resolved()
    model = resolved.plan.model.model_copy(update={"experts": 8, "experts_per_token": 2})
    plan = resolved.plan.model_copy(update={"model": model, "support": ModelSupport(balance_loss=weight)})
    shown = render_text(document(resolved.model_copy(update={"plan": plan})), width=200)
    assert f"8 per layer, 2 of them per token, {text}" in shown
