"""Training scripts of public repositories, with data and models that are made here, so that they train without a hub.

No script is changed. A hub's name such as `bert-base-cased` is a folder of that name, which the libraries load first.
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tokenizers import Tokenizer, models, pre_tokenizers, processors, trainers
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForMaskedLM, PreTrainedTokenizerFast

__all__ = ["PUBLIC_SCRIPTS", "PublicScript"]


@dataclass(frozen=True, kw_only=True)
class PublicScript:
    """One script of a public repository, and what it is run with."""

    name: str
    repository: str
    """Of GitHub: owner and name."""
    revision: str
    """The commit that RESULTS.md is of."""
    framework: str
    file: str
    arguments: str = ""
    first: str = ""
    """Arguments of a start without a checkpoint."""
    checkpoint: str = ""
    """Pattern of its checkpoint's path, and the arguments, in bash, that a restart passes where one is found."""
    before: str = ""
    """A command that starts Python, such as `env -u RANK`."""
    prepare: Callable[[Path, Path], None]
    """Makes the data; its arguments are the folder that the script starts in, and the checkout."""
    metrics: Mapping[str, object] = field(default_factory=dict)
    """`metrics` of the run file."""
    environment: Mapping[str, str] = field(default_factory=dict)

    def line(self, checkout: Path) -> str:
        """Its command for bash, without the arguments of `first` and `checkpoint`."""
        command = f"{self.before} {sys.executable} {checkout / self.file} {self.arguments}"
        return command.replace("CHECKOUT", str(checkout)).strip()

    def variables(self, checkout: Path) -> dict[str, str]:
        """What it needs in its environment; one thread, because the machine may be shared."""
        found = {"OMP_NUM_THREADS": "1"} | dict(self.environment)
        return {name: value.replace("CHECKOUT", str(checkout)) for name, value in found.items()}


def _words(count: int, *, vocabulary: int = 400, seed: int = 0) -> list[str]:
    """Words of a made-up language, in which each of them limits the next to four."""
    drawn = random.Random(seed)
    names = [
        "".join(drawn.choice("aeioulnrst") for _ in range(2 + index % 5)) + str(index) for index in range(vocabulary)
    ]
    at, found = 0, list[str]()
    for _ in range(count):
        found.append(names[at])
        at = (7 * at + drawn.choice((1, 2, 3, 5))) % vocabulary
    return found


def _sentences(count: int, *, length: int = 12, seed: int = 0) -> list[str]:
    words = _words(count * length, seed=seed)
    return [" ".join(words[start : start + length]) for start in range(0, len(words), length)]


def _write_text(file: Path, words: Iterable[str], *, per_line: int = 20) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    listed = list(words)
    lines = (" ".join(listed[start : start + per_line]) for start in range(0, len(listed), per_line))
    file.write_text("".join(f" {line} \n" for line in lines))


def _write_rows(file: Path, rows: Iterable[Mapping[str, object]]) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))


def _write_config(folder: Path, name: str, splits: Mapping[str, str]) -> None:
    """A card that names the files of one configuration, as a data set of the hub has it."""
    files = "".join(f"  - split: {split}\n    path: {path}\n" for split, path in splits.items())
    (folder / "README.md").write_text(f"---\nconfigs:\n- config_name: {name}\n  data_files:\n{files}---\n")


