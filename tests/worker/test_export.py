"""What is exported is what was trained: `transformers` opens it, and computes the same loss."""

from __future__ import annotations

import json
import shutil

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch.nn.functional import cross_entropy
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

from trainworks.config.data import Data
from trainworks.errors import DiskFullError, EnvironmentProblem, UsageError
from trainworks.files import take_lock
from trainworks.record.events.log import append_event
from trainworks.record.manifest import read_manifest
from trainworks.record.run_dir import RunDir
from trainworks.worker import export as exporting
from trainworks.worker.checkpoint.shards import reader_of
from trainworks.worker.data.opening import open_dataset
from trainworks.worker.data.prepare import prepare
from trainworks.worker.data.tokenization import fingerprint_of
from trainworks.worker.export import export
from trainworks.worker.models.decoder import Decoder
from trainworks.worker.models.families import decoder_config

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled")

BATCH = torch.randint(0, 400, (3, 33), generator=torch.manual_seed(2))
X, LABELS = BATCH[:, :-1], BATCH[:, 1:]
MIXTRAL = {"architecture": "mixtral", "layers": 2, "hidden": 32, "heads": 4, "kv_heads": 2, "experts": 4}
GPT2 = {"architecture": "gpt2", "layers": 2, "hidden": 32, "heads": 4}
QWEN3 = {"architecture": "qwen3", "layers": 2, "hidden": 32, "heads": 4, "kv_heads": 2, "tie_embeddings": False}
LAYOUTS = {
    "tensor": {"layout": {"tp": 2}},
    "pipeline-gpt2": {"layout": {"pp": 2, "micro_batch": 2}, "workload__model": GPT2},
    "shards-qwen3": {"layout": {"dp_shard": 2}, "workload__model": QWEN3},
    "experts": {"layout": {"dp_shard": 2, "ep": 2}, "workload__model": MIXTRAL},
}


def trained(new_run, **changes):
    """A run of two ranks with a checkpoint after its 8 steps."""
    run = new_run(workload__train_for="8 steps", **changes)
    assert run.train() == [0] * run.world_size
    append_event(run.run_dir.events_file, {"kind": "data_ready", "folder": str(run.data_folder)})
    return run


@pytest.fixture(scope="module")
def tensor_run(tmp_path_factory, corpus, cache):
    from tests.worker.harness import make_run

    return trained(
        lambda **changes: make_run(tmp_path_factory.mktemp("run"), corpus, cache, **changes), layout={"tp": 2}
    )


def loss_of_transformers(folder):
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    with torch.no_grad():
        return cross_entropy(model(input_ids=X).logits.flatten(0, 1), LABELS.flatten()).item()


def loss_of_checkpoint(run, step, config):
    decoder = Decoder(decoder_config(config)).eval()
    dcp.load({"model": decoder.state_dict()}, storage_reader=reader_of(run.run_dir.checkpoint(step)), no_dist=True)
    with torch.no_grad():
        return decoder(X, LABELS).item()


@pytest.mark.parametrize("name", LAYOUTS)
def test_transformers_has_the_loss_of_what_a_layout_trained(new_run, tmp_path, name):
    run = trained(new_run, **LAYOUTS[name])
    export(run.run_dir, 8, tmp_path / "model", dtype="fp32")
    ours = loss_of_checkpoint(run, 8, AutoConfig.from_pretrained(tmp_path / "model"))
    assert loss_of_transformers(tmp_path / "model") == pytest.approx(ours, rel=1e-5)


def test_several_files_hold_what_one_file_holds(new_run, tmp_path):
    run = trained(new_run, **LAYOUTS["experts"])
    one = export(run.run_dir, 8, tmp_path / "one", dtype="fp32")
    several = export(run.run_dir, 8, tmp_path / "several", dtype="fp32", file_bytes=30_000)
    assert one["files"] == 1 < several["files"]
    assert all(file.stat().st_size < 60_000 for file in (tmp_path / "several").glob("*.safetensors"))
    index = json.loads((tmp_path / "several" / "model.safetensors.index.json").read_bytes())
    assert set(index["weight_map"].values()) == {file.name for file in (tmp_path / "several").glob("*.safetensors")}
    assert loss_of_transformers(tmp_path / "several") == loss_of_transformers(tmp_path / "one")


def test_the_tokenizer_is_that_of_the_data_and_ends_a_document_as_the_config_says(tensor_run, tmp_path):
    export(tensor_run.run_dir, 8, tmp_path / "model", dtype="fp32")
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "model")
    assert tokenizer.decode(tokenizer.encode("abc de f")) == "abc de f"
    config = AutoConfig.from_pretrained(tmp_path / "model")
    assert config.eos_token_id == tokenizer.eos_token_id is not None


def test_an_exported_model_trains_on(tensor_run, new_run, tmp_path):
    export(tensor_run.run_dir, 8, tmp_path / "model", dtype="fp32")
    model = {"hf": str(tmp_path / "model"), "weights": "pretrained"}
    data = {"workload__data__tokenizer": str(tmp_path / "model" / "tokenizer.json")}
    again = new_run(workload__model=model, workload__train_for="1 steps", **data)
    again.train()
    first, last = again.rows()[0]["loss"], tensor_run.rows()[-1]["loss"]
    assert first == pytest.approx(last, abs=0.2)
    assert first < tensor_run.rows()[0]["loss"] - 0.3


