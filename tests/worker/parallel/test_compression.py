"""Compressed gradients between replicas: 16 bits follow the curve, PowerSGD trains, and replicas stay equal."""

from __future__ import annotations

import numpy as np
import pytest

from tests.worker.parallel.test_equivalence import LLAMA, outcome


@pytest.fixture(scope="module")
def uncompressed():
    return outcome(LLAMA, {"dp_replicate": 2})


@pytest.mark.parametrize("compression", ["bf16", "fp16"])
def test_gradients_in_16_bits_follow_the_uncompressed_curve(uncompressed, compression):
    got = outcome(LLAMA, {"dp_replicate": 2, "gradient_compression": compression})
    assert got.losses == pytest.approx(uncompressed.losses, rel=5e-3)
    assert got.norms == pytest.approx(uncompressed.norms, rel=2e-2)
    assert got.norms != uncompressed.norms


def test_powersgd_is_exact_while_it_warms_up_and_trains_after(uncompressed):
    written = {"dp_replicate": 2, "gradient_compression": "powersgd", "powersgd_rank": 4, "powersgd_warmup": 3}
    got = outcome(LLAMA, written)
    # the first gradients are thrown away, but count as an iteration of the warm-up
    assert got.losses[:2] == pytest.approx(uncompressed.losses[:2], rel=1e-5)
    assert got.losses[-1] < got.losses[0]
    assert got.norms[-1] != pytest.approx(uncompressed.norms[-1], rel=1e-4)


def test_accumulated_gradients_are_compressed_once(uncompressed):
    written = {"dp_replicate": 2, "micro_batch": 1, "gradient_compression": "bf16"}
    got = outcome(LLAMA, written)
    assert got.losses == pytest.approx(uncompressed.losses, rel=5e-3)
    for name, value in uncompressed.weights.items():
        np.testing.assert_allclose(got.weights[name], value, atol=0.03, err_msg=name)
