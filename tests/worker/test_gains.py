"""What compiling gains is measured with compiled blocks and without."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from trainworks.worker.timing import compile_gain

SLOW_S = 0.05


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x).relu()


def slow_backend(graph: torch.fx.GraphModule, _: list[torch.Tensor]) -> Callable[..., Any]:
    """A compiler whose code is slow."""

    def run(*arguments: object) -> object:
        time.sleep(SLOW_S)
        return graph(*arguments)

    return run


def test_both_are_measured_and_the_model_stays_compiled() -> None:
    torch.compiler.reset()
    model = Block()
    model.compile(backend=slow_backend)
    x = torch.ones(2, 4)

    def step() -> None:
        model(x).sum().backward()

    step()
    gain = compile_gain(step, torch.device("cpu"), first_s=1000.0)
    assert gain["compiled_s"] >= SLOW_S > gain["eager_s"] > 0
    assert gain["compile_s"] == 1000.0 - gain["compiled_s"]
    begin = time.perf_counter()
    step()
    assert time.perf_counter() - begin >= SLOW_S
