"""Attention by every kernel: packed documents are what they are alone, windows what a plain masked softmax gives.

This machine has no GPU. FlashAttention's own operators run here with plain ones in their place, which are registered
under torch's names, so that all of the way to them is the real one; FlexAttention has no backward on a CPU.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.attention import varlen

from tests.plan.shapes import shape
from trainworks.config.layout import Layout, resolve_layout
from trainworks.config.software import PIECE, AttentionTask, Kernel
from trainworks.plan.degrees import layouts_of
from trainworks.plan.run.memory import run_memories
from trainworks.worker.models.attention import attention_task, kernel_of
from trainworks.worker.models.decoder import Decoder, DecoderConfig, PackedTokens
from trainworks.worker.models.weights import draw_weights
from trainworks.worker.parallel.blocks import recompute

LENGTHS = (9, 140, 1, 30, 76)
POSITIONS = sum(LENGTHS)
CONFIG = DecoderConfig(
    vocabulary=64,
    hidden=32,
    layers=2,
    heads=4,
    kv_heads=2,
    head_dim=16,
    feed_forward=48,
    max_positions=POSITIONS,
    rope_frequencies=tuple(10000 ** (-i / 8) for i in range(8)),
    initializer_range=0.1,
)
KERNELS: tuple[Kernel, ...] = ("masked", "pieces", "varlen", "flex")
TRAINED = KERNELS[:3]
EAGER_FLEX = pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
SIZES: dict[str, Any] = {"head_dim": 128, "positions": 8192}
A100 = AttentionTask(device="cuda", half=True, **SIZES)


def documents(rows: int = 1) -> Tensor:
    """Positions [rows, T] of packed documents, in another order in each row."""
    orders = itertools.islice(itertools.permutations(LENGTHS), 0, None, 7)
    return torch.stack([torch.cat([torch.arange(size) for size in order]) for order in itertools.islice(orders, rows)])


CALLS: list[str] = []
"""Names of the plain operators that ran in the place of FlashAttention's."""


@varlen._varlen_attn.register_kernel("cpu")
def _(q, k, v, starts, _, longest, __, is_causal, scale, window, *___):
    """Of each document by itself: keys from `window[0]` before a query, or from the first one at -1, to its own."""
    CALLS.append("forward")
    assert (is_causal, scale) == (window == [-1, 0], None)
    assert starts.dtype == torch.int32
    assert int(starts.diff().max()) <= longest
    out, logs = torch.empty_like(q), torch.empty(q.shape[1], len(q))
    for own, seen in documents_of(starts, window[0]):
        out[own], logs[:, own] = softmax_of(q[own], k[own], v[own], seen)
    return out, logs, torch.zeros(2, dtype=torch.uint64)


@varlen._varlen_attn_backward.register_kernel("cpu")
def _(grad, q, k, v, out, logs, starts, *rest):
    """With P of the forward: dV = P^T dO, dS = P (dO V^T - sum(dO O)), dQ = dS K, dK = dS^T Q."""
    CALLS.append("backward")
    grads = [torch.zeros_like(x) for x in (q, k, v)]
    shared = q.shape[1] // k.shape[1]
    for own, seen in documents_of(starts, rest[-1][0]):
        keys, values = (x[own].repeat_interleave(shared, dim=1) for x in (k, v))
        p = torch.where(seen, (scores_of(q[own], keys) - logs[:, own].unsqueeze(2)).exp(), 0.0)
        ds = torch.einsum("tnh,snh->nts", grad[own], values) - (grad[own] * out[own]).sum(2).T.unsqueeze(2)
        ds = p * ds / math.sqrt(q.shape[2])
        grads[0][own] = torch.einsum("nts,snh->tnh", ds, keys)
        for each, of_heads in ((grads[1], (ds, q[own])), (grads[2], (p, grad[own]))):
            each[own] = torch.einsum("nts,tnh->snh", *of_heads).unflatten(1, (-1, shared)).sum(2)
    return tuple(grads)


