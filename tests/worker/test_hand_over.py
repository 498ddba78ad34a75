"""A model is handed over with a card from the record and a loss that is that of the run, and a hub gets it whole."""

from __future__ import annotations

import json
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
import torch
from huggingface_hub import ModelCard
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForCausalLM

from tests.worker.harness import make_run
from tests.worker.test_export import QWEN3, trained
from trainworks.api.checkpointing.exports import HandOver, export_model, push
from trainworks.errors import EnvironmentProblem, MissingExtraError, TrainworksError, UsageError
from trainworks.measure.worker_tasks import ask

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled")

RUNS = {
    "tensor-parallel-bf16": {"layout": {"tp": 2}, "workload__precision": "bf16"},
    "pipeline-packed": {"layout": {"pp": 2, "micro_batch": 2}, "workload__data__pack": True},
    "tied": {"layout": {"dp_shard": 2}, "workload__model": QWEN3 | {"tie_embeddings": True}},
}


@pytest.fixture(scope="module")
def runs(tmp_path_factory, corpus, cache):
    """A function: the run of a name, trained once."""
    made = {}
    text = tmp_path_factory.mktemp("held-out") / "text.txt"
    text.write_text(" ".join(reversed((corpus / "0.txt").read_text().split()[:1500])))
    evaluated = {"workload__eval": {"data": str(text), "every": "8 steps", "steps": 4}}

    def run_of(name):
        if name not in made:
            folder = tmp_path_factory.mktemp(name)
            made[name] = trained(lambda **given: make_run(folder, corpus, cache, **given), **RUNS[name], **evaluated)
        return made[name]

    return run_of


@pytest.fixture(autouse=True)
def own_cache(cache, monkeypatch):
    monkeypatch.setenv("TRAINWORKS_CACHE", str(cache))


def hand_over(run, to, *, dtype="fp32", merge=False, **then):
    return export_model(
        run.run_dir, to, step=None, dtype=dtype, merge=merge, then=HandOver(**then), progress=lambda *_: None
    )


@pytest.mark.parametrize("name", RUNS)
def test_the_files_have_the_loss_of_the_run(runs, tmp_path, name):
    run = runs(name)
    found = hand_over(run, tmp_path / "model", check=True)["check"]
    assert found["recorded"] == run.rows()[-1]["evaluation"]["loss"]
    assert abs(found["loss"] - found["recorded"]) <= found["tolerance"]
    assert found["tolerance"] < found["recorded"] * (0.005 if "bf16" in name else 2e-5)
    assert found["samples"] == run.rows()[-1]["evaluation"]["samples"] > 8


def test_a_checkpoint_without_an_evaluation_cannot_be_checked(tensor_run_without_evaluation, tmp_path):
    with pytest.raises(UsageError, match="not evaluated after step 8"):
        hand_over(tensor_run_without_evaluation, tmp_path / "model", check=True)
    assert not (tmp_path / "model").exists()


@pytest.fixture(scope="module")
def tensor_run_without_evaluation(tmp_path_factory, corpus, cache):
    folder = tmp_path_factory.mktemp("plain")
    return trained(lambda **changes: make_run(folder, corpus, cache, **changes))


def test_other_weights_fail_the_check_and_are_not_uploaded(runs, tmp_path, monkeypatch):
    from trainworks.api.checkpointing import exports

    asking, uploads = exports.ask, []

    def spoil(action, *arguments, **options):
        answer = asking(action, *arguments, **options)
        if action == "export":
            file = tmp_path / "model" / "model.safetensors"
            tensors = load_file(file)
            tensors["model.layers.1.mlp.down_proj.weight"] *= 1.5
            save_file(tensors, file, metadata={"format": "pt"})
        return answer

    monkeypatch.setattr(exports, "ask", spoil)
    monkeypatch.setattr(exports, "push", lambda *given, **_: uploads.append(given))
    with pytest.raises(TrainworksError, match="do not have the loss of the run") as failed:
        hand_over(runs("tied"), tmp_path / "model", check=True, push="me/model")
    assert failed.value.exit_code == 1
    assert uploads == []
    assert "do not have the loss" in (tmp_path / "model" / "README.md").read_text()


def test_the_card_is_read_by_the_hubs_library_and_says_what_the_record_says(runs, tmp_path):
    run = runs("tensor-parallel-bf16")
    hand_over(run, tmp_path / "model", check=True)
    card = ModelCard.load(tmp_path / "model" / "README.md")
    assert (card.data.library_name, card.data.pipeline_tag) == ("transformers", "text-generation")
    recorded = {each.metric_type: each.metric_value for each in card.data.eval_results}
    assert recorded["loss"] == run.rows()[-1]["evaluation"]["loss"]
    assert "| steps of the run | 8 of 8 |" in card.text
    assert f"| tokens of the run | {8 * 8 * 32:,} |" in card.text
    assert "## Planned and measured" in card.text
    assert "The files have the loss of the run" in card.text


