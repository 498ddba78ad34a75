"""The loss in pieces is the loss at once, in every number format."""

from __future__ import annotations

import functools

import pytest
import torch
from torch.nn.functional import cross_entropy

from trainworks.worker import loss as loss_module
from trainworks.worker.loss import ChunkedCrossEntropy

TOKENS, HIDDEN, VOCABULARY = 4096, 16, 512


def inputs(dtype):
    torch.manual_seed(0)
    x, weight = torch.randn(TOKENS, HIDDEN), torch.randn(VOCABULARY, HIDDEN) * 0.1
    labels = torch.randint(0, VOCABULARY, (TOKENS,))
    labels[::5] = -100
    return x.to(dtype).requires_grad_(), weight.to(dtype).requires_grad_(), labels


@pytest.mark.parametrize("chunk_bytes", [1 << 30, 4 * VOCABULARY * 100])
def test_loss_and_gradients_are_those_of_torch(monkeypatch, chunk_bytes):
    monkeypatch.setattr(loss_module, "CHUNK_BYTES", chunk_bytes)
    x, weight, labels = inputs(torch.float32)
    loss = ChunkedCrossEntropy()(x, weight, labels)
    got = torch.autograd.grad(loss.sum() * 3, (x, weight))
    expected_loss = cross_entropy(x @ weight.T, labels)
    expected = torch.autograd.grad(expected_loss * 3, (x, weight))
    torch.testing.assert_close(loss.view(()), expected_loss)
    torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-7)


@pytest.mark.filterwarnings("ignore:`torch.jit.script_method`:DeprecationWarning")  # the compiler's own
def test_the_compiled_loss_is_that_of_torch(monkeypatch):
    monkeypatch.setattr(loss_module, "CHUNK_BYTES", 4 * VOCABULARY * TOKENS // 2)
    x, weight, labels = inputs(torch.bfloat16)
    compiled = ChunkedCrossEntropy()
    traced = functools.partial(torch.compile, backend="aot_eager", fullgraph=True)  # without a C++ compiler's seconds
    monkeypatch.setattr(torch, "compile", traced)
    compiled.compile()
    (got, *got_gradients), (expected, *expected_gradients) = (
        (loss.detach(), *torch.autograd.grad(loss.sum(), (x, weight)))
        for loss in (each(x, weight, labels) for each in (compiled, ChunkedCrossEntropy()))
    )
    torch.testing.assert_close(got, expected)
    torch.testing.assert_close(got_gradients, expected_gradients)


@pytest.mark.parametrize("chunk_bytes", [1 << 30, 4 * VOCABULARY * 100])
def test_log_probabilities_and_their_gradients_are_those_of_torch(monkeypatch, chunk_bytes):
    monkeypatch.setattr(loss_module, "CHUNK_BYTES", chunk_bytes)
    x, weight, labels = inputs(torch.float32)
    factors = torch.randn(TOKENS)
    values = ChunkedCrossEntropy().log_probabilities(x, weight, labels)
    got = torch.autograd.grad((values * factors).sum(), (x, weight))
    expected_values = -cross_entropy(x @ weight.T, labels, reduction="none")
    expected = torch.autograd.grad((expected_values * factors).sum(), (x, weight))
    torch.testing.assert_close(values, expected_values)
    torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-5)


def test_the_scale_of_the_loss_saves_small_gradients_in_fp16():
    scale = 65536.0
    x, weight, labels = inputs(torch.float16)
    got = torch.autograd.grad(ChunkedCrossEntropy()(x, weight, labels).sum() * scale, (x,))[0].float() / scale
    whole_x, whole_weight = x.detach().float().requires_grad_(), weight.detach().float()
    expected = torch.autograd.grad(cross_entropy(whole_x @ whole_weight.T, labels), (whole_x,))[0]
    assert (got - expected).norm() / expected.norm() < 2e-3


def test_without_a_label_that_counts_the_loss_is_0():
    x, weight, labels = inputs(torch.float32)
    loss = ChunkedCrossEntropy()(x, weight, torch.full_like(labels, -100))
    loss.sum().backward()
    assert loss.item() == 0
    assert not x.grad.any()
