"""A rank imports what its run needs, and no more: imports are most of its start."""

from __future__ import annotations

import subprocess
import sys

import pytest

from trainworks.config.run_file import Workload
from trainworks.worker.imports import rank_modules


def workload(**changes):
    fields = {
        "task": "causal-lm",
        "model": {"layers": 2, "hidden": 32, "heads": 4},
        "data": {"source": "python-stdlib", "sequence_length": 32},
        "global_batch": 8,
        "train_for": "3 steps",
    }
    return Workload.model_validate(fields | changes)


def modules(pp=1, **changes):
    return rank_modules(workload(**changes), pp=pp)


def test_a_model_by_dimensions_needs_neither_transformers_nor_pipelines():
    program = f"import importlib, sys\nfor name in {modules()!r}: importlib.import_module(name)\nprint(*sys.modules)"
    command = [sys.executable, "-W", "ignore", "-c", program]
    imported = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    assert "trainworks.worker.train" in imported
    assert not {"transformers", "scipy", "sklearn", "pandas", "torch.distributed.pipelining"} & set(imported)


@pytest.mark.parametrize(
    ("module", "changes"),
    [
        ("trainworks.worker.parallel.pipeline", {"pp": 2}),
        ("trainworks.worker.models.transformer", {"model": {"hf": "models/llama"}}),
        ("trainworks.worker.tasks.transformer_tasks", {"task": "masked-lm", "model": {"hf": "models/bert"}}),
    ],
)
def test_what_a_run_needs_is_imported_before_its_ranks_start(module, changes):
    assert module in modules(**changes)
    assert module not in modules()


def test_the_trainer_comes_last_and_freezes_what_is_imported():
    assert modules(pp=2)[-1] == "trainworks.worker.preloaded"