def documents_of(starts: Tensor, left: int) -> Iterator[tuple[slice, Tensor]]:
    """Tokens of each document, and the keys that each of them sees."""
    for begin, end in itertools.pairwise(starts.tolist()):
        at = torch.arange(end - begin)
        distance = at.unsqueeze(1) - at
        yield slice(begin, end), (distance >= 0) & ((distance <= left) | (left < 0))


def scores_of(q: Tensor, k: Tensor) -> Tensor:
    """[N, T, S]."""
    return torch.einsum("tnh,snh->nts", q, k) / math.sqrt(q.shape[2])


def softmax_of(q: Tensor, k: Tensor, v: Tensor, seen: Tensor) -> tuple[Tensor, Tensor]:
    """[T, N, H] and the log-sum-exp [N, T]."""
    shared = q.shape[1] // k.shape[1]
    k, v = (x.repeat_interleave(shared, dim=1) for x in (k, v))
    scores = scores_of(q, k).masked_fill(~seen, -math.inf)
    return torch.einsum("nts,snh->tnh", scores.softmax(-1), v), scores.logsumexp(-1)


def force(monkeypatch: pytest.MonkeyPatch, kernel: Kernel) -> None:
    monkeypatch.setattr(AttentionTask, "kernel", property(lambda self: kernel))


def decoder(**changes: Any) -> Decoder:
    model = Decoder(dataclasses.replace(CONFIG, **changes))
    draw_weights([model], seed=1)
    return model


def rows(count: int = 2) -> tuple[PackedTokens, Tensor]:
    """Packed rows and the label of every token."""
    tokens = torch.randint(0, CONFIG.vocabulary, (count, POSITIONS), generator=torch.manual_seed(3))
    return PackedTokens(tokens, documents(count)), (tokens * 7 + 3) % CONFIG.vocabulary


def step(model: Decoder, batches: list[tuple[Any, Tensor]]) -> tuple[float, dict[str, Tensor]]:
    """Mean loss per token over all batches, and its gradients."""
    model.zero_grad()
    total = sum(labels.numel() for _, labels in batches)
    loss = 0.0
    for x, labels in batches:
        part = model(x, labels).sum() * labels.numel() / total
        part.backward()
        loss += part.item()
    return loss, {name: each.grad.clone() for name, each in model.named_parameters() if each.grad is not None}


def alone(packed: PackedTokens, labels: Tensor) -> list[tuple[Any, Tensor]]:
    """Every document as a batch of its own."""
    found = []
    for row, positions, label in zip(packed.tokens, packed.positions, labels, strict=True):
        sizes = [*(positions == 0).nonzero().squeeze(1).diff().tolist()]
        sizes.append(POSITIONS - sum(sizes))
        found += [(x[None], y[None]) for x, y in zip(row.split(sizes), label.split(sizes), strict=True)]
    return found


@pytest.mark.parametrize("window", [0, 20, 1])
@pytest.mark.parametrize("kernel", TRAINED)
def test_packed_documents_have_the_loss_and_the_gradients_that_they_have_alone(kernel, window, monkeypatch):
    model = decoder(sliding_window=window)
    packed, labels = rows()
    with monkeypatch.context() as patch:
        force(patch, "masked")
        expected_loss, expected = step(model, alone(packed, labels))
    force(monkeypatch, kernel)
    loss, grads = step(model, [(packed, labels)])
    assert loss == pytest.approx(expected_loss, abs=1e-6)
    for name, value in expected.items():
        assert (grads[name] - value).abs().max() <= 1e-6, name


@torch.no_grad()
@EAGER_FLEX
@pytest.mark.parametrize("window", [0, 20])
def test_flexattention_gives_packed_documents_the_logits_that_they_have_alone(window, monkeypatch):
    model = decoder(sliding_window=window)
    packed, labels = rows()
    expected = [model(x) for x, _ in alone(packed, labels)]
    force(monkeypatch, "flex")
    assert (model(packed).flatten(0, 1) - torch.cat(expected, dim=1)[0]).abs().max() <= 1e-5


