"""The law of layouts for evaluation: held-out loss and accuracy of every layout are those of one process."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from tests.worker.parallel.test_equivalence import LLAMA, MODELS, POSITIONS
from tests.worker.ranks import on_ranks
from trainworks.config.data import Evaluation
from trainworks.config.layout import Layout, resolve_layout
from trainworks.worker.callbacks import EvaluatedBatch, OwnMetrics
from trainworks.worker.data.order import FullShuffle
from trainworks.worker.evaluation import Evaluator
from trainworks.worker.health.heartbeat import Heartbeat
from trainworks.worker.mesh import Mesh
from trainworks.worker.models.decoder import DecoderConfig
from trainworks.worker.models.weights import draw_weights
from trainworks.worker.parallel.build import Setup, distribute_decoder, distribute_module
from trainworks.worker.tasks.causal_lm import CausalLanguageModeling
from trainworks.worker.tasks.transformer_tasks import MaskedLanguageModeling, _Objective
from trainworks.worker.timing import Timeline

GLOBAL_BATCH, NUM_SAMPLES = 8, 21
CPU = torch.device("cpu")


class HeldOut:
    """Random tokens, or labelled features."""

    fingerprint, sample_bytes = "held-out", 100

    def __init__(self, num_samples: int, *, labelled: bool = False) -> None:
        draw = np.random.default_rng(5)
        self._tokens = draw.integers(0, 64, (num_samples, POSITIONS + 1))
        self._features = draw.normal(size=(num_samples, 6)).astype(np.float32)
        self._labelled = labelled

    def __len__(self) -> int:
        return len(self._tokens)

    def order(self, seed: int) -> FullShuffle:
        return FullShuffle(len(self), seed)

    def gather(self, indices: Any, samples: Any) -> dict[str, Any]:
        if self._labelled:
            return {"x": self._features[indices], "labels": self._tokens[indices, 0] % 4}
        return {"tokens": self._tokens[indices]}


def evaluator(parallel: Any, task: Any, dataset: HeldOut, setup: Setup, steps: int | str = "all") -> Evaluator:
    settings = Evaluation.model_validate({"split": 0.1, "every": "1 steps", "steps": steps})
    return Evaluator(
        settings,
        {"": dataset},
        task,
        parallel,
        global_batch=GLOBAL_BATCH,
        device=CPU,
        timeline=setup.timeline,
        heartbeat=Heartbeat(),
        own=OwnMetrics({"measure": measure}, parallel.parts),
    )


def measure(batch: EvaluatedBatch) -> dict[str, Any]:
    """Figures whose mean over all labels any layout has to find."""
    assert len(batch.labels), "a sample that fills up the last batch"
    if batch.logits is not None:
        assert batch.logits.argmax(-1).equal(batch.predictions)
    right = batch.predictions == batch.labels
    return {"right": (right.sum(), right.numel()), "nats": -batch.log_probabilities.mean()}


def evaluate_decoder(config: DecoderConfig, layout: Any, precision: str) -> tuple[dict[str, Any], list[Any]]:
    """Result on this rank, and the norm of the gradients of a training step before and after an evaluation."""
    mesh = Mesh(layout, "cpu")
    setup = Setup(mesh=mesh, device=CPU, precision=precision, compiled=False, timeline=Timeline(CPU))
    parallel = distribute_decoder(
        config, setup, positions=POSITIONS, first_weights=lambda parts: draw_weights(parts, seed=3)
    )
    workload = SimpleNamespace(data=SimpleNamespace(sequence_length=POSITIONS))
    task = CausalLanguageModeling(workload, None, mesh)  # type: ignore[arg-type]
    evaluating = evaluator(parallel, task, HeldOut(NUM_SAMPLES), setup)

    def step() -> list[Any]:
        batch = torch.arange(layout.grad_accum_steps * layout.micro_batch * (POSITIONS + 1)).remainder(60)
        x, labels = task.split({"tokens": batch.view(layout.grad_accum_steps, layout.micro_batch, -1)})
        loss = parallel.gradients(x, labels, scale=1.0)
        gradients = [p.grad for part in parallel.parts for p in part.parameters() if p.grad is not None]
        found = [loss.item(), *(getattr(g, "to_local", lambda g=g: g)().norm().item() for g in gradients)]
        for part in parallel.parts:
            part.zero_grad(set_to_none=True)
        return found

    before = step()
    result = evaluating.evaluate(1)
    assert all(part.training for part in parallel.parts)
    assert step() == before, "an evaluation changed what a training step computes"
    return dict(result), before


def layout_of(ranks: int, **degrees: Any) -> Any:
    return resolve_layout(
        Layout(**({"dp_replicate": 1} | degrees)),
        world_size=ranks,
        global_batch=GLOBAL_BATCH,
        micro_batch=degrees.get("micro_batch", 2),
    )


@pytest.fixture(scope="module")
def whole() -> dict[str, float]:
    """Held-out loss, and share of right tokens, of every model on one process."""
    one = layout_of(1, micro_batch=8)
    found = {name: on_ranks(1, evaluate_decoder, config, one, "fp32")[0][0] for name, config in MODELS.items()}
    rights = {f"right of {name}": result["figures"]["right"] for name, result in found.items()}
    return {name: result["loss"] for name, result in found.items()} | rights


@pytest.mark.parametrize(
    ("model", "ranks", "degrees"),
    [
        ("llama", 2, {"dp_replicate": 2}),
        ("llama", 2, {"dp_shard": 2, "zero": 2}),
        ("llama-tied", 4, {"pp": 2, "dp_shard": 2}),
        ("llama", 2, {"pp": 2, "interleave": 2, "micro_batch": 1}),
        ("llama", 2, {"pp": 2, "zero_bubble": True}),
        ("gpt2", 4, {"tp": 2, "dp_shard": 2}),
        ("llama-tied", 2, {"tp": 2, "sequence_parallel": True}),
        ("qwen3", 4, {"cp": 2, "pp": 2}),
        ("mixtral", 4, {"tp": 2, "dp_shard": 2, "ep": 2}),
    ],
)
def test_the_held_out_loss_is_that_of_one_process(
    whole: dict[str, float], model: str, ranks: int, degrees: dict[str, Any]
) -> None:
    found = on_ranks(ranks, evaluate_decoder, MODELS[model], layout_of(ranks, **degrees), "fp32")
    assert {result["samples"] for result, _ in found} == {NUM_SAMPLES}
    assert len({result["loss"] for result, _ in found}) == 1, "ranks disagree"
    assert found[0][0]["loss"] == pytest.approx(whole[model], abs=1e-6)
    figures = [result["figures"] for result, _ in found]
    assert all(each == figures[0] for each in figures), "ranks disagree"
    assert figures[0]["nats"] == pytest.approx(whole[model], abs=1e-6)
    assert figures[0]["right"] == pytest.approx(whole[f"right of {model}"], abs=1e-6)


def loss_by_hand(config: DecoderConfig) -> float:
    """Mean over all tokens of all samples, from the whole model."""
    mesh = Mesh(layout_of(1, micro_batch=8), "cpu")
    setup = Setup(mesh=mesh, device=CPU, precision="fp32", compiled=False, timeline=Timeline(CPU))
    model = distribute_decoder(
        config, setup, positions=POSITIONS, first_weights=lambda parts: draw_weights(parts, seed=3)
    ).parts[0]
    tokens = torch.from_numpy(HeldOut(NUM_SAMPLES)._tokens)
    with torch.no_grad():
        logits = model(tokens[:, :-1])
    return nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten()).item()


def test_the_held_out_loss_is_the_mean_over_all_tokens_also_of_a_last_batch_that_is_not_full(
    whole: dict[str, float],
) -> None:
    assert whole["llama"] == pytest.approx(on_ranks(1, loss_by_hand, LLAMA)[0], abs=1e-6)


class Classifier(nn.Module):
    """Four classes of six features, with dropout that evaluation has to turn off, and running statistics."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.layers = nn.ModuleList([nn.Linear(6, 6), nn.Linear(6, 4)])
        self.norm = nn.BatchNorm1d(6)
        self.drop = nn.Dropout(0.5)

    def forward(self, x: torch.Tensor) -> Any:
        hidden = self.norm(self.layers[0](x))
        return SimpleNamespace(logits=self.layers[1](self.drop(hidden)))


