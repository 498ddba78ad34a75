"""When a checkpoint counts."""

from __future__ import annotations

import time
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist
from torch import nn

from trainworks.config.layout import ResolvedLayout
from trainworks.config.optimizer import Optimizer
from trainworks.config.recovery import Guard
from trainworks.record.manifest import complete_checkpoints
from trainworks.record.runs_folder import create_run_dir
from trainworks.worker.checkpoint import checkpointer as checkpointer_module
from trainworks.worker.checkpoint.checkpointer import Checkpointer
from trainworks.worker.mesh import Mesh
from trainworks.worker.optimizer import StepOptimizer

ONE_PROCESS = ResolvedLayout(dp_replicate=1, dp_shard=1, cp=1, tp=1, pp=1, ep=1, micro_batch=1, grad_accum_steps=1)


@pytest.fixture
def checkpointer(tmp_path):
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    template = {"attempt": 1, "layout": ONE_PROCESS, "data_fingerprint": "of-nothing"}
    yield Checkpointer(create_run_dir(tmp_path, "run"), dist.new_group(backend="gloo"), keep=1, template=template)
    dist.destroy_process_group()


def optimizer_of(module):
    return StepOptimizer(
        [module],
        Mesh(ONE_PROCESS, "cpu"),
        Optimizer(),
        num_steps=8,
        precision="fp32",
        device=torch.device("cpu"),
        guard=Guard(),
    )


def test_a_checkpoint_is_complete_only_after_the_record_holds_its_steps(checkpointer):
    """Otherwise a run killed in between resumes after steps that no row tells of."""
    module = nn.Linear(2, 2)
    optimizer = optimizer_of(module)
    run_dir = checkpointer.run_dir

    checkpointer.save(4, [module], optimizer, samples_consumed=4)
    while not any(run_dir.checkpoint(4).glob("metadata.json")):
        time.sleep(0.01)
    time.sleep(0.2)
    assert complete_checkpoints(run_dir) == []

    checkpointer.allow_completion()
    checkpointer.wait()
    assert [manifest.step for manifest, _ in complete_checkpoints(run_dir)] == [4]


def test_the_copy_from_a_gpu_begins_when_its_small_values_are_complete(checkpointer, monkeypatch):
    module, order = nn.Linear(2, 2), []
    optimizer = optimizer_of(module)
    copy, stage = checkpointer_module.unchanging, checkpointer._stager.stage
    with monkeypatch.context() as patched:
        stream = SimpleNamespace(synchronize=lambda: order.append("wait"))
        patched.setattr(torch.cuda, "is_initialized", lambda: True)
        patched.setattr(torch.cuda, "current_stream", lambda: stream)
        patched.setattr(checkpointer_module, "unchanging", lambda *state: order.append("small values") or copy(*state))
        patched.setattr(checkpointer._stager, "stage", lambda state: order.append("copy") or stage(state))
        checkpointer.save(4, [module], optimizer, samples_consumed=4)
    checkpointer.allow_completion()
    checkpointer.wait()
    assert order == ["small values", "wait", "copy"]
