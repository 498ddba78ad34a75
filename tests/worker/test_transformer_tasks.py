"""Masked tokens and images: the same loss in every layout, and a masking that knows no ranks."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import pytest
import yaml
from PIL import Image
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForImageClassification,
    AutoModelForMaskedLM,
    ResNetConfig,
    ViTConfig,
)

from tests.lanes import cases
from tests.worker.harness import TinyRun, events
from tests.worker.test_own_module import TRIAL
from trainworks.config.load import parse_run_file
from trainworks.config.run_file import Workload
from trainworks.host.probe import probe_host
from trainworks.measure.model_config import has_formula
from trainworks.plan.run.plan import make_measured_plan, measured_layouts
from trainworks.plan.run.processes import choose_processes
from trainworks.record.events.log import append_event
from trainworks.record.resolved import ResolvedRun
from trainworks.record.runs_folder import create_run_dir
from trainworks.worker.data.card import DataFolders
from trainworks.worker.data.order import FullShuffle
from trainworks.worker.data.prepare import prepare
from trainworks.worker.data.tokens import MaskedTokens
from trainworks.worker.export import export

VIT = ViTConfig(
    image_size=16, patch_size=8, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32
)
RESNET = ResNetConfig(embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1], layer_type="basic")


_SMALL = {"vocab_size": 400, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "pad_token_id": 0}
UNPLANNED = {
    "stablelm": _SMALL | {"intermediate_size": 48, "num_key_value_heads": 4, "bos_token_id": 0, "eos_token_id": 0},
    "falcon": _SMALL | {"bos_token_id": 0, "eos_token_id": 0, "hidden_dropout": 0.0, "attention_dropout": 0.0},
}
"""Causal language models of `transformers` that the planner has no formula for."""


@pytest.fixture(scope="module")
def images(tmp_path_factory) -> Path:
    """Two classes of twenty small images."""
    root = tmp_path_factory.mktemp("images")
    draw = np.random.default_rng(0)
    for number in range(40):
        folder = root / ("dark", "light")[number % 2]
        folder.mkdir(exist_ok=True)
        pixels = draw.integers(0, 128, (20, 20, 3)) + 127 * (number % 2)
        Image.fromarray(pixels.astype(np.uint8)).save(folder / f"{number}.png")
    return root


@pytest.fixture
def new_task(tmp_path, corpus, cache, images):
    """A function that makes a run of 6 steps of bert, vit or resnet."""

    def make(kind: str, layout: str, ranks: int, precision: str = "fp32") -> TinyRun:
        if kind == "bert":
            model = {"architecture": "bert", "layers": 2, "hidden": 32, "heads": 2}
            task = {"task": "masked-lm", "model": model}
            task["data"] = {"source": str(corpus), "sequence_length": 32, "vocabulary": 400}
        elif kind in UNPLANNED:
            AutoConfig.for_model(kind, **UNPLANNED[kind]).save_pretrained(tmp_path / kind)
            task = {"task": "causal-lm", "model": {"hf": str(tmp_path / kind)}}
            task["data"] = {"source": str(corpus), "sequence_length": 32, "vocabulary": 400}
        else:
            {"vit": VIT, "resnet": RESNET}[kind].save_pretrained(tmp_path / kind)
            task = {"task": "image-classification", "model": {"hf": str(tmp_path / kind)}}
            task["data"] = {"source": str(images), "image_size": 16}
        task |= {"precision": precision, "global_batch": 8, "train_for": "6 steps"}
        task |= {"optimizer": {"lr": 0.01, "eps": 1e-5, "warmup": "2 steps"}}
        written = {"name": kind, "workload": task, "cluster": {"processes_per_node": ranks}}
        written |= {"layout": yaml.safe_load(layout), "checkpoint": {"every": "2 steps"}}
        run_file, _ = parse_run_file(yaml.safe_dump(written), name="run.yaml")
        assert run_file.workload is not None
        processes = choose_processes(run_file, num_cores=1, num_accelerators=0)
        chosen = next(measured_layouts(run_file.workload, run_file.layout, world_size=ranks))
        plan = make_measured_plan(run_file, chosen, processes, TRIAL).model_copy(update={"log_every_steps": 1})
        run_dir = create_run_dir(tmp_path / "runs", kind)
        resolved = ResolvedRun(
            run_id=run_dir.run_id,
            created_at=time.time(),
            trainworks="test",
            run_file=run_file,
            working_folder=str(tmp_path),
            processes=processes,
            host=probe_host(tmp_path),
            plan=plan,
        )
        run_dir.write_resolved(resolved)
        return TinyRun(run_dir, DataFolders(prepare(run_file.workload.data, cache)[0]), ranks)

    return make


def trained(run: TinyRun) -> list[float]:
    assert run.train() == [0] * run.world_size, run.run_dir.rank_log(0).read_text()
    return [loss for loss, _ in run.curve()]


@pytest.mark.parametrize("kind", cases(["bert", "vit", *UNPLANNED], at_night=["falcon"]))
def test_losses_of_replicas_and_shards_are_those_of_one_process(new_task, kind):
    one = trained(new_task(kind, "{micro_batch: 8}", 1))
    assert trained(new_task(kind, "{dp_replicate: 2, micro_batch: 2}", 2)) == pytest.approx(one, rel=1e-4)
    assert trained(new_task(kind, "{dp_shard: 2, recompute: full}", 2)) == pytest.approx(one, rel=1e-4)


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
@pytest.mark.parametrize(
    ("kind", "opens"),
    [("bert", AutoModelForMaskedLM), ("vit", AutoModelForImageClassification), ("stablelm", AutoModelForCausalLM)],
)
def test_an_exported_model_is_opened_by_transformers_with_all_its_weights(new_task, tmp_path, kind, opens):
    run = new_task(kind, "{dp_shard: 2}", 2)
    trained(run)
    append_event(run.run_dir.events_file, {"kind": "data_ready", "folder": str(run.data_folder)})
    export(run.run_dir, 6, tmp_path / "model", dtype="fp32")
    model, loading = opens.from_pretrained(tmp_path / "model", output_loading_info=True)
    assert not any(loading.values())
    assert all(tensor.isfinite().all() for tensor in model.state_dict().values())


@pytest.mark.parametrize("kind", UNPLANNED)
def test_a_causal_model_without_a_formula_is_known_as_such(kind, tmp_path):
    AutoConfig.for_model(kind, **UNPLANNED[kind]).save_pretrained(tmp_path / kind)
    fields = {"task": "causal-lm", "model": {"hf": str(tmp_path / kind)}, "global_batch": 1, "train_for": "1 steps"}
    data = {"source": "texts", "sequence_length": 32}
    assert not has_formula(Workload.model_validate(fields | {"data": data}))


def test_a_resnet_learns_and_its_statistics_do_not_disturb_a_resume(new_task):
    whole = new_task("resnet", "{dp_replicate: 2}", 2)
    losses = trained(whole)
    assert losses[-1] < losses[0]
    hurt = new_task("resnet", "{dp_replicate: 2}", 2)
    hurt.train(until=hurt.a_checkpoint_is_complete)
    trained(hurt)
    assert events(hurt, "attempt")[-1]["resumed_from_step"] > 0
    assert hurt.curve() == whole.curve()


def test_batch_norm_in_16_bit_shards_is_refused(new_task):
    run = new_task("resnet", "{dp_shard: 2}", 2, "bf16")
    run.train()
    assert "batch norm cannot be sharded in bf16" in events(run, "failure")[0]["message"]


@pytest.mark.parametrize("layout", ["{dp_replicate: 2}", "{dp_shard: 2}"])
def test_a_vit_learns_in_bf16(new_task, layout):
    losses = trained(new_task("vit", layout, 2, "bf16"))
    assert losses[-1] < losses[0]


class Tokens:
    """Sequences 0 1 2 ... T, all alike."""

    fingerprint, sample_bytes = "tokens", 8

    def __len__(self):
        return 100

    def order(self, seed):
        return FullShuffle(100, seed)

    def gather(self, indices, samples):
        return {"tokens": np.tile(np.arange(101), (len(indices), 1))}


def masked(samples: list[int]) -> dict[str, np.ndarray]:
    data = MaskedTokens(Tokens(), mask=500, vocabulary=400, spared=[0, 1, 2], seed=3)
    numbers = np.array(samples, dtype=np.int64)
    return data.gather(numbers % 100, numbers)


def test_every_sequence_asks_for_15_percent_of_its_tokens():
    assert ((masked(list(range(50)))["labels"] != -100).sum(1) == 15).all()


def test_masking_depends_on_the_sample_alone():
    together, alone = masked([4, 5, 105]), masked([5])
    assert (together["x"][1] == alone["x"][0]).all()
    assert (together["x"][1] != together["x"][2]).any()


def test_of_the_tokens_asked_for_80_percent_are_hidden_and_half_of_the_rest_is_replaced():
    batch = masked(list(range(1000)))
    asked = batch["labels"] != -100
    assert (batch["x"][asked] == 500).mean() == pytest.approx(0.8, abs=0.01)
    assert (batch["x"][asked] == batch["labels"][asked]).mean() == pytest.approx(0.1, abs=0.01)
    assert (batch["x"][~asked] == np.tile(np.arange(100), (1000, 1))[~asked]).all()


def test_ends_of_documents_are_not_asked_for():
    assert (masked(list(range(50)))["labels"][:, :3] == -100).all()