def evaluate_classifier(ranks: int) -> dict[str, Any]:
    mesh = Mesh(layout_of(ranks, dp_replicate=ranks), "cpu")
    setup = Setup(mesh=mesh, device=CPU, precision="fp32", compiled=False, timeline=Timeline(CPU))
    model = Classifier()
    parallel = distribute_module(_Objective(model, "x"), list(model.layers), setup)
    model.norm.running_mean.fill_(float(mesh.dp_rank))
    task = MaskedLanguageModeling.__new__(MaskedLanguageModeling)
    result = evaluator(parallel, task, HeldOut(NUM_SAMPLES, labelled=True), setup).evaluate(1)
    assert model.norm.running_mean.unique().tolist() == [float(mesh.dp_rank)], "statistics were not given back"
    return dict(result)


def classify_by_hand() -> dict[str, float]:
    model = Classifier().eval()
    model.norm.running_mean.fill_(0.5)  # the mean of two ranks
    data = HeldOut(NUM_SAMPLES, labelled=True).gather(np.arange(NUM_SAMPLES), None)
    logits, labels = model(torch.from_numpy(data["x"])).logits, torch.from_numpy(data["labels"])
    right = (logits.argmax(-1) == labels).double().mean().item()
    loss = nn.functional.cross_entropy(logits, labels).item()
    return {"loss": loss, "accuracy": right, "samples": NUM_SAMPLES, "nats": loss, "right": right}


def test_accuracy_counts_every_sample_once_without_dropout_and_with_the_statistics_of_all_ranks() -> None:
    first, second = on_ranks(2, evaluate_classifier, 2)
    assert first == second
    first |= first.pop("figures")
    assert first == pytest.approx(classify_by_hand(), abs=1e-6)
