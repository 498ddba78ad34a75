"""An exported adapter is read without torch: what training continues with, and what it cannot continue from."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from trainworks.config.finetune import Adapter
from trainworks.errors import UsageError
from trainworks.host.adapter_folder import continued

LAYER = "base_model.model.model.layers.{}.self_attn.{}"
CONFIG = {
    "peft_type": "LORA",
    "r": 4,
    "lora_alpha": 8,
    "lora_dropout": 0.1,
    "bias": "none",
    "target_modules": ["q_proj"],
}


def tensors(*, dora: bool = False) -> dict[str, np.ndarray]:
    """Adapters of queries and values of two layers, as `peft` names them."""
    found = {}
    for name in (LAYER.format(layer, leaf) for layer in (0, 1) for leaf in ("q_proj", "v_proj")):
        found |= {f"{name}.lora_A.weight": np.ones((4, 6)), f"{name}.lora_B.weight": np.ones((8, 4))}
        found |= {f"{name}.lora_magnitude_vector": np.ones(8)} if dora else {}
    return {name: value.astype(np.float32) for name, value in found.items()}


def write(folder: Path, content: dict[str, np.ndarray] | None = None, **changes: Any) -> Path:
    folder.mkdir()
    (folder / "adapter_config.json").write_text(json.dumps(CONFIG | changes))
    save_file(tensors() if content is None else content, folder / "adapter_model.safetensors")
    return folder


@pytest.mark.parametrize("dora", [False, True])
def test_rank_alpha_dropout_and_layers_are_those_of_the_folder(tmp_path, dora):
    folder = write(tmp_path / "adapter", tensors(dora=dora), use_dora=dora)
    found = continued(Adapter(folder=str(folder), base="fp32"))
    assert (found.rank, found.alpha, found.dropout, found.use_dora, found.base) == (4, 8.0, 0.1, dora, "fp32")
    assert found.targets == ("self_attn.q_proj", "self_attn.v_proj")
    assert continued(found) == found  # a resolved run is read again


def test_an_adapter_without_a_folder_is_as_it_is_written():
    assert continued(Adapter(rank=3)) == Adapter(rank=3)


def test_dropout_may_differ_and_layers_may_be_named_in_short(tmp_path):
    folder = str(write(tmp_path / "adapter"))
    found = continued(Adapter(folder=folder, rank=4, targets=("q_proj", "v_proj"), dropout=0.0))
    assert (found.dropout, found.targets) == (0.0, ("self_attn.q_proj", "self_attn.v_proj"))


@pytest.mark.parametrize(
    ("written", "message"),
    [
        ({"rank": 16}, "`rank` is 16, and 4 in"),
        ({"alpha": 16.0}, r"`alpha` is 16.0, and 8.0 in"),
        ({"use_dora": True}, "`use_dora` is True, and False in"),
        ({"targets": ("q_proj",)}, "`targets` are q_proj, and self_attn.q_proj, self_attn.v_proj in"),
        ({"targets": ("q_proj", "v_proj", "o_proj")}, "`targets` are q_proj, v_proj, o_proj, and"),
    ],
)
def test_a_setting_that_contradicts_the_folder_is_refused(tmp_path, written, message):
    folder = str(write(tmp_path / "adapter"))
    with pytest.raises(UsageError, match=message) as refused:
        continued(Adapter(folder=folder, **written))
    assert refused.value.hint


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"peft_type": "IA3"}, "has no `peft_type: LORA`"),
        ({"use_rslora": True}, "has `use_rslora: true`"),
        ({"bias": "all"}, 'has `bias: "all"`'),
        ({"init_lora_weights": "pissa"}, 'has `init_lora_weights: "pissa"`'),
        ({"modules_to_save": ["lm_head"]}, r'has `modules_to_save: \["lm_head"\]`'),
        ({"alpha_pattern": {"q_proj": 3}}, 'has `alpha_pattern: {"q_proj": 3}`'),
        ({"r": 0}, "`r` of adapter_config.json: "),
        ({"r": None}, "`r` of adapter_config.json: "),
        ({"r": 5}, r"lora_A.weight` is \[4, 6\], and the rank in adapter_config.json 5"),
        ({"use_dora": True}, "lacks its `lora_magnitude_vector`"),
    ],
)
def test_what_is_not_lora_or_dora_of_linear_layers_is_refused(tmp_path, changes, message):
    folder = str(write(tmp_path / "adapter", **changes))
    with pytest.raises(UsageError, match=message):
        continued(Adapter(folder=folder))


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (LAYER.format(1, "v_proj") + ".lora_B.weight", "lacks its `lora_B.weight`"),
        (LAYER.format(1, "v_proj") + ".lora_A.weight", "lacks its `lora_A.weight`"),
    ],
)
def test_a_missing_tensor_is_named(tmp_path, name, message):
    content = tensors()
    del content[name]
    with pytest.raises(UsageError, match=message):
        continued(Adapter(folder=str(write(tmp_path / "adapter", content))))


def test_a_tensor_of_another_kind_is_refused(tmp_path):
    content = tensors() | {"base_model.model.lm_head.weight": np.ones((2, 2), np.float32)}
    with pytest.raises(UsageError, match=r"`base_model.model.lm_head.weight` belongs to no adapter"):
        continued(Adapter(folder=str(write(tmp_path / "adapter", content))))


def test_names_of_a_file_cannot_write_to_the_terminal(tmp_path):
    content = tensors() | {"\x1b[2J" + "x" * 1000: np.ones((2, 2), np.float32)}
    with pytest.raises(UsageError) as refused:
        continued(Adapter(folder=str(write(tmp_path / "adapter", content))))
    assert "\x1b" not in refused.value.message
    assert len(refused.value.message) < 600


def test_a_pickle_is_never_opened(tmp_path):
    folder = write(tmp_path / "adapter")
    (folder / "adapter_model.safetensors").rename(folder / "adapter_model.bin")
    with pytest.raises(UsageError, match=r"adapter_model.bin, a pickle, which may run any code"):
        continued(Adapter(folder=str(folder)))


@pytest.mark.parametrize("damage", ["cut", "empty", "header", "config", "nested", "absent", "file"])
def test_files_that_cannot_be_read_are_refused_in_one_sentence(tmp_path, damage):
    folder = write(tmp_path / "adapter")
    weights, config = folder / "adapter_model.safetensors", folder / "adapter_config.json"
    content = weights.read_bytes()
    {
        "cut": lambda: weights.write_bytes(content[:-4]),
        "empty": lambda: weights.write_bytes(b""),
        "header": lambda: weights.write_bytes(b"\xff" * 64),
        "config": lambda: config.write_text("{"),
        "nested": lambda: config.write_text("[" * 100_000),
        "absent": config.unlink,
        "file": weights.unlink,
    }[damage]()
    with pytest.raises(UsageError, match="cannot continue from the adapter in"):
        continued(Adapter(folder=str(folder)))


def test_a_folder_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(UsageError, match="is not a folder"):
        continued(Adapter(folder=str(tmp_path / "nowhere")))
