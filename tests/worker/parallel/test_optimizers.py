"""Muon, Lion and SGD in several layouts are those of torch, run by hand on the whole model."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy

from tests.plan.shapes import shape
from tests.worker.parallel.test_equivalence import GLOBAL_BATCH, LLAMA, POSITIONS
from tests.worker.parallel.test_evaluation import layout_of
from tests.worker.ranks import on_ranks
from trainworks.config.optimizer import Optimizer
from trainworks.config.recovery import Guard
from trainworks.errors import LayoutError, UsageError
from trainworks.plan.run.optimizer import moment_bytes
from trainworks.worker.mesh import Mesh
from trainworks.worker.models.decoder import Decoder, DecoderConfig
from trainworks.worker.models.weights import draw_weights
from trainworks.worker.muon import Muon
from trainworks.worker.optimizer import StepOptimizer, named_parameters
from trainworks.worker.parallel.build import Setup, distribute_decoder
from trainworks.worker.timing import Timeline
from trainworks.worker.update_rules import Lion

NUM_STEPS, CPU = 5, torch.device("cpu")
UNEVEN = replace(LLAMA, feed_forward=46)
"""Neither four shards nor two of a half of them have equally many rows of the MLP."""
GROUPS = (
    {"parameters": "*embed*", "lr": 0.002},
    {"parameters": "*layers.1.*", "lr": 0.04, "weight_decay": 0.3},
    {"parameters": "*norm*", "weight_decay": 0.2},
)
Weights = dict[str, np.ndarray]


def settings(name: str) -> Optimizer:
    same = {"lr": 0.02, "eps": 1e-5, "schedule": "constant", "weight_decay": 0.1}
    if name == "groups":
        return Optimizer.model_validate(same | {"schedule": "linear", "groups": GROUPS})
    return Optimizer.model_validate(same | {"name": name})


def batches() -> torch.Tensor:
    shape = (NUM_STEPS, GLOBAL_BATCH, POSITIONS + 1)
    return torch.randint(0, LLAMA.vocabulary, shape, generator=torch.manual_seed(7))


def train(config: DecoderConfig, layout: Any, name: str) -> tuple[Weights, list[int]]:
    """Weights of this rank after a few steps, whole, and bytes of optimizer state and parameters."""
    mesh = Mesh(layout, "cpu", whole_matrices=name == "muon")
    setup = Setup(mesh=mesh, device=CPU, precision="fp32", compiled=False, timeline=Timeline(CPU))
    parallel = distribute_decoder(
        config, setup, positions=POSITIONS, first_weights=lambda parts: draw_weights(parts, seed=3)
    )
    optimizer = StepOptimizer(
        parallel.parts,
        mesh,
        settings(name),
        num_steps=NUM_STEPS,
        precision="fp32",
        device=CPU,
        guard=Guard(),
    )
    own = batches().view(NUM_STEPS, layout.grad_accum_steps, layout.dp, layout.micro_batch, -1)[:, :, mesh.dp_rank]
    stretch = POSITIONS // layout.cp
    first = mesh.cp_rank * stretch
    x, labels = own[..., first : first + stretch], own[..., first + 1 : first + stretch + 1]
    for step in range(NUM_STEPS):
        loss = parallel.gradients(x[step], labels[step], scale=1 / layout.grad_accum_steps)
        optimizer.step(step, loss)
    found = named_parameters(parallel.parts)
    whole = {name: getattr(each, "full_tensor", lambda each=each: each)().detach().numpy() for name, each in found}
    states = [value for state in optimizer.adamw.state.values() for value in state.values()]
    held = [value.numel() * value.element_size() for value in states if isinstance(value, torch.Tensor) and value.ndim]
    return whole, [sum(held), sum(each.local.numel() for each in optimizer.parameters)]


def by_hand(config: DecoderConfig, name: str) -> Weights:
    """The same with torch's optimizers, one after the other."""
    model = Decoder(config)
    draw_weights([model], seed=3)
    named = list(model.named_parameters())
    hidden = [each for key, each in named if each.ndim == 2 and "layers" in key]
    rest = [each for key, each in named if each.ndim == 2 and "layers" not in key]
    vectors = [each for _, each in named if each.ndim == 1]
    chosen = settings(name)
    groups = [{"params": [*hidden, *rest], "weight_decay": 0.1}, {"params": vectors, "weight_decay": 0.0}]
    optimizers: list[torch.optim.Optimizer]
    if name == "muon":
        groups[0]["params"] = rest
        optimizers = [
            torch.optim.Muon(hidden, lr=0.02, weight_decay=0.1, adjust_lr_fn="match_rms_adamw"),
            torch.optim.AdamW(groups, lr=0.02, betas=chosen.betas, eps=chosen.eps),
        ]
    elif name == "sgd":
        optimizers = [torch.optim.SGD(groups, lr=0.02, momentum=chosen.betas[0])]
    else:
        optimizers = []
    momenta = {key: torch.zeros_like(each) for key, each in named}
    for batch in batches():
        loss = cross_entropy(model(batch[:, :-1]).flatten(0, 1), batch[:, 1:].flatten())
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for each in optimizers:
            each.step()
        if name == "lion":
            _step_of_lion(named, momenta, chosen)
        model.zero_grad()
    return {key: each.detach().numpy() for key, each in named}


