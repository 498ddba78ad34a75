"""`trainworks data`: what it prints, what it refuses, and that a run reads what it made."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from tests.worker.chat_data import CHATML, letters_tokenizer, write_chats
from trainworks.api.anchor import anchor
from trainworks.cli.app import app
from trainworks.config.run_description import load_tasks
from trainworks.errors import MissingExtraError, TrainworksError, UsageError
from trainworks.host.folders import cache_folder
from trainworks.record.events.log import read_events

pytest.importorskip("tokenizers", reason="preparing data needs trainworks[train]")


@pytest.fixture
def trainworks(tmp_path, monkeypatch):
    """Call the program in a folder with a little text, and a cache of its own."""
    monkeypatch.setenv("TRAINWORKS_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "texts").mkdir()
    for number in range(3):
        lines = (json.dumps({"text": f"line {line} of {number}"}) for line in range(400))
        (tmp_path / "texts" / f"{number}.jsonl").write_text("\n".join(lines))

    def call(*arguments):
        result = CliRunner().invoke(app, ["data", *arguments])
        if isinstance(result.exception, TrainworksError):
            raise result.exception
        return result

    return call


def test_prepare_says_what_it_made_and_where(trainworks):
    made = json.loads(trainworks("prepare", "texts", "--vocabulary", "300", "--json").stdout)
    assert (made["kind"], made["num_shards"], made["vocabulary"]) == ("tokens", 1, 300)
    assert made["num_tokens"] == made["num_items"] > 1000


def run_finds(run_file, events):
    """What a run prepares from a run file, with its own functions."""
    from trainworks.worker.data.preparation import prepare_for_run

    workload = anchor(*load_tasks(run_file)[0], on_nodes=True).run_file.workload
    folders = prepare_for_run(
        workload.data, cache_folder("data"), events, model_vocabulary=10**6, evaluation=workload.eval
    )
    (ready,) = (event for event in read_events(events) if event["kind"] == "data_ready")
    return folders, ready


def test_prepare_of_a_run_file_makes_what_the_run_then_finds(trainworks, tmp_path):
    """The tokenizer is that of the checkpoint, with its chat template, on both sides of a split."""
    (tmp_path / "model").mkdir()
    letters_tokenizer(tmp_path / "model")
    (tmp_path / "model" / "chat_template.jinja").write_text(CHATML)
    write_chats(tmp_path / "chats.jsonl", 60)
    workload = {
        "task": "causal-lm",
        "model": {"hf": "model", "weights": "pretrained"},
        "data": {"source": "chats.jsonl", "sequence_length": 120, "chat": True},
        "global_batch": 4,
        "train_for": "2 steps",
        "eval": {"split": 0.2, "every": "1 steps"},
    }
    (tmp_path / "run.yaml").write_text(json.dumps({"name": "held", "workload": workload}))
    made = json.loads(trainworks("prepare", "run.yaml", "--json").stdout)
    folders, ready = run_finds(tmp_path / "run.yaml", tmp_path / "events.jsonl")
    assert str(folders.train) == made["folder"]
    assert {name: str(folder) for name, folder in folders.evaluation.items()} == made["held_out"]
    assert ready["cached"]
    for name in ("chats", "tokenization", "template"):
        assert ready[name] == made[name] is not None
    assert made["vocabulary"] == 259
    again = trainworks("prepare", "run.yaml").stdout
    assert f"held out     {made['held_out']['']}, {made['held_out_samples']['']:,} samples" in again
    assert f"template     {tmp_path}/model/chat_template.jinja" in again


def test_prepare_of_a_run_file_finds_its_images_as_the_run_does(trainworks, tmp_path):
    for number in range(8):
        file = tmp_path / "images" / f"class-{number % 2}" / f"{number}.jpg"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(b"not opened here")
    workload = {
        "task": "image-classification",
        "model": {"hf": "some/model"},
        "data": {"source": "images", "image_size": 32},
        "global_batch": 4,
        "train_for": "2 steps",
    }
    (tmp_path / "run.yaml").write_text(json.dumps({"name": "seen", "workload": workload}))
    made = json.loads(trainworks("prepare", "run.yaml", "--json").stdout)
    folders, ready = run_finds(tmp_path / "run.yaml", tmp_path / "events.jsonl")
    assert (str(folders.train), ready["fingerprint"]) == (made["folder"], made["fingerprint"])


def test_verify_finds_a_flipped_byte_and_exits_with_1(trainworks, tmp_path):
    trainworks("prepare", "texts", "--vocabulary", "300", "--to", "out")
    assert trainworks("verify", "out").stdout.endswith("all as written\n")
    shard = tmp_path / "out" / "tokens-00000.bin"
    content = bytearray(shard.read_bytes())
    content[100] ^= 1
    shard.write_bytes(content)
    result = trainworks("verify", "out")
    assert result.exit_code == 1
    assert "tokens-00000.bin: its SHA-256 is not that of the card\n1 shards" in result.stdout


def test_packing_says_how_much_is_filler(trainworks):
    assert "of the tokens are filler" in trainworks("prepare", "texts", "--vocabulary", "300", "--pack", "16").stdout


@pytest.mark.parametrize(
    ("arguments", "message", "hint"),
    [
        (("prepare", "text"), "names no files", "did you mean `"),
        (("prepare", "hff://x"), "unknown kind of store `hff://`", "did you mean `hf://`?"),
        (("prepare", "hf://x?splt=a"), "unknown option `splt`", "did you mean `split`?"),
        (("prepare", "texts", "--column", "texxt"), "has no text in `texxt`", "did you mean `text`?"),
        (("verify", "texts"), "holds no prepared data", "trainworks data prepare"),
        (("verify", "texts/0.jsonl"), "holds no prepared data", "trainworks data prepare"),
        (("prepare", "run.yaml"), "run file `run.yaml` not found", None),
    ],
)
def test_what_cannot_be_is_refused_with_a_hint(trainworks, arguments, message, hint):
    with pytest.raises(UsageError, match=message.replace("?", r"\?")) as caught:
        trainworks(*arguments)
    assert hint is None or hint in caught.value.hint


def test_a_missing_library_is_named_with_the_command_that_installs_it(trainworks, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None if name == "s3fs" else object())
    with pytest.raises(MissingExtraError) as caught:
        trainworks("prepare", "s3://bucket/data")
    assert caught.value.hint == "pip install 'trainworks[s3]'"
