"""Compiled blocks train as the others do, under the layouts that take them."""

from __future__ import annotations

import shutil

import numpy as np
import pytest

from tests.lanes import cases
from tests.worker.parallel.test_equivalence import LLAMA, STEPS, of_one_process, outcome

LAYOUTS = {"replicas": {"dp_replicate": 2}, "shards": {"dp_shard": 2}, "tensor": {"tp": 2}, "one": {}}


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="torch.compile on a CPU needs a C++ compiler")
@pytest.mark.parametrize("name", cases(LAYOUTS, at_night=["one"]))  # whose blocks are those of replicas
def test_compiled_blocks_train_as_they_do_without(name):
    expected = of_one_process("llama")
    got = outcome(LLAMA, LAYOUTS[name], compiled=True, num_steps=STEPS)
    assert got.losses == pytest.approx(expected.losses, rel=1e-4)
    for key, value in expected.weights.items():
        np.testing.assert_allclose(got.weights[key], value, rtol=1e-2, atol=1e-3, err_msg=key)