@torch.no_grad()
def _step_of_lion(named: Any, momenta: dict[str, torch.Tensor], chosen: Optimizer) -> None:
    """Algorithm 2 of the paper, parameter by parameter."""
    first, second = chosen.betas
    for key, weight in named:
        update = torch.sign(first * momenta[key] + (1 - first) * weight.grad)
        weight.sub_(chosen.lr * (update + (chosen.weight_decay if weight.ndim == 2 else 0.0) * weight))
        momenta[key] = second * momenta[key] + (1 - second) * weight.grad


@pytest.mark.parametrize(
    ("name", "ranks", "degrees"),
    [
        ("muon", 2, {"dp_replicate": 2}),
        ("muon", 2, {"pp": 2}),
        ("lion", 2, {"dp_shard": 2}),
        ("sgd", 2, {"tp": 2}),
    ],
)
def test_an_optimizer_is_that_of_torch_in_every_layout_that_it_takes(
    name: str, ranks: int, degrees: dict[str, Any]
) -> None:
    found = on_ranks(ranks, train, LLAMA, layout_of(ranks, **degrees), name)
    weights = {key: value for own, _ in found for key, value in own.items()}
    expected = on_ranks(1, by_hand, LLAMA, name)[0]
    assert weights.keys() == expected.keys()
    for key, value in expected.items():
        # A gradient that is zero but for rounding has either sign, which Lion takes at its word. Muon iterates in
        # bf16, where gradients that round otherwise show: 3e-3 is a twentieth of what a weight can move.
        far = np.abs(weights[key] - value) > (3e-3 if name == "muon" else 2e-4)
        assert far.mean() < (0.002 if name == "lion" else 1e-9), f"{key}: {far.mean():.1%} of the elements differ"


def test_an_update_of_muon_is_that_of_torch_bit_for_bit() -> None:
    """torch iterates in bf16."""
    first, gradients = torch.randn(6, 4, generator=torch.manual_seed(1)), torch.randn(3, 6, 4)
    ours, theirs = torch.nn.Parameter(first.clone()), torch.nn.Parameter(first.clone())
    options: dict[str, Any] = {"lr": 0.02, "weight_decay": 0.1}
    own = Muon([ours], **options, cuts={}, group=None, dtype=torch.bfloat16, device=CPU)
    for optimizer, parameter in (
        (own, ours),
        (torch.optim.Muon([theirs], **options, adjust_lr_fn="match_rms_adamw"), theirs),
    ):
        for gradient in gradients:
            parameter.grad = gradient.clone()
            optimizer.step()
    assert torch.equal(ours, theirs)


