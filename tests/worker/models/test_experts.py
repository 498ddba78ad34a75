"""The loss that keeps experts in use."""

from __future__ import annotations

import torch
from transformers.models.mixtral.modeling_mixtral import load_balancing_loss_func

from trainworks.worker.models.experts import ExpertBalance, MixtureOfExperts

HIDDEN, EXPERTS, PER_TOKEN = 16, 4, 2


def layer(balance_loss: float) -> MixtureOfExperts:
    """One whose router prefers the first expert by far."""
    mixture = MixtureOfExperts(
        HIDDEN,
        32,
        experts=EXPERTS,
        experts_per_token=PER_TOKEN,
        renormalize=True,
        balance_loss=balance_loss,
    )
    torch.manual_seed(1)
    with torch.no_grad():
        for parameter in mixture.parameters():
            parameter.normal_(std=0.2)
        mixture.gate.weight[0] += 0.5
    return mixture


def tokens(num_sequences: int) -> torch.Tensor:
    """Hidden states [B, 32, D] with a mean, so that a router can prefer an expert for all of them."""
    return 0.5 + torch.randn(num_sequences, 32, HIDDEN, generator=torch.manual_seed(2))


def busiest(mixture: MixtureOfExperts, x_BTD: torch.Tensor) -> float:
    """Tokens of the busiest expert over what each would have if all had the same."""
    chosen = mixture.gate(x_BTD).topk(PER_TOKEN).indices
    counts = torch.bincount(chosen.flatten(), minlength=EXPERTS)
    return float(counts.max() / counts.float().mean())


def test_the_gradient_is_that_of_transformers_for_one_sequence() -> None:
    logits_TE = torch.randn(32, EXPERTS, generator=torch.manual_seed(3), requires_grad=True)
    theirs = 0.3 * load_balancing_loss_func((logits_TE,), EXPERTS, PER_TOKEN)
    (expected,) = torch.autograd.grad(theirs, logits_TE)
    probability = logits_TE.softmax(-1).unsqueeze(0)
    weight, chosen = probability.topk(PER_TOKEN)
    balance = ExpertBalance(0.3)
    balance.scale = 8.0
    joined = balance(weight.detach(), probability, chosen)
    assert torch.equal(joined, weight)
    joined.sum().backward()
    torch.testing.assert_close(logits_TE.grad, 8.0 * expected)


def test_a_batch_is_the_mean_of_its_sequences() -> None:
    x = tokens(2)
    gradients = []
    for part in (x, x[:1], x[1:]):
        mixture = layer(0.1)
        mixture(part).sum().mul(0.0).backward()
        gradients.append(mixture.gate.weight.grad)
    torch.testing.assert_close(gradients[0], (gradients[1] + gradients[2]) / 2)


def test_experts_that_nobody_asked_come_into_use() -> None:
    x = tokens(4)
    mixture, left_alone = layer(0.1), layer(0.0)
    before = busiest(mixture, x)
    for each in (mixture, left_alone):
        optimizer = torch.optim.SGD(each.parameters(), lr=0.5)
        for _ in range(100):
            optimizer.zero_grad()
            each(x).pow(2).mean().backward()
            optimizer.step()
    assert before > 1.8
    assert busiest(mixture, x) < 1.3 < busiest(left_alone, x)


def test_without_gradients_there_is_no_loss() -> None:
    x = tokens(1)
    with torch.no_grad():
        assert torch.equal(layer(0.1)(x), layer(0.0)(x))


def test_the_router_does_not_round_to_16_bits() -> None:
    x = tokens(1)
    mixture = layer(0.0)
    exact = mixture.gate(x.bfloat16().float())
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(mixture.gate(x.bfloat16()), exact)


def test_autocast_multiplies_the_experts_in_16_bits(monkeypatch):
    multiplied = []
    grouped_mm = torch.nn.functional.grouped_mm

    def noted(x_RD: torch.Tensor, weight: torch.Tensor, **options: object) -> torch.Tensor:
        multiplied.append((x_RD.dtype, weight.dtype))
        return grouped_mm(x_RD, weight, **options)

    monkeypatch.setattr(torch.nn.functional, "grouped_mm", noted)
    mixture, x_BTD = layer(balance_loss=0.0), tokens(2)
    with torch.autocast("cpu", torch.bfloat16):
        out_BTD = mixture(x_BTD)
    assert multiplied == [(torch.bfloat16, torch.bfloat16)] * 3
    assert out_BTD.dtype == torch.float32
    torch.testing.assert_close(out_BTD, mixture(x_BTD), rtol=0.02, atol=0.02)
