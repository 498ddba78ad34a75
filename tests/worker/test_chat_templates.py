"""Held-out loss of conversations, with the chat templates of published models, is that of `transformers` by hand.

The templates in tests/data/chat_templates are the published texts. The tokenizers are of single bytes, with the special
tokens of each family and its usual settings beside them.
"""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import yaml
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from torch.nn.functional import cross_entropy
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, PreTrainedTokenizerBase

from trainworks.api.anchor import anchored_workload
from trainworks.config.finetune import Chat
from trainworks.config.layout import ResolvedLayout
from trainworks.config.load import parse_run_file
from trainworks.config.run_file import Workload
from trainworks.worker.data.card import DataFolders
from trainworks.worker.data.preparation import prepare_for_run
from trainworks.worker.data.prepare import prepare
from trainworks.worker.data.split import Side
from trainworks.worker.data.tokenization import Tokenization, find_tokenization
from trainworks.worker.evaluation import build_evaluator
from trainworks.worker.export import write_tokenizer
from trainworks.worker.health.heartbeat import Heartbeat
from trainworks.worker.mesh import Mesh
from trainworks.worker.parallel.build import Setup
from trainworks.worker.tasks.open_task import open_task
from trainworks.worker.timing import Timeline

TEMPLATES = Path(__file__).parents[1] / "data" / "chat_templates"
LAYOUT = ResolvedLayout(dp_replicate=1, dp_shard=1, cp=1, tp=1, pp=1, ep=1, micro_batch=4, grad_accum_steps=1)
SHARE, LENGTH = 0.3, 400


@dataclass(frozen=True)
class Family:
    """Special tokens of a family, and how its tokenizer brings its template."""

    bos: str | None
    eos: str
    more: tuple[str, ...] = ()
    beside: bool = False
    """The template is a file of its own, as newer checkpoints have it; else it is in tokenizer_config.json."""
    mapped: bool = False
    """The special tokens are in special_tokens_map.json alone, as older checkpoints have them."""


CHATML = ("<|im_start|>", "<|im_end|>")
FAMILIES = {
    "llama3": Family(
        "<|begin_of_text|>", "<|eot_id|>", ("<|end_of_text|>", "<|start_header_id|>", "<|end_header_id|>")
    ),
    "qwen2_5": Family(None, "<|im_end|>", ("<|endoftext|>", *CHATML), beside=True),
    "qwen2_5_marked": Family(None, "<|im_end|>", ("<|endoftext|>", *CHATML), beside=True),
    "qwen3": Family(None, "<|im_end|>", ("<|endoftext|>", *CHATML, "<think>", "</think>")),
    "mistral": Family("<s>", "</s>", ("[INST]", "[/INST]"), mapped=True),
    "gemma": Family("<bos>", "<eos>", ("<start_of_turn>", "<end_of_turn>"), beside=True),
    "zephyr": Family("<s>", "</s>", mapped=True),
}


