"""Older versions of PyTorch, stood in for by the present one without what they lack."""

from __future__ import annotations

import importlib

import pytest
import torch
import torch.distributed as dist
from torch.distributed.checkpoint.staging import DefaultStager

from trainworks.worker.checkpoint.state import staging_options
from trainworks.worker.models import torch_versions


@pytest.fixture
def reloaded():
    yield lambda: importlib.reload(torch_versions)
    importlib.reload(torch_versions)


def test_collectives_have_their_old_names_where_the_new_ones_are_missing(reloaded, monkeypatch):
    assert torch_versions.ALL_GATHER is dist.all_gather_single
    assert torch_versions.REDUCE_SCATTER is dist.reduce_scatter_single
    with monkeypatch.context() as patched:
        patched.delattr(dist, "all_gather_single")
        patched.delattr(dist, "reduce_scatter_single")
        old = reloaded()
        assert old.ALL_GATHER is dist.all_gather_into_tensor
        assert old.REDUCE_SCATTER is dist.reduce_scatter_tensor


def test_attention_is_told_of_grouped_heads_only_where_it_asks():
    assert torch_versions.grouped_heads(lambda q, k, v, *, enable_gqa=False: q) == {"enable_gqa": True}
    assert torch_versions.grouped_heads(lambda q, k, v: q) == {}


def test_a_stager_that_closes_its_copier_after_each_copy_copies_again(monkeypatch):
    stage = DefaultStager._stage

    def stage_and_close(self, state, **options):  # as version 2.11 does
        copy = stage(self, state, **options)
        self._state_dict_stager.close()
        return copy

    monkeypatch.setattr(DefaultStager, "_stage", stage_and_close)
    state = {"weight": torch.arange(4.0), "steps": [1, 2]}
    closed = DefaultStager(staging_options())
    closed.stage(state).result()
    with pytest.raises(KeyError):
        closed.stage(state).result()

    stager = torch_versions.reusable_stager(staging_options())
    first = stager.stage(state).result()
    state["weight"].add_(1)
    second = stager.stage(state).result()
    assert second["weight"].tolist() == [1.0, 2.0, 3.0, 4.0]
    assert second["weight"].data_ptr() == first["weight"].data_ptr()  # the buffer is kept
