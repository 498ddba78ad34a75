"""`trainworks data`: what it prints, what it refuses, and that a run reads what it made."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from trainworks.cli.app import app
from trainworks.errors import MissingExtraError, TrainworksError, UsageError

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


def test_prepare_of_a_run_file_holds_out_what_the_run_will(trainworks, tmp_path):
    """The run then finds both sides made."""
    workload = {
        "task": "causal-lm",
        "model": {"layers": 1, "hidden": 16, "heads": 2},
        "data": {"source": "texts", "sequence_length": 8, "vocabulary": 300},
        "global_batch": 4,
        "train_for": "2 steps",
    }
    evaluation = {"split": 0.2, "every": "1 steps"}
    whole = json.loads(trainworks("prepare", "texts", "--vocabulary", "300", "--json").stdout)["num_tokens"]
    (tmp_path / "run.yaml").write_text(json.dumps({"name": "held", "workload": workload | {"eval": evaluation}}))
    made = json.loads(trainworks("prepare", "run.yaml", "--json").stdout)
    assert made["num_tokens"] < 0.9 * whole
    assert made["held_out_samples"] * 8 > 0.1 * whole
    again = trainworks("prepare", "run.yaml").stdout
    assert f"held out     {made['held_out']}, {made['held_out_samples']:,} samples" in again


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
