"""8-bit AdamW: what a code stores, and how far training with it is from torch's AdamW."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.worker.harness import TinyRun, make_run, write_corpus
from trainworks.record.events.log import append_event
from trainworks.worker.update_rules import BLOCK, AdamW8bit, code, dequantized, quantized

CPU = torch.device("cpu")


@pytest.mark.parametrize("signed", [True, False])
def test_a_code_has_256_numbers_with_0_and_the_ends(signed):
    numbers = code(CPU, signed=signed)
    assert len(numbers.unique()) == 256
    assert 0.0 in numbers and numbers[-1] == 1.0
    assert numbers[0] == (-1.0 if signed else 0.0)


@pytest.mark.parametrize("signed", [True, False])
def test_values_of_a_decade_keep_their_digits(signed):
    """Half of the widest step of the decade: 0.9 / 2^(6-n), or half of that without a sign."""
    for decade in range(4):
        values = torch.cat([torch.linspace(0.1, 1.0, BLOCK - 1) * 10.0**-decade, torch.ones(1)]).unsqueeze(0)
        stored = dequantized(*quantized(values, signed=signed), signed=signed)
        step = 0.9 * 10.0**-decade / (1 << (6 - decade + (not signed)))
        assert (stored - values).abs().max() <= 0.51 * step + 0.01 * 10.0**-decade


@pytest.mark.parametrize("signed", [True, False])
@pytest.mark.parametrize("shape", [(3, 700), (2, 5, 16), (0, 8), (4, 256)])
def test_what_is_stored_is_stored_again_as_it_is(signed, shape):
    values = torch.randn(shape, generator=torch.manual_seed(1)) ** 3
    values = values if signed else values.abs()
    codes, scales = quantized(values, signed=signed)
    assert codes.shape == values.shape and scales.shape == (*shape[:-1], -(-shape[-1] // BLOCK))
    again = quantized(dequantized(codes, scales, signed=signed), signed=signed)
    assert torch.equal(again[0], codes) and torch.equal(again[1], scales)


def test_a_second_moment_above_0_stays_above_0():
    values = torch.tensor([[1.0, 1e-12, 0.0]])
    stored = dequantized(*quantized(values, signed=False), signed=False)[0].tolist()
    assert stored[1] > 0.0 and stored[2] == 0.0


def test_the_first_update_is_that_of_torch():
    """Moments are rounded after the update that they are part of."""
    torch.manual_seed(2)
    ours, theirs = (torch.nn.Parameter(torch.ones(8, 300)) for _ in range(2))
    ours.grad = theirs.grad = torch.randn(8, 300)
    options: dict[str, Any] = {"lr": 0.1, "betas": (0.9, 0.95), "eps": 1e-8, "weight_decay": 0.1}
    AdamW8bit([ours], **options).step()
    torch.optim.AdamW([theirs], **options).step()
    assert torch.allclose(ours, theirs, atol=1e-6)


@pytest.fixture
def tiny(tmp_path):
    """A function: a run of an optimizer, not started yet."""
    corpus = write_corpus(tmp_path / "corpus")

    def make(name: str, **changes: Any) -> TinyRun:
        settings = {"name": name, "lr": 3e-3, "warmup": "4 steps"}
        fields = {"workload__optimizer": settings, "workload__train_for": "24 steps", "layout": {"dp_shard": 2}}
        run = make_run(tmp_path / "runs", corpus, tmp_path / "cache", **fields | changes)
        append_event(run.run_dir.events_file, {"kind": "data_ready", "folder": str(run.data_folder)})
        return run

    return make


def test_training_agrees_with_adamw_within_half_a_percent(tiny):
    small, full = tiny("adamw-8bit"), tiny("adamw")
    assert small.train() == [0, 0] and full.train() == [0, 0]
    losses = [[row["loss"] for row in run.rows()] for run in (small, full)]
    assert losses[0][-1] < 0.9 * losses[0][0]
    assert losses[0] != losses[1]
    assert losses[0] == pytest.approx(losses[1], rel=0.005)


def test_a_killed_run_resumes_bit_for_bit(tiny):
    whole = tiny("adamw-8bit")
    assert whole.train() == [0, 0]
    killed = tiny("adamw-8bit")
    killed.train(until=killed.a_checkpoint_is_complete)
    assert killed.train() == [0, 0]
    assert killed.curve() == whole.curve()