def test_no_path_of_this_machine_is_in_the_folder(runs, tmp_path, corpus):
    hand_over(runs("tied"), tmp_path / "model")
    for file in (tmp_path / "model").iterdir():
        content = file.read_bytes()
        assert str(corpus.parent).encode() not in content, file.name
        assert str(tmp_path).encode() not in content, file.name


def test_onnx_has_the_logits_of_transformers(runs, tmp_path):
    onnxruntime = pytest.importorskip("onnxruntime", reason="NOT TESTED: ONNX; install trainworks[onnx]")
    made = hand_over(runs("tied"), tmp_path / "model", onnx=True)
    assert made["onnx_difference"] < 1e-5
    session = onnxruntime.InferenceSession(str(tmp_path / "model" / "onnx" / "model.onnx"))
    tokens = torch.randint(0, 400, (3, 21), generator=torch.Generator().manual_seed(5))
    with torch.no_grad():
        expected = AutoModelForCausalLM.from_pretrained(tmp_path / "model")(input_ids=tokens).logits
    found = torch.from_numpy(session.run(None, {"input_ids": tokens.numpy()})[0])
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


def test_a_model_that_torch_cannot_write_as_onnx_ends_with_its_reason(tmp_path):
    pytest.importorskip("onnxruntime", reason="NOT TESTED: ONNX; install trainworks[onnx]")
    sizes = {"vocab_size": 64, "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 1, "num_local_experts": 2}
    AutoModelForCausalLM.from_config(AutoConfig.for_model("mixtral", **sizes, **heads)).save_pretrained(tmp_path)
    before = set(tmp_path.iterdir())
    with pytest.raises(EnvironmentProblem, match="torch cannot write this model as ONNX: No ONNX function") as failed:
        ask("onnx", {"folder": str(tmp_path)}, module="exported_model")
    assert "\n" not in failed.value.message
    assert set(tmp_path.iterdir()) == before


def test_onnx_without_its_libraries_names_the_extra(runs, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "onnxscript", None)  # as if it were not installed
    with pytest.raises(MissingExtraError) as refused:
        hand_over(runs("tied"), tmp_path / "model", onnx=True)
    assert "trainworks[onnx]" in refused.value.hint
    assert not (tmp_path / "model").exists()


class _Hub(BaseHTTPRequestHandler):
    """As much of the Hub as an upload asks for."""

    def log_message(self, *_):
        pass

    def do_POST(self):
        hub, body = self.server, self.rfile.read(int(self.headers.get("Content-Length") or 0))
        hub.asked.append((self.path, self.headers.get("Authorization"), body))
        if self.headers.get("Authorization") != "Bearer hf_right":
            return self._answer({"error": "Invalid username or password."}, 401)
        base = f"http://127.0.0.1:{hub.server_port}"
        if self.path == "/api/repos/create":
            return self._answer({"url": f"{base}/me/model", "name": "me/model", "id": "me/model"})
        if self.path.startswith("/api/models/me/model/preupload/"):
            files = [
                {"path": f["path"], "uploadMode": "regular", "shouldIgnore": False} for f in json.loads(body)["files"]
            ]
            return self._answer({"files": files})
        if self.path.startswith("/api/models/me/model/commit/"):
            return self._answer({"commitUrl": f"{base}/me/model/commit/1", "commitOid": "1" * 40, "success": True})
        return self._answer({"errors": [], "warnings": []})

    def do_GET(self):
        self._answer({"id": "me/model", "sha": "0" * 40, "siblings": [], "tags": [], "private": True})

    def _answer(self, content, status=200):
        text = json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)


@pytest.fixture
def hub(monkeypatch):
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Hub)
    server.asked = []
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{server.server_port}")
    monkeypatch.setenv("HF_TOKEN", "hf_right")
    yield server
    server.shutdown()
    server.server_close()
    thread.join()


def test_a_hub_gets_every_file_in_a_private_repository(hub, runs, tmp_path):
    made = hand_over(runs("tied"), tmp_path / "model", push="me/model")
    assert made["pushed"].endswith("/me/model")
    asked = {path: body for path, _, body in hub.asked}
    create = json.loads(asked["/api/repos/create"])
    assert create.get("private") is True or create.get("visibility") == "private"
    (commit,) = (body for path, body in asked.items() if "/commit/" in path)
    uploaded = {json.loads(line)["value"].get("path") for line in commit.splitlines()} - {None}
    assert uploaded == {file.name for file in (tmp_path / "model").iterdir()}


def test_a_refused_upload_leaves_the_folder_and_no_token_in_the_error(hub, tmp_path, monkeypatch):
    (tmp_path / "config.json").write_text("{}")
    monkeypatch.setenv("HF_TOKEN", "hf_wrong")
    with pytest.raises(EnvironmentProblem, match="cannot upload to `me/model`") as failed:
        push(tmp_path, "me/model")
    assert "hf_wrong" not in failed.value.render()
    assert (tmp_path / "config.json").exists()