def groups_by_hand(config: DecoderConfig) -> Weights:
    """AdamW of torch with the same groups, and torch's linear schedule."""
    model = Decoder(config)
    draw_weights([model], seed=3)
    chosen = settings("groups")
    groups = []
    for key, each in model.named_parameters():
        rate, decay = 0.02, 0.1 if each.ndim == 2 else 0.0
        if "embed" in key:
            rate = 0.002
        elif "layers.1." in key:
            rate, decay = 0.04, 0.3
        elif "norm" in key:
            decay = 0.2
        groups.append({"params": [each], "lr": rate, "weight_decay": decay})
    optimizer = torch.optim.AdamW(groups, betas=chosen.betas, eps=chosen.eps)
    schedule = torch.optim.lr_scheduler.LinearLR(
        optimizer, start_factor=1.0, end_factor=chosen.min_lr_ratio, total_iters=NUM_STEPS
    )
    for batch in batches():
        cross_entropy(model(batch[:, :-1]).flatten(0, 1), batch[:, 1:].flatten()).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        model.zero_grad()
    return {key: each.detach().numpy() for key, each in model.named_parameters()}


@pytest.mark.parametrize("degrees", [{"dp_shard": 2}, {"tp": 2}, {"pp": 2}])
def test_groups_of_parameters_learn_as_those_of_torch_in_every_layout(degrees: dict[str, Any]) -> None:
    found = on_ranks(2, train, LLAMA, layout_of(2, **degrees), "groups")
    weights = {key: value for own, _ in found for key, value in own.items()}
    expected = on_ranks(1, groups_by_hand, LLAMA)[0]
    assert weights.keys() == expected.keys()
    for key, value in expected.items():
        assert np.abs(weights[key] - value).max() < 2e-4, key


def optimizer_of(module: torch.nn.Module, *groups: dict[str, Any], name: str = "adamw") -> StepOptimizer:
    chosen = Optimizer.model_validate({"name": name, "lr": 0.02, "groups": groups})
    mesh = Mesh(layout_of(1, micro_batch=8), "cpu")
    return StepOptimizer([module], mesh, chosen, num_steps=4, precision="fp32", device=CPU, guard=Guard())


@pytest.mark.parametrize("name", ["adamw", "adamw-8bit", "lion", "sgd"])
def test_a_group_with_a_rate_of_0_stays_as_it_is(name: str) -> None:
    module = torch.nn.Linear(3, 2)
    before = {key: each.detach().clone() for key, each in module.named_parameters()}
    optimizer = optimizer_of(module, {"parameters": "bias", "lr": 0}, {"parameters": "weight", "lr": 0.1}, name=name)
    module(torch.ones(1, 3)).sum().backward()
    optimizer.step(0, torch.ones(()))
    assert torch.equal(module.bias, before["bias"])
    assert not torch.equal(module.weight, before["weight"])


def test_a_resumed_optimizer_has_the_rates_of_its_groups() -> None:
    def steps(module: torch.nn.Module, optimizer: StepOptimizer, first: int, last: int) -> None:
        for step in range(first, last):
            module(torch.full((1, 3), step + 1.0)).square().sum().backward()
            optimizer.step(step, torch.ones(()))

    group = {"parameters": "weight", "lr": 0.1}
    whole, killed = torch.nn.Linear(3, 2), torch.nn.Linear(3, 2)
    killed.load_state_dict(whole.state_dict())
    steps(whole, optimizer_of(whole, group), 0, 4)
    before = optimizer_of(killed, group)
    steps(killed, before, 0, 2)
    after = optimizer_of(killed, group)
    weights = {key: each.clone() for key, each in killed.state_dict().items()}
    after.fill_state()
    killed.load_state_dict(weights)
    for name, state in after.checkpoint_state()["optimizer"].items():  # type: ignore[attr-defined]
        for key, value in state.items():
            value.copy_(before.checkpoint_state()["optimizer"][name][key])  # type: ignore[index]
    steps(killed, after, 2, 4)
    assert all(torch.equal(each, killed.state_dict()[key]) for key, each in whole.state_dict().items())


