"""What a GPU would let its host wait for in a step: shown on tensors without storage, and by modes."""

from __future__ import annotations

from collections import Counter
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensorMode
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from tests.worker.models.test_experts import EXPERTS, HIDDEN, layer
from tests.worker.parallel.test_equivalence import GLOBAL_BATCH, MODELS, POSITIONS
from tests.worker.parallel.test_evaluation import layout_of
from tests.worker.ranks import on_ranks
from trainworks.config.optimizer import Optimizer
from trainworks.config.recovery import Guard
from trainworks.worker.mesh import Mesh
from trainworks.worker.models.nf4 import dequantized
from trainworks.worker.models.weights import draw_weights
from trainworks.worker.optimizer import StepOptimizer
from trainworks.worker.parallel.blocks import _HostCopies, _Offload
from trainworks.worker.parallel.build import Setup, distribute_decoder
from trainworks.worker.timing import Timeline
from trainworks.worker.update_rules import Lion

CPU, GPU = torch.device("cpu"), torch.device("cuda", 0)
_ASKING = {"tolist", "item", "cpu", "numpy", "__bool__", "__int__", "__float__", "__index__", "nonzero"}
_WAITING = {"_local_scalar_dense", "nonzero", "masked_select", "bincount", "_unique2", "unique_dim"}


class _Calls(TorchFunctionMode):
    """Counts calls that ask a tensor for its values."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: Counter[str] = Counter()

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = getattr(function, "__name__", "")
        if name in _ASKING:
            self.asked[name] += 1
        return function(*args, **(kwargs or {}))


class _Operations(TorchDispatchMode):
    """Counts operations for whose result the host waits on a GPU, those of backward and of libraries included."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: Counter[str] = Counter()

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = function.overloadpacket.__name__
        repeats_by_tensor = name == "repeat_interleave" and not (kwargs or {}).get("output_size")
        if name in _WAITING or repeats_by_tensor:
            self.asked[name] += 1
        return function(*args, **(kwargs or {}))