@pytest.mark.parametrize("window", [0, 1, 20, 128, 200])
@pytest.mark.parametrize("packed", [False, True])
@EAGER_FLEX
@pytest.mark.parametrize("kernel", KERNELS)
def test_a_kernel_is_a_masked_softmax(kernel, packed, window, monkeypatch):
    generator = torch.manual_seed(5)
    q, k, v, grad = (torch.randn(2, POSITIONS, heads, 16, generator=generator) for heads in (4, 2, 2, 4))
    positions = documents(2) if packed else None
    at = torch.arange(POSITIONS)
    seen = (at.unsqueeze(1) >= at) & (at.unsqueeze(1) - at < (window or POSITIONS))
    force(monkeypatch, kernel)
    task = attention_task(q, head_dim=16, positions=POSITIONS, documents=packed, window=window)
    attend = kernel_of(task, q, positions)
    trained = kernel != "flex"
    inputs = [x.requires_grad_(trained) for x in (q, k, v)]
    out = attend(*inputs)
    plain = [x.detach().double().requires_grad_() for x in inputs]
    of_rows = []
    for row in range(2):
        own = seen
        if positions is not None:
            number = (positions[row] == 0).cumsum(0)
            own = seen & (number.unsqueeze(1) == number)
        of_rows.append(softmax_of(*(x[row] for x in plain), own)[0])
    expected = torch.stack(of_rows)
    assert (out - expected).abs().max() <= 2e-6
    if trained:
        ours, theirs = torch.autograd.grad(out, inputs, grad), torch.autograd.grad(expected, plain, grad.double())
        assert max((a - b).abs().max() for a, b in zip(ours, theirs, strict=True)) <= 5e-6


def test_a_row_does_not_depend_on_the_rows_beside_it():
    model = decoder().eval()
    packed, _ = rows(3)
    together = model(packed)
    assert torch.equal(together[1:2], model(PackedTokens(packed.tokens[1:2], packed.positions[1:2])))


def test_dropout_changes_what_pieces_compute():
    """And the expectation stays: no kernel leaves it out."""
    model = decoder(dropout=0.5).train()
    packed, labels = rows()
    torch.manual_seed(0)
    first, second = (model(packed, labels).item() for _ in range(2))
    assert first != second


@pytest.mark.parametrize("what", ["selective", "full"])
@pytest.mark.parametrize("kernel", TRAINED)
def test_recomputation_gives_the_same_gradients(kernel, what, monkeypatch):
    force(monkeypatch, kernel)
    _, expected = step(decoder(), [rows()])
    again = decoder()
    recompute(again.blocks, what)
    _, got = step(again, [rows()])
    for name, value in expected.items():
        assert torch.equal(got[name], value), name


def test_selective_recomputation_keeps_what_flashattention_gave(monkeypatch):
    force(monkeypatch, "varlen")
    CALLS.clear()
    model = decoder()
    recompute(model.blocks, "selective")
    step(model, [rows()])
    assert sorted(CALLS) == ["backward"] * 2 + ["forward"] * 2


MASKS: dict[str, dict[str, Any]] = {"none": {}, "documents": {"documents": True}, "window": {"window": 4096}}


@pytest.mark.parametrize(
    ("device", "expected"),
    [
        ({}, ["sdpa", "varlen", "varlen"]),
        ({"capability": (9, 0)}, ["sdpa", "varlen", "varlen"]),
        ({"capability": (7, 5)}, ["sdpa", "flex", "flex"]),
        ({"capability": (7, 5), "flex": False}, ["sdpa", "pieces", "pieces"]),
        ({"half": False}, ["sdpa", "flex", "flex"]),
        ({"half": False, "deterministic": True}, ["flex", "flex", "flex"]),
        ({"half": False, "dropout": True}, ["sdpa", "pieces", "pieces"]),
        ({"deterministic": True}, ["sdpa", "varlen", "varlen"]),
        ({"dropout": True}, ["sdpa", "pieces", "pieces"]),
        ({"varlen": False}, ["sdpa", "flex", "flex"]),
        ({"head_dim": 256}, ["sdpa", "varlen", "varlen"]),
        ({"head_dim": 256, "capability": (8, 9)}, ["sdpa", "flex", "flex"]),
        ({"head_dim": 12}, ["sdpa", "pieces", "pieces"]),
        ({"device": "cpu"}, ["sdpa", "pieces", "pieces"]),
        ({"device": "mps"}, ["sdpa", "pieces", "pieces"]),
        ({"device": "cpu", "positions": PIECE, "window": 64}, ["masked", "masked", "sdpa"]),
    ],
    ids=lambda value: " ".join(f"{key} {each}" for key, each in value.items()) if isinstance(value, dict) else "",
)
def test_the_kernel_follows_from_device_and_mask(device, expected):
    found = [dataclasses.replace(A100, **(device | mask)).kernel for mask in MASKS.values()]
    assert found == expected


