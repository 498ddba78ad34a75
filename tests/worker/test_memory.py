"""Out of memory in any library's words."""

from __future__ import annotations

import errno

import pytest
import torch

from trainworks.worker.health.heartbeat import Heartbeat
from trainworks.worker.health.rank_failure import explain, is_out_of_memory, requested_bytes
from trainworks.worker.health.rank_state import RankState, memory_at_failure

CPU = (
    "[enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: can't allocate memory: "
    "you tried to allocate 8388608 bytes. Error code 12 (Cannot allocate memory)"
)
CUDA = "CUDA out of memory. Tried to allocate 20.50 GiB. GPU 0 has a total capacity of 139.80 GiB."


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError(CPU),
        torch.OutOfMemoryError(CUDA),
        MemoryError(),
        OSError(errno.ENOMEM, "Cannot allocate memory"),
        RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
        RuntimeError("std::bad_alloc"),
    ],
    ids=["cpu", "cuda", "python", "kernel", "cublas", "c++"],
)
def test_an_allocation_that_fails_is_out_of_memory(error):
    assert is_out_of_memory(error)
    assert explain(error).cause == "oom"


@pytest.mark.parametrize("error", [ValueError("memory"), OSError(errno.ENOSPC, "No space left"), RuntimeError("shape")])
def test_other_errors_are_not(error):
    assert not is_out_of_memory(error)


def test_what_was_asked_for_is_read_from_the_words_of_torch():
    assert [requested_bytes(RuntimeError(text)) for text in (CPU, CUDA, "no")] == [8388608, 41 * 2**29, None]


def test_a_rank_measures_its_tensors_by_term():
    module = torch.nn.Linear(1000, 1000, bias=False)
    optimizer = Optimizer(torch.optim.AdamW(module.parameters()))
    module(torch.ones(1, 1000)).sum().backward()
    optimizer.adamw.step()
    held = memory_at_failure(RuntimeError(CPU), RankState(Heartbeat(), parts=[module], optimizer=optimizer))
    assert (held.weights_bytes, held.gradients_bytes, held.optimizer_bytes) == (4_000_000, 4_000_000, 8_000_004)
    assert held.held_bytes is not None and 0 < held.held_bytes <= held.peak_bytes


def test_a_rank_that_has_no_model_yet_measures_the_rest():
    held = memory_at_failure(MemoryError(), RankState(Heartbeat()))
    assert (held.weights_bytes, held.requested_bytes) == (None, None)
    assert held.peak_bytes > 0


class Optimizer:
    """As much of the trainer's as is measured."""

    def __init__(self, adamw):
        self.adamw = adamw