def asked_for(model: str, layout: Any, precision: str) -> Counter[str]:
    """What forward and backward of a second step, whose micro-batches are two, ask the device for on this rank."""
    mesh = Mesh(layout, "cpu")
    setup = Setup(mesh=mesh, device=CPU, precision=precision, compiled=False, timeline=Timeline(CPU))
    parallel = distribute_decoder(
        MODELS[model], setup, positions=POSITIONS, first_weights=lambda parts: draw_weights(parts, seed=3)
    )
    shape = (layout.grad_accum_steps, layout.micro_batch, POSITIONS // layout.cp + 1)
    tokens = torch.randint(0, 64, shape, generator=torch.manual_seed(7))
    weights = torch.ones(layout.grad_accum_steps)
    parallel.gradients(tokens[..., :-1], tokens[..., 1:], scale=1.0, weights=weights)  # torch's pipelines meet here
    with _Operations() as operations, _Calls() as calls:
        parallel.gradients(tokens[..., :-1], tokens[..., 1:], scale=1.0, weights=weights)
    return operations.asked + calls.asked


def micro_batches(ranks: int, **degrees: Any) -> Any:
    return layout_of(ranks, micro_batch=GLOBAL_BATCH // 4, **degrees)


@pytest.mark.parametrize(
    ("model", "degrees", "precision"),
    [
        ("llama", {"dp_replicate": 2}, "fp32"),
        ("llama-tied", {"dp_shard": 2}, "bf16"),
        ("qwen3", {"dp_shard": 2, "recompute": "selective"}, "fp16"),
        ("llama", {"tp": 2}, "fp32"),
        ("llama", {"cp": 2, "recompute": "full"}, "fp32"),
        ("llama-tied", {"pp": 2}, "fp32"),
        ("mixtral", {"dp_shard": 2}, "fp32"),
        ("mixtral", {"dp_shard": 2, "ep": 2, "expert_capacity": 1.25}, "fp32"),
    ],
)
def test_forward_and_backward_ask_the_device_for_nothing(model: str, degrees: dict[str, Any], precision: str) -> None:
    assert on_ranks(2, asked_for, model, micro_batches(2, **degrees), precision) == [Counter(), Counter()]


def test_experts_on_other_ranks_cost_one_wait_per_layer_and_micro_batch() -> None:
    layout = micro_batches(2, dp_shard=2, ep=2)
    layers = MODELS["mixtral"].layers
    assert on_ranks(2, asked_for, "mixtral", layout, "fp32") == [Counter(tolist=layers * layout.grad_accum_steps)] * 2


@pytest.mark.parametrize("ask", [Tensor.item, Tensor.tolist, Tensor.nonzero, torch.bincount])
def test_the_modes_see_what_waits(ask: Any) -> None:
    with _Operations() as operations, _Calls() as calls:
        ask(torch.ones(1, dtype=torch.int64))
    assert operations.asked + calls.asked


def test_experts_are_chosen_and_computed_without_a_word_to_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "autocast", lambda *_, **options: nullcontext())  # unknown to tensors without storage
    monkeypatch.setattr(torch, "is_autocast_enabled", lambda _: False)
    mixture = layer(0.1).to("meta", torch.bfloat16)
    out = mixture(torch.ones(2, 32, HIDDEN, dtype=torch.bfloat16, device="meta", requires_grad=True))
    out.sum().backward()
    assert mixture.gate.weight.grad is not None
    with pytest.raises(NotImplementedError):  # its shape depends on values
        torch.bincount(torch.zeros(4, dtype=torch.int64, device="meta"), minlength=EXPERTS)


def step_optimizer(name: str, home: torch.device, precision: str) -> tuple[StepOptimizer, nn.Module]:
    model = nn.Module()
    model.weight = nn.Parameter(torch.empty(8, 8, device=home))
    one = layout_of(1, micro_batch=8)
    settings = Optimizer.model_validate({"name": name, "lr": 0.1})
    options: dict[str, Any] = {"num_steps": 9, "precision": precision, "device": GPU, "guard": Guard()}
    optimizer = StepOptimizer([model], Mesh(one, "cuda"), settings, **options)
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    return optimizer, model


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
@pytest.mark.parametrize("name", ["adamw", "lion", "sgd"])
def test_an_optimizer_step_asks_a_gpu_for_nothing(monkeypatch: pytest.MonkeyPatch, name: str, precision: str) -> None:
    flags: list[Tensor] = []
    monkeypatch.setattr(torch, "_fused_sgd_", lambda *_, found_inf, **options: flags.append(found_inf))  # has no fake
    with FakeTensorMode():
        optimizer, _ = step_optimizer(name, GPU, precision)
        for step in range(2):
            for each in optimizer.parameters:
                each.whole.grad = torch.ones_like(each.whole)
            norm = optimizer.step(step, torch.ones((), device=GPU))
        assert (norm.device, optimizer.verdict.device) == (GPU, GPU)
        assert [each.device for each in flags] == [GPU, GPU] * (name == "sgd")


def test_other_optimizers_ask_once() -> None:
    with FakeTensorMode(), pytest.raises(DataDependentOutputException):
        step_optimizer("muon", GPU, "bf16")[0].step(0, torch.ones((), device=GPU))


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_weights_on_the_host_are_updated_there_and_judged_on_the_gpu(
    monkeypatch: pytest.MonkeyPatch, precision: str
) -> None:
    with FakeTensorMode():
        optimizer, model = step_optimizer("adamw", CPU, precision)
        assert not optimizer.masks_on_device  # a copy of the verdict that is still under way would be read
        monkeypatch.setattr(optimizer, "_update", optimizer.adamw.step)
        loss = torch.ones((), device=GPU)
        norm = optimizer.step(0, loss)
        assert torch.stack([loss, norm, optimizer.verdict]).device == GPU  # as the telemetry has them
        assert {each.device for each in model.parameters()} == {CPU}


def test_lion_leaves_out_a_step_that_the_flag_refuses() -> None:
    weights = []
    for flags in ([None, None], [0.0, 0.0], [0.0, 1.0, 0.0]):
        weight = nn.Parameter(torch.linspace(-1, 1, 8))
        optimizer = Lion([weight], lr=0.1, betas=(0.9, 0.99), weight_decay=0.1)
        gradient = torch.linspace(1, -2, 8)
        for flag in flags:
            weight.grad = torch.full_like(weight, torch.nan) if flag else gradient
            if flag is not None:
                optimizer.found_inf = torch.tensor(flag)  # type: ignore[attr-defined]
            optimizer.step()
        weights.append(weight.detach())
    torch.testing.assert_close(weights[1], weights[0], rtol=0, atol=0)
    torch.testing.assert_close(weights[2], weights[0], rtol=0, atol=0)


def test_a_table_of_numbers_is_copied_to_a_device_once() -> None:
    codes, scales = torch.zeros(32, dtype=torch.uint8), torch.ones(1)
    dequantized(codes, scales, torch.Size((64,)), torch.float32)
    with _Calls() as calls:
        dequantized(codes, scales, torch.Size((64,)), torch.float32)
    assert calls.asked == Counter()


class _Counted(_HostCopies):
    """Copies whose moments are numbered, with what has waited for them."""

    def __init__(self) -> None:
        self.made, self.waited = 0, set[int]()

    def _next(self) -> int:
        self.made += 1
        return self.made

    def to_host(self, tensor: Tensor) -> tuple[Tensor, int]:
        return tensor.clone(), self._next()

    def to_device(self, host: Tensor, after: int) -> tuple[Tensor, int]:
        return host.clone(), self._next()

    def wait(self, moment: int) -> None:
        self.waited.add(moment)


class _Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(8, 32), nn.Linear(32, 8)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.two(torch.tanh(self.one(x)))


def on_device(offload: _Offload) -> int:
    """Blocks with something on the device that is not the weights."""
    kept = [[each() for each in block.kept] for block in offload._blocks]
    return sum(any(each is not None and each._tensor is not None for each in block) for block in kept)


def test_offloaded_activations_give_the_same_gradients_and_two_blocks_at_most_are_on_the_device() -> None:
    torch.manual_seed(1)
    blocks, x = [_Block() for _ in range(6)], torch.randn(4, 8)
    gradients = []
    copies = _Counted()
    offload = _Offload(copies)
    for forwards in (
        [each.forward for each in blocks],
        [lambda x, f=each.forward: offload.run(f, x) for each in blocks],
    ):
        y = x
        for forward in forwards:
            y = forward(y)
            assert on_device(offload) <= 2
        y.square().sum().backward()
        gradients.append([each.grad for block in blocks for each in block.parameters()])
        for block in blocks:
            block.zero_grad()
    torch.testing.assert_close(gradients[1], gradients[0], rtol=0, atol=0)
    assert copies.made > 2 * len(blocks)
    assert copies.waited == set(range(1, copies.made + 1))  # memory is free only after each copy


def test_weights_are_not_copied_to_the_host() -> None:
    copies = _Counted()
    layer = nn.Linear(8, 8, bias=False)
    _Offload(copies).run(layer.forward, torch.ones(2, 8, requires_grad=True)).sum().backward()
    assert copies.made == 1  # the input