def _install(folder: Path, name: str, version: str) -> None:
    """The description of an installed package, which some scripts look up."""
    description = folder / f"{name}-{version}.dist-info"
    description.mkdir(parents=True)
    (description / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")


_SPECIAL = ("<pad>", "<unk>", "<s>", "</s>", "<mask>")


def _write_model(folder: Path, architecture: str) -> None:
    """A tokenizer of the words above, and a small model with random weights."""
    tokenizer = Tokenizer(models.WordLevel(unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    trained = trainers.WordLevelTrainer(special_tokens=list(_SPECIAL), show_progress=False)
    tokenizer.train_from_iterator(_sentences(4000), trained)
    if architecture != "llama":
        tokenizer.post_processor = processors.TemplateProcessing(
            single="<s> $A </s>", pair="<s> $A </s> $B </s>", special_tokens=[("<s>", 2), ("</s>", 3)]
        )
    names = dict(zip(("pad_token", "unk_token", "bos_token", "eos_token", "mask_token"), _SPECIAL, strict=True))
    whole = PreTrainedTokenizerFast(tokenizer_object=tokenizer, cls_token="<s>", sep_token="</s>", **names)
    whole.model_max_length = 128
    whole.save_pretrained(folder)
    ids = {"pad_token_id": 0, "bos_token_id": 2, "eos_token_id": 3}
    sizes = {"hidden_size": 96, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 256}
    config = AutoConfig.for_model(architecture, vocab_size=len(whole), max_position_embeddings=160, **sizes, **ids)
    kind = AutoModelForCausalLM if architecture == "llama" else AutoModelForMaskedLM
    kind.from_config(config).save_pretrained(folder)


def _word_language_model(folder: Path, _checkout: Path) -> None:
    for split, count in (("train", 40_000), ("valid", 4_000), ("test", 4_000)):
        _write_text(folder / "data" / f"{split}.txt", _words(count, seed=len(split)))


def _nano_gpt(folder: Path, checkout: Path) -> None:
    (folder / "configurator.py").write_bytes((checkout / "configurator.py").read_bytes())  # it is read from there
    data = folder / "data" / "shakespeare_char"
    _write_text(data / "input.txt", _words(60_000))
    made = data / "prepare.py"
    made.write_bytes((checkout / "data" / "shakespeare_char" / "prepare.py").read_bytes())
    subprocess.run([sys.executable, str(made)], check=True, stdout=subprocess.DEVNULL)


def _make_more(folder: Path, checkout: Path) -> None:
    (folder / "names.txt").write_bytes((checkout / "names.txt").read_bytes())


def _accelerate(folder: Path, _checkout: Path) -> None:
    _write_model(folder / "bert-base-cased", "bert")
    glue = folder / "nyu-mll" / "glue"
    for split, count in (("train", 1600), ("validation", 160)):
        texts = _sentences(count, seed=count)
        pairs = zip(texts, texts[1:] + texts[:1], strict=True)
        rows = [{"sentence1": one, "sentence2": other, "label": len(one) % 2, "idx": 0} for one, other in pairs]
        _write_rows(glue / f"{split}.jsonl", rows)
    _write_config(glue, "mrpc", {"train": "train.jsonl", "validation": "validation.jsonl"})
    metric = folder / "glue" / "glue.py"
    metric.parent.mkdir()
    metric.write_text(_GLUE)


_GLUE = '''"""Accuracy and F1 of two classes: the metric `mrpc` of `glue`, which a hub has otherwise."""

import datasets
import evaluate
import numpy as np


class Glue(evaluate.Metric):
    def _info(self):
        features = datasets.Features({"predictions": datasets.Value("int64"), "references": datasets.Value("int64")})
        return evaluate.MetricInfo(description="", citation="", inputs_description="", features=features)

    def _compute(self, predictions, references):
        said, true = np.asarray(predictions) == 1, np.asarray(references) == 1
        return {"accuracy": (said == true).mean(), "f1": 2 * (said & true).sum() / max(1, said.sum() + true.sum())}
'''


def _trl(folder: Path, _checkout: Path) -> None:
    _write_model(folder / "model", "llama")
    texts = _sentences(800, length=16)
    rows = [
        {"prompt": " ".join(words[:6]), "chosen": " " + " ".join(words[6:]), "rejected": " " + " ".join(words[:5:-1])}
        for words in map(str.split, texts)
    ]
    _write_rows(folder / "preferences" / "train.jsonl", rows)


def _lightning(folder: Path, _checkout: Path) -> None:
    _install(folder / "stand-in", "torchvision", "0.0")
    (folder / "stand-in" / "torchvision").mkdir()
    (folder / "stand-in" / "torchvision" / "__init__.py").write_text(_TORCHVISION)


_TORCHVISION = '''"""MNIST of random images, for a script that needs no more of torchvision than this."""

import sys
import types

import torch


class MNIST:
    def __init__(self, *_, train=True, **__):
        drawn = torch.Generator().manual_seed(int(train))
        self.images = torch.rand(100, 1, 28, 28, generator=drawn)
        self.count = 60_000 if train else 10_000

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        return self.images[index % 100], index % 10


names = ("datasets", "transforms", "utils", "models")
datasets, transforms, utils, models = (types.ModuleType(f"torchvision.{name}") for name in names)
datasets.MNIST, transforms.ToTensor = MNIST, object
models.resnet50 = models.vgg16 = models.VGG16_Weights = object
utils.make_grid = lambda tensor, **_: tensor
utils.save_image = lambda *_, **__: None
for module in (datasets, transforms, utils, models):
    sys.modules[module.__name__] = module
'''


def _hello_deep_speed(folder: Path, _checkout: Path) -> None:
    _write_model(folder / "roberta-base", "roberta")
    _write_rows(folder / "wikitext" / "train.jsonl", ({"text": text} for text in _sentences(4000)))
    _write_config(folder / "wikitext", "wikitext-2-v1", {"train": "train.jsonl"})


def _nothing(_folder: Path, _checkout: Path) -> None:
    """The script makes its data itself."""


PUBLIC_SCRIPTS = (
    PublicScript(
        name="word_language_model",
        repository="pytorch/examples",
        revision="77f55b9",
        framework="PyTorch",
        file="word_language_model/main.py",
        arguments="--data data --emsize 32 --nhid 32 --epochs 3 --log-interval 5",
        prepare=_word_language_model,
    ),
    PublicScript(
        name="nanoGPT",
        repository="karpathy/nanoGPT",
        revision="3adf61e",
        framework="PyTorch",
        before="env -u RANK",
        file="train.py",
        arguments="CHECKOUT/config/train_shakespeare_char.py --device=cpu --compile=False --block_size=64 "
        "--batch_size=12 --n_layer=2 --n_head=2 --n_embd=64 --dropout=0.0 --eval_iters=5 --eval_interval=50 "
        "--log_interval=1 --max_iters=200 --lr_decay_iters=200",
        checkpoint="out-shakespeare-char/ckpt.pt --init_from=resume",
        prepare=_nano_gpt,
    ),
    PublicScript(
        name="makemore",
        repository="karpathy/makemore",
        revision="988aa59",
        framework="PyTorch",
        file="makemore.py",
        arguments="--n-layer 2 --n-embd 32 --n-embd2 32 --max-steps 1001 --num-workers 0",
        checkpoint="out/model.pt --resume",
        prepare=_make_more,
    ),
    PublicScript(
        name="accelerate nlp",
        repository="huggingface/accelerate",
        revision="16cb6eb",
        framework="Accelerate",
        file="examples/complete_nlp_example.py",
        arguments="--cpu --with_tracking --checkpointing_steps epoch --output_dir out --project_dir logs",
        checkpoint="out/epoch_* --resume_from_checkpoint $(ls -td out/epoch_* | head -1)",
        environment={"WANDB_MODE": "offline"},
        prepare=_accelerate,
    ),
    PublicScript(
        name="trl dpo",
        repository="huggingface/trl",
        revision="f2cd577",
        framework="TRL",
        file="trl/scripts/dpo.py",
        arguments="--model_name_or_path model --dataset_name preferences --output_dir out --max_steps 24 "
        "--per_device_train_batch_size 4 --logging_steps 1 --save_steps 10 --report_to none --use_cpu true "
        "--bf16 false --gradient_checkpointing false",
        prepare=_trl,
    ),
    PublicScript(
        name="autoencoder",
        repository="Lightning-AI/pytorch-lightning",
        revision="7f0c343",
        framework="Lightning",
        file="examples/pytorch/basics/autoencoder.py",
        arguments="--trainer.accelerator cpu --trainer.max_epochs 4 --trainer.limit_train_batches 200 "
        "--trainer.limit_val_batches 20 --trainer.limit_test_batches 5 --trainer.limit_predict_batches 1 "
        "--trainer.log_every_n_steps 5",
        environment={"PYTHONPATH": "stand-in"},
        prepare=_lightning,
    ),
    PublicScript(
        name="HelloDeepSpeed",
        repository="microsoft/DeepSpeedExamples",
        revision="83757d9",
        framework="Transformers",
        file="training/HelloDeepSpeed/train_bert.py",
        arguments="--num_layers 2 --h_dim 64 --num_heads 4 --ff_dim 128 --max_seq_length 32 --num_iterations 60 "
        "--checkpoint_every 20 --log_every 2 --batch_size 4",
        first="--checkpoint_dir out",
        checkpoint="out/*/checkpoint*.pt --load_checkpoint_dir $(dirname $(ls -t out/*/checkpoint*.pt | head -1))",
        prepare=_hello_deep_speed,
    ),
    PublicScript(
        name="cleanrl ppo",
        repository="vwxyzjn/cleanrl",
        revision="fe8d8a0",
        framework="PyTorch, Gymnasium",
        file="cleanrl/ppo.py",
        arguments="--no-cuda --total-timesteps 60000",
        metrics={"names": {"loss": "losses/value_loss"}},
        prepare=_nothing,
    ),
)
"""The scripts of the table in RESULTS.md; `CHECKOUT` in arguments and variables is the checkout's folder."""