def test_a_window_as_long_as_the_row_is_none():
    assert dataclasses.replace(A100, window=8192).kernel == "sdpa"


def test_no_choice_of_a_gpu_writes_scores_where_another_kernel_does_not():
    """Groups of key heads, which memory-efficient attention does not know, are repeated for it."""
    turing = dataclasses.replace(A100, capability=(7, 5))
    assert (A100.repeats_keys, turing.repeats_keys, turing.copied_heads(32, 8)) == (False, True, 48)


@pytest.mark.parametrize(("packed", "window"), [(True, 0), (False, 20), (True, 20), (True, 150), (False, 150)])
@pytest.mark.parametrize("kernel", KERNELS)
def test_a_mask_takes_the_bytes_that_the_plan_counts(kernel, packed, window, monkeypatch):
    x, positions = torch.zeros(3, POSITIONS, 4), documents(3) if packed else None
    force(monkeypatch, kernel)
    task = attention_task(x, head_dim=16, positions=POSITIONS, documents=packed, window=window)
    held = held_bytes(kernel_of(task, x, positions))
    assert 0 < held <= task.mask_bytes(3)
    if kernel == "masked":
        assert held == task.mask_bytes(3)


def held_bytes(kernel: Any) -> int:
    """Storages of the tensors in the fields of a kernel."""
    found: dict[int, int] = {}

    def add(value: Any) -> None:
        if isinstance(value, Tensor):
            found[value.untyped_storage().data_ptr()] = value.untyped_storage().nbytes()
        elif isinstance(value, tuple):
            [add(each) for each in value]
        elif hasattr(value, "as_tuple"):
            add(value.as_tuple())
            [add(cell.cell_contents) for cell in value.mask_mod.__closure__ or ()]

    for field in dataclasses.fields(kernel):
        add(getattr(kernel, field.name))
    return sum(found.values())


@pytest.mark.parametrize("kernel", ["masked", "pieces"])
def test_the_plan_counts_what_packed_rows_keep_until_backward(kernel, monkeypatch):
    """All blocks of packed rows, as autograd saves them; statistics and positions are left out of the plan."""
    force(monkeypatch, kernel)
    config = {"layers": 4, "hidden": 64, "heads": 4, "kv_heads": 2, "feed_forward": 96}
    model = decoder(**config)
    packed, _ = rows(4)
    kept: dict[int, int] = {}
    own = {each.untyped_storage().data_ptr() for each in model.parameters()}

    def save(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(save, lambda tensor: tensor):
        hidden = model(packed)
    assert hidden.requires_grad
    kept_bytes = sum(kept.values())
    layouts = layouts_of([resolve_layout(Layout(), world_size=1, global_batch=4, micro_batch=4)])
    task = attention_task(torch.zeros(4, 1, 1), head_dim=16, positions=POSITIONS, documents=True)
    planned = run_memories(
        shape(64, POSITIONS, tie_embeddings=False, **config),
        layouts,
        sequence_length=POSITIONS,
        precision="fp32",
        baseline_bytes=0,
        attention=task,
    ).terms()
    assert planned.activations_bytes == pytest.approx(kept_bytes, rel=0.1)