def write_checkpoint(folder: Path, name: str) -> Path:
    """A tiny model with random weights and the tokenizer of a family."""
    family = FAMILIES[name]
    template = (TEMPLATES / f"{name}.jinja").read_text()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({letter: number for number, letter in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    special = dict.fromkeys([token for token in (family.bos, family.eos, *family.more) if token is not None])
    tokenizer.add_special_tokens(list(special))
    folder.mkdir()
    tokenizer.save(str(folder / "tokenizer.json"))
    settings: dict[str, Any] = {"tokenizer_class": "PreTrainedTokenizerFast"}
    tokens = {"bos_token": family.bos, "eos_token": family.eos, "pad_token": family.eos}
    if family.mapped:
        (folder / "special_tokens_map.json").write_text(json.dumps({k: {"content": v} for k, v in tokens.items() if v}))
    else:
        settings |= tokens
    if family.beside:
        (folder / "chat_template.jinja").write_text(template)
    else:
        settings["chat_template"] = template
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    config = LlamaConfig(
        vocab_size=tokenizer.get_vocab_size(),
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        max_position_embeddings=512,
        initializer_range=0.2,
    )
    torch.manual_seed(5)
    AutoModelForCausalLM.from_config(config, dtype=torch.float32).save_pretrained(folder)
    return folder


def conversations(count: int, *, seed: int) -> list[dict[str, Any]]:
    """Conversations of one to three turns, with texts that look like marks, and blanks at their ends."""
    draw = random.Random(seed)
    asked = ["{0} + {1}?", " what is {0} times {1} ", "say [/INST] {0}", "model\nuser {1}", "Grüße, {0}!"]
    told = ["It is {0}.", "{1}, I think. ", "</s {0}>", "Ça dépend: {1}\n\n{0}"]
    made = []
    for _ in range(count):
        messages = []
        for _ in range(draw.randint(1, 3)):
            numbers = draw.randint(0, 99), draw.randint(0, 9)
            messages += [
                {"role": "user", "content": draw.choice(asked).format(*numbers)},
                {"role": "assistant", "content": draw.choice(told).format(*numbers)},
            ]
        made.append({"messages": messages})
    return made


def samples_by_hand(tokenizer: PreTrainedTokenizerBase, messages: list[dict[str, str]]) -> list[tuple[Any, list[bool]]]:
    """Tokens and the mask of the answers: the template's own marks, else what each answer adds to its question."""

    def ids(part: list[dict[str, str]], *, ask: bool = False) -> list[int]:
        return list(tokenizer.apply_chat_template(part, add_generation_prompt=ask, return_dict=True)["input_ids"])

    whole = ids(messages)
    if "generation %}" in str(tokenizer.chat_template):
        marked = tokenizer.apply_chat_template(messages, return_assistant_tokens_mask=True, return_dict=True)
        return [(marked["input_ids"], [bool(each) for each in marked["assistant_masks"]])]
    answers = []
    for number in range(1, len(messages), 2):
        before, after = ids(messages[:number], ask=True), ids(messages[: number + 1])
        assert after[: len(before)] == before
        answers.append((after, [False] * len(before) + [True] * (len(after) - len(before))))
    if any(whole[: len(after)] != after for after, _ in answers):
        return answers  # the template writes earlier answers differently: each is a sample of its own
    mask = [False] * len(whole)
    for after, counted in answers:
        mask[: len(after)] = [one or other for one, other in zip(mask, counted, strict=False)]
    return [(whole, mask)]


@torch.no_grad()
def loss_by_hand(folder: Path, records: list[dict[str, Any]]) -> tuple[float, int]:
    """Mean loss over the tokens of answers, and their number, with `transformers` alone."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    total, count = 0.0, 0
    for record in records:
        for tokens, mask in samples_by_hand(tokenizer, record["messages"]):
            labels = torch.tensor([token if own else -100 for token, own in zip(tokens, mask, strict=True)][1:])
            logits = model(input_ids=torch.tensor([tokens[:-1]])).logits[0]
            total += cross_entropy(logits, labels, reduction="sum").item()
            count += int((labels >= 0).sum())
    return total / count, count


@pytest.fixture
def one_process() -> Iterator[None]:
    """A process group of this process alone."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def workload_of(checkpoint: Path, chats: Path, evaluation: dict[str, Any], **data: Any) -> Workload:
    """The workload as a run has it: paths are absolute, and the tokenizer is that of the checkpoint."""
    fields = {
        "task": "causal-lm",
        "model": {"hf": str(checkpoint), "weights": "pretrained"},
        "data": {"source": str(chats), "sequence_length": LENGTH, "chat": True} | data,
        "precision": "fp32",
        "global_batch": 4,
        "train_for": "1 steps",
        "eval": evaluation | {"every": "1 steps", "steps": "all"},
    }
    run_file, source = parse_run_file(yaml.safe_dump({"name": "tiny", "workload": fields}), name="tiny.yaml")
    assert run_file.workload is not None
    return anchored_workload(run_file.workload, source)


def loss_of_the_run(workload: Workload, folders: DataFolders) -> float:
    """Held-out loss as the trainer evaluates it."""
    device, timeline, mesh = torch.device("cpu"), Timeline(torch.device("cpu")), Mesh(LAYOUT, "cpu")
    opened = open_task(workload, mesh, data_folder=folders.train, evaluation_folders=folders.evaluation)
    setup = Setup(mesh=mesh, device=device, precision="fp32", compiled=False, timeline=timeline)
    folder, parallel = folders.train, opened.task.build(setup)
    evaluator = build_evaluator(
        workload, opened, parallel, device, timeline, Heartbeat(), data_folder=folder, modules_folder=folder
    )
    assert evaluator is not None
    return evaluator.evaluate(1)["loss"]


def write_records(file: Path, records: list[dict[str, Any]]) -> Path:
    file.write_text("".join(json.dumps(each) + "\n" for each in records), encoding="utf-8")
    return file


@pytest.mark.parametrize("name", FAMILIES)
def test_the_held_out_loss_is_that_of_transformers(name: str, one_process: None, tmp_path: Path) -> None:
    """Of `eval.data` and of `eval.split`, packed and not."""
    checkpoint = write_checkpoint(tmp_path / "base", name)
    chats, others = conversations(30, seed=1), conversations(8, seed=2)
    train, held_out = write_records(tmp_path / "chats.jsonl", chats), write_records(tmp_path / "held.jsonl", others)
    side = Side(SHARE, held_out=True)
    split_off = [each for each in chats if side.has(json.dumps(each, sort_keys=True).encode())]
    cases = [({"data": str(held_out)}, others, {}), ({"split": SHARE}, split_off, {"pack": True})]
    for evaluation, records, data in cases:
        workload = workload_of(checkpoint, train, evaluation, **data)
        folders = prepare_for_run(
            workload.data, tmp_path / "cache", None, model_vocabulary=300, evaluation=workload.eval
        )
        expected, count = loss_by_hand(checkpoint, records)
        assert count > 50
        assert loss_of_the_run(workload, folders) == pytest.approx(expected, abs=1e-5)


def test_an_exported_tokenizer_renders_what_the_run_trained_on(tmp_path: Path) -> None:
    """Also where template and special tokens were found beside a tokenizer that is not the model's own."""
    whose = {name: write_checkpoint(tmp_path / name, name) for name in ("mistral", "llama3")}
    chats = write_records(tmp_path / "chats.jsonl", conversations(4, seed=3))
    for model in whose.values():
        tokenizer = str(whose["mistral"] / "tokenizer.json")
        workload = workload_of(model, chats, {"data": str(chats)}, tokenizer=tokenizer)
        folder, _ = prepare(workload.data, tmp_path / "cache")
        (part := tmp_path / f"from-{model.name}").mkdir()
        write_tokenizer(workload, Tokenization.read(folder), part)
        written, read = AutoTokenizer.from_pretrained(part), AutoTokenizer.from_pretrained(whose["mistral"])
        messages = conversations(1, seed=4)[0]["messages"]
        assert written.apply_chat_template(messages) == read.apply_chat_template(messages)
        assert written.apply_chat_template(messages, tokenize=False).startswith("<s>[INST] ")


def test_an_exported_tokenizer_names_the_special_tokens_of_the_run(tmp_path: Path) -> None:
    """Those beside the tokenizer of the data, where the checkpoint lists others in its older file."""
    model, other = write_checkpoint(tmp_path / "mistral", "mistral"), tmp_path / "other"
    shutil.copytree(model, other)
    (other / "special_tokens_map.json").write_text(json.dumps({"bos_token": "<s>", "eos_token": "[/INST]"}))
    chats = write_records(tmp_path / "chats.jsonl", conversations(4, seed=3))
    workload = workload_of(model, chats, {"data": str(chats)}, tokenizer=str(other / "tokenizer.json"))
    folder, _ = prepare(workload.data, tmp_path / "cache")
    (part := tmp_path / "part").mkdir()
    write_tokenizer(workload, Tokenization.read(folder), part)
    written = AutoTokenizer.from_pretrained(part)
    assert (written.bos_token, written.eos_token) == ("<s>", "[/INST]")


def test_an_exported_template_renders_no_token_that_the_run_did_not_have(tmp_path: Path) -> None:
    """The tokenizer of the data is a copy of the model's without its settings, which name a token of the template."""
    model, bare = write_checkpoint(tmp_path / "gemma", "gemma"), tmp_path / "bare"
    bare.mkdir()
    shutil.copy(model / "tokenizer.json", bare)
    chats = write_records(tmp_path / "chats.jsonl", conversations(4, seed=3))
    data = {"tokenizer": str(bare / "tokenizer.json"), "chat": {"template": str(TEMPLATES / "gemma.jinja")}}
    workload = workload_of(model, chats, {"data": str(chats)}, **data)
    folder, _ = prepare(workload.data, tmp_path / "cache")
    (part := tmp_path / "part").mkdir()
    write_tokenizer(workload, Tokenization.read(folder), part)
    messages = conversations(1, seed=4)[0]["messages"]
    written = AutoTokenizer.from_pretrained(part)
    assert written.apply_chat_template(messages, tokenize=False).startswith("<start_of_turn>user")
    assert written.pad_token == "<eos>"  # not in the template: the checkpoint's own


def test_an_exported_tokenizer_without_an_end_of_text_names_none(tmp_path: Path) -> None:
    model = {"layers": 1, "hidden": 8, "heads": 1}
    fields = {"task": "causal-lm", "model": model, "data": {"sequence_length": 8, "chat": True}, "global_batch": 1}
    letters = Tokenizer(models.BPE({letter: n for n, letter in enumerate(pre_tokenizers.ByteLevel.alphabet())}, []))
    letters.save(str(tmp_path / "tokenizer.json"))
    found = find_tokenization(tmp_path / "tokenizer.json", Chat())
    write_tokenizer(Workload.model_validate(fields | {"train_for": "1 steps"}), found, tmp_path)
    assert "eos_token" not in json.loads((tmp_path / "tokenizer_config.json").read_text())