def test_bf16_takes_half_the_bytes_and_says_so_in_the_config(tensor_run, tmp_path):
    whole = export(tensor_run.run_dir, 8, tmp_path / "whole", dtype="fp32")
    half = export(tensor_run.run_dir, 8, tmp_path / "half", dtype="bf16")
    assert half["bytes"] * 2 == whole["bytes"]
    assert AutoModelForCausalLM.from_pretrained(tmp_path / "half").dtype == torch.bfloat16


def test_a_model_that_transformers_computes_is_written_by_it(new_run, tmp_path):
    config = AutoConfig.for_model(
        "gpt_neox",
        vocab_size=400,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=64,
        max_position_embeddings=32,
    )
    config.save_pretrained(tmp_path / "config")
    run = trained(new_run, layout={"dp_shard": 2}, workload__model={"hf": str(tmp_path / "config")})
    export(run.run_dir, 8, tmp_path / "model", dtype="fp32")
    assert loss_of_transformers(tmp_path / "model") < run.rows()[0]["loss"] + 1.0
    stored = AutoModelForCausalLM.from_pretrained(tmp_path / "model").state_dict()
    values = {f"model.{name}": torch.empty_like(value) for name, value in stored.items()}
    dcp.load({"model": values}, storage_reader=reader_of(run.run_dir.checkpoint(8)), no_dist=True)
    assert all(torch.equal(values[f"model.{name}"], value) for name, value in stored.items())


def test_a_tokenizer_that_is_not_that_of_the_checkpoint_is_refused(tensor_run, tmp_path, monkeypatch):
    manifest = read_manifest(tensor_run.run_dir.checkpoint(8))
    assert manifest.tokenization == fingerprint_of(tensor_run.data_folder) is not None
    monkeypatch.setattr(exporting, "fingerprint_of", lambda folder: "0" * 64)
    with pytest.raises(EnvironmentProblem, match="tokenizer or chat template changed since step 8"):
        export(tensor_run.run_dir, 8, tmp_path / "model", dtype="fp32")


def test_a_mixture_that_is_gone_is_made_again_for_its_tokenizer(tensor_run, corpus, tmp_path, monkeypatch):
    monkeypatch.setenv("TRAINWORKS_CACHE", str(tmp_path))
    sources = {"source": [str(corpus / f"{number}.txt") for number in range(2)], "sequence_length": 32}
    mixture = Data.model_validate(sources | {"vocabulary": 400})
    folder, _ = prepare(mixture, tmp_path / "elsewhere")
    fingerprints = {
        "data_fingerprint": open_dataset(folder, mixture).fingerprint,
        "tokenization": fingerprint_of(folder),
    }
    manifest = read_manifest(tensor_run.run_dir.checkpoint(8)).model_copy(update=fingerprints)
    workload = tensor_run.run_dir.read_resolved().run_file.workload.model_copy(update={"data": mixture})
    again = exporting.data_folder(RunDir(tmp_path / "tiny-1"), workload, manifest)
    assert again.parent == tmp_path / "data"


def test_a_damaged_checkpoint_is_not_exported(tensor_run, tmp_path):
    run_dir = RunDir(shutil.copytree(tensor_run.run_dir.path, tmp_path / "run-1"))
    shard = run_dir.checkpoint(8) / "rank-1.safetensors"
    content = bytearray(shard.read_bytes())
    content[len(content) // 2] ^= 1
    shard.write_bytes(content)
    with pytest.raises(EnvironmentProblem) as raised:
        export(run_dir, 8, tmp_path / "model", dtype="fp32")
    assert raised.value.message == "the checkpoint of step 8 is damaged: rank-1.safetensors: checksum differs"
    assert raised.value.hint == "no other checkpoint is left"
    assert not (tmp_path / "model").exists()


def test_a_place_where_something_is_stays_as_it_is(tensor_run, tmp_path):
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "mine").write_text("mine")
    with pytest.raises(UsageError, match="exists"):
        export(tensor_run.run_dir, 8, tmp_path / "model", dtype="fp32")
    assert [file.name for file in tmp_path.joinpath("model").iterdir()] == ["mine"]


def test_an_export_that_fails_leaves_nothing(tensor_run, tmp_path, monkeypatch):
    def fail(*_):
        raise EnvironmentProblem("no")

    monkeypatch.setattr(exporting, "write_tokenizer", fail)
    with pytest.raises(EnvironmentProblem):
        export(tensor_run.run_dir, 8, tmp_path / "model", dtype="fp32")
    assert list(tmp_path.iterdir()) == []


def test_what_a_killed_export_left_is_taken_over(tensor_run, tmp_path):
    left = tmp_path / ".model.part"
    left.mkdir()
    (left / "model-00001-of-00009.safetensors").write_bytes(b"torn")
    export(tensor_run.run_dir, 8, tmp_path / "model", dtype="fp32")
    assert [file.name for file in tmp_path.iterdir()] == ["model"]
    assert not list((tmp_path / "model").glob("*00009*"))


def test_two_exports_to_one_place_do_not_mix(tensor_run, tmp_path):
    part = tmp_path / ".model.part"
    part.mkdir()
    lock = take_lock(part / ".lock")
    assert lock is not None
    with pytest.raises(UsageError, match="another export"):
        export(tensor_run.run_dir, 8, tmp_path / "model", dtype="fp32")


def test_a_model_that_does_not_fit_the_disk_is_not_begun(tensor_run, tmp_path, monkeypatch):
    monkeypatch.setattr("trainworks.worker.export_files.free_bytes", lambda _: 1000)
    with pytest.raises(DiskFullError, match=r"has 1\.00 kB free"):
        export(tensor_run.run_dir, 8, tmp_path / "model", dtype="fp32")
    assert list(tmp_path.iterdir()) == []
