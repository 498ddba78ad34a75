"""The resolved run: its sums are the sums of its terms."""

from __future__ import annotations

import pytest

from tests.fakes import processes
from trainworks.record.memory import MemoryTerms
from trainworks.record.step_time import StepTimeTerms


def test_the_world_size_is_nodes_times_processes() -> None:
    assert processes(nodes=3, processes_per_node=4).world_size == 12


@pytest.mark.parametrize(("device", "backend"), [("cpu", "gloo"), ("cuda", "nccl")])
def test_the_device_decides_the_collective_library(device: str, backend: str) -> None:
    assert processes().model_copy(update={"device": device}).backend == backend


@pytest.mark.parametrize(("terms", "total"), [(StepTimeTerms, "total_s"), (MemoryTerms, "total_bytes")])
def test_the_terms_add_up(terms, total: str) -> None:
    powers = {name: 2**index for index, name in enumerate(terms.model_fields)}
    assert getattr(terms(**powers), total) == 2 ** len(powers) - 1