@pytest.mark.parametrize(
    ("patterns", "message", "hint"),
    [
        (["wieght"], "no trained parameter has such a name", "did you mean `weight`"),
        (["zzz"], "no trained parameter has such a name", "a pattern needs `*`"),
        (["*", "bias"], "earlier groups take all that it fits", "put it first"),
    ],
)
def test_a_group_without_parameters_is_refused(patterns: list[str], message: str, hint: str) -> None:
    with pytest.raises(UsageError) as caught:
        optimizer_of(torch.nn.Linear(3, 2), *({"parameters": pattern, "lr": 0.1} for pattern in patterns))
    assert message in caught.value.message
    assert hint in str(caught.value.hint)


@pytest.mark.parametrize(
    "wrong", [{"name": "muon", "groups": [{"parameters": "*", "lr": 1}]}, {"groups": [{"parameters": "*"}]}]
)
def test_groups_that_no_optimizer_can_follow_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="group"):
        Optimizer.model_validate(wrong)


def refused(config: DecoderConfig, layout: Any, name: str) -> str:
    with pytest.raises(LayoutError) as caught:
        train(config, layout, name)
    return caught.value.message


@pytest.mark.parametrize(
    ("ranks", "degrees"),
    [
        (2, {"dp_shard": 2}),
        (2, {"tp": 2}),
        (2, {"tp": 2, "sequence_parallel": True}),
        (2, {"pp": 2}),
        (2, {"cp": 2}),
        (4, {"dp_replicate": 2, "dp_shard": 2}),
        (4, {"dp_shard": 2, "tp": 2}),
        (4, {"tp": 2, "pp": 2}),
    ],
)
def test_muon_of_parts_is_muon_of_whole_matrices(ranks: int, degrees: dict[str, Any]) -> None:
    found = on_ranks(ranks, train, UNEVEN, layout_of(ranks, **degrees), "muon")
    weights = {key: value for own, _ in found for key, value in own.items()}
    (alone, _) = on_ranks(1, train, UNEVEN, layout_of(1, micro_batch=8), "muon")[0]
    assert weights.keys() == alone.keys()
    for key, value in alone.items():
        by_muon = "layers" in key and value.ndim == 2
        assert np.abs(weights[key] - value).max() < (5e-6 if by_muon else 2e-5), key


def test_8_bit_moments_refuse_parts_of_rows() -> None:
    assert "scales rows" in on_ranks(2, refused, LLAMA, layout_of(2, tp=2), "adamw-8bit")[0]


def test_8_bit_moments_do_not_depend_on_the_shards() -> None:
    shards = on_ranks(2, train, LLAMA, layout_of(2, dp_shard=2, micro_batch=4), "adamw-8bit")[0][0]
    alone = on_ranks(1, train, LLAMA, layout_of(1, micro_batch=8), "adamw-8bit")[0][0]
    for key, value in alone.items():
        # Gradients that round otherwise fall into a neighbouring code now and then.
        assert (np.abs(shards[key] - value) > 1e-4).mean() < 0.02, key


@pytest.mark.parametrize("name", ["adamw", "adamw-8bit", "muon", "lion", "sgd"])
def test_planned_bytes_of_state_are_those_of_the_optimizer(name: str) -> None:
    (_, (state, parameters)) = on_ranks(1, train, LLAMA, layout_of(1, micro_batch=8), name)[0]
    described = shape(
        layers=LLAMA.layers,
        hidden=LLAMA.hidden,
        heads=LLAMA.heads,
        kv_heads=LLAMA.kv_heads,
        feed_forward=LLAMA.feed_forward,
        vocabulary=LLAMA.vocabulary,
        tie_embeddings=False,
    )
    assert described.num_parameters == parameters
    assert moment_bytes(settings(name), described) * parameters == pytest.approx(state, rel=0.03)


def test_lion_without_gradients_does_nothing() -> None:
    weight = torch.nn.Parameter(torch.ones(2))
    Lion([weight], lr=0.1, betas=(0.9, 0.99)).step()
    assert weight.tolist() == [1.0, 1.0]
