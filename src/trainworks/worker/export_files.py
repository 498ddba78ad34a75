"""What an export writes: safetensors files in a folder that is complete or absent, and trained adapters.

An adapter is stored as `peft` stores it, or merged into the weights that it was trained beside.
"""

from __future__ import annotations

import json
import shutil
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TypedDict

import torch
import torch.distributed.checkpoint as dcp
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.metadata import TensorStorageMetadata
from transformers import AutoModelForCausalLM, PretrainedConfig

from trainworks.config.finetune import Adapter
from trainworks.config.run_file import Workload
from trainworks.errors import DiskFullError, EnvironmentProblem, UsageError
from trainworks.files import free_bytes, fsync_folder, naming_full_disk, take_lock, write_atomic
from trainworks.units import format_bytes
from trainworks.worker.checkpoint.shards import LoadPlannerOfValues, reader_of
from trainworks.worker.data.command import print_facts
from trainworks.worker.models.adapters import linear_layers
from trainworks.worker.models.decoder import Decoder
from trainworks.worker.models.families import adaptable_decoder, names_in_files
from trainworks.worker.models.nf4 import dequantized, quantized
from trainworks.worker.models.transformer import blocks_of, checkpoint_folder, hub_origin
from trainworks.worker.models.weights import PEFT, SCORE, fingerprint_of_weights

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
"""Number formats of exported weights."""
_CONV1D = ("gpt2",)
"""Models whose linear layers are `Conv1D`, which stores weights transposed."""
_INDEX = "model.safetensors.index.json"


class Written(TypedDict):
    """Number of tensors, their bytes, and number of files."""

    tensors: int
    bytes: int
    files: int


def state_of(folder: Path) -> dict[str, Tensor]:
    """The tensors of a checkpoint's model, without storage, by name.

    Raises:
        EnvironmentProblem: the checkpoint cannot be read.
    """
    try:
        stored = reader_of(folder).read_metadata().state_dict_metadata
    except Exception as error:
        raise EnvironmentProblem(f"cannot read checkpoint `{folder}`: {type(error).__name__}: {error}") from None
    return {
        name.removeprefix("model."): torch.empty(entry.size, dtype=entry.properties.dtype, device="meta")
        for name, entry in stored.items()
        if name.startswith("model.") and isinstance(entry, TensorStorageMetadata)
    }


def read_tensors(folder: Path, wanted: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Some tensors of a checkpoint, whole; floating-point ones in fp32."""
    values = {
        name: torch.empty(like.shape, dtype=torch.float32 if like.is_floating_point() else like.dtype)
        for name, like in wanted.items()
    }
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # it warns that there is no process group
            dcp.load({"model": values}, storage_reader=reader_of(folder), planner=LoadPlannerOfValues(), no_dist=True)
    except (CheckpointException, RuntimeError, ValueError, OSError) as error:
        raise EnvironmentProblem(
            f"cannot read checkpoint `{folder}`: {error}",
            hint="a running job deletes old checkpoints; export its newest, or raise `checkpoint.keep`",
        ) from None
    return values


def save_tensors(content: dict[str, Tensor], file: Path) -> None:
    """Write a safetensors file, down to the disk.

    Raises:
        DiskFullError: no space left.
        EnvironmentProblem: it cannot be written for another reason.
    """
    try:
        save_file(content, file, metadata={"format": "pt"})
    except SafetensorError as error:
        if "No space left" not in str(error):
            raise EnvironmentProblem(f"cannot write `{file}`: {error}") from None
        raise DiskFullError(
            f"no space left on device: {format_bytes(free_bytes(file.parent))} free, writing `{file.name}`",
            hint="free some space, or export to another disk",
        ) from None
    flush(file)


def flush(file: Path) -> None:
    """Write a file down to the disk."""
    with naming_full_disk(file):
        fsync_folder(file)  # a file's own bytes, as a folder's names


def check_space(to: Path, needed: int) -> None:
    """Refuse to begin what cannot be finished.

    Raises:
        DiskFullError: fewer bytes are free than needed.
    """
    if (free := free_bytes(to)) < needed:
        raise DiskFullError(
            f"the model takes {format_bytes(needed)}, `{to.parent}` has {format_bytes(free)} free",
            hint="free some space, export to another disk, or take `--dtype bf16`",
        )


@contextmanager
def complete_or_absent(to: Path) -> Iterator[Path]:
    """A folder beside `to` that is renamed at the end; what a killed export left there is taken over."""
    if to.exists() and (not to.is_dir() or any(to.iterdir())):
        raise UsageError(f"`{to}` exists", hint="name a folder that is not there yet")
    part = to.parent / f".{to.name}.part"
    with naming_full_disk(part):
        part.mkdir(parents=True, exist_ok=True)
        lock = take_lock(part / ".lock")
    if lock is None:
        raise UsageError(f"another export writes `{to}`", hint="wait for it, or name another folder")
    for left in part.iterdir():
        if left.name != ".lock":
            left.unlink()
    try:
        yield part
        (part / ".lock").unlink()
        fsync_folder(part)
        part.rename(to)
        fsync_folder(to.parent)
    except BaseException:
        shutil.rmtree(part, ignore_errors=True)
        raise


def report(done: int, total: int) -> None:
    """Print progress."""
    print_facts({"done": done, "total": total})


def write_adapted(
    workload: Workload,
    config: PretrainedConfig,
    folder: Path,
    part: Path,
    dtype: str,
    *,
    base_fingerprint: str | None,
    merge: bool,
) -> Written:
    """Write the adapter of the checkpoint in `folder` to `part`, or the whole model with it if `merge` is set; of a
    reward model with its head.

    Raises:
        EnvironmentProblem: the checkpoint, or that which the adapter belongs to, cannot be read, or `merge` would take
            other weights than those of `base_fingerprint`, which the adapter was trained beside.
        DiskFullError: no space left.
    """
    assert workload.adapter is not None and workload.model.hf is not None
    matrices = read_tensors(folder, state_of(folder))
    layer_of = names_in_files(config)
    trained = {
        f"{layer_of(name.partition('.lora_')[0])}.lora_{name.partition('.lora_')[2]}": value
        for name, value in matrices.items()
        if ".lora_" in name
    }
    trained |= {SCORE: value for name, value in matrices.items() if name.endswith(SCORE)}  # noqa: B035  # one at most
    base = checkpoint_folder(workload.model.hf)
    is_same = base_fingerprint in (None, fingerprint_of_weights(base))
    if not merge:
        return _write_adapter(workload, config, hub_origin(base) if is_same else None, trained, part, dtype)
    if not is_same:
        raise EnvironmentProblem(
            f"the weights in `{workload.model.hf}` are not those that the adapter was trained beside",
            hint="restore them, or export the adapter alone",
        )
    return _write_merged(workload.adapter, config, base, trained, part, dtype)


def _write_adapter(
    workload: Workload,
    config: PretrainedConfig,
    origin: tuple[str, str] | None,
    trained: dict[str, Tensor],
    part: Path,
    dtype: str,
) -> Written:
    """`origin` is the hub id of the checkpoint, and its revision."""
    adapter = workload.adapter
    assert adapter is not None
    content = {f"{PEFT}{name}": value.to(DTYPES[dtype]).contiguous() for name, value in trained.items()}
    save_tensors(content, part / "adapter_model.safetensors")
    layers = [name.partition(".lora_")[0] for name in trained if name != SCORE]
    settings = {
        "peft_type": "LORA",
        "task_type": "SEQ_CLS" if SCORE in trained else "CAUSAL_LM",
        "modules_to_save": ["score"] if SCORE in trained else None,
        "base_model_name_or_path": origin[0] if origin else workload.model.hf,
        "revision": origin[1] if origin else None,
        "r": adapter.rank,
        "lora_alpha": adapter.alpha,
        "lora_dropout": adapter.dropout,
        "use_dora": adapter.use_dora,
        "target_modules": sorted({".".join(name.split(".")[-2:]) for name in layers}),
        "fan_in_fan_out": config.model_type in _CONV1D,
        "bias": "none",
        "inference_mode": True,
    }
    write_atomic(part / "adapter_config.json", json.dumps(settings, indent=2) + "\n")
    size = sum(tensor.nbytes for tensor in content.values())
    report(size, size)
    return Written(tensors=len(content), bytes=size, files=1)


def _write_merged(
    adapter: Adapter, config: PretrainedConfig, base: Path, trained: dict[str, Tensor], part: Path, dtype: str
) -> Written:
    """One file of the checkpoint after the other, with alpha / rank * B A added to the weights that have an adapter;
    their rows then have its magnitudes as norms, if it has those.

    Weights that were kept in 4 bits are written as these have them: the adapter was trained to go with those. The head
    of a reward model takes the place of the output matrix; the first file has it.
    """
    frozen = _nf4_layers(config) if adapter.base == "nf4" else set()
    transposed = config.model_type in _CONV1D
    files = sorted(base.glob("*.safetensors"))
    total = sum(file.stat().st_size for file in files)
    tensors = size = done = 0
    head = {SCORE: trained[SCORE]} if SCORE in trained else {}
    replaced = {"lm_head.weight", SCORE} if head else set()
    for file in files:
        content = {name: value.to(DTYPES[dtype]) for name, value in head.items() if file == files[0]}
        with safe_open(file, "pt") as stored:
            for name in [each for each in stored.keys() if each not in replaced]:  # noqa: SIM118  # no iterator
                value = _merged(stored.get_tensor(name), name, adapter, trained, frozen, transposed=transposed)
                content[name] = value.to(DTYPES[dtype]).contiguous() if value.is_floating_point() else value
        save_tensors(content, part / file.name)
        tensors += len(content)
        size += sum(tensor.nbytes for tensor in content.values())
        done += file.stat().st_size
        report(done, total)
    if (base / _INDEX).is_file():
        index = json.loads((base / _INDEX).read_bytes())
        where = {name: file for name, file in index["weight_map"].items() if name not in replaced}
        index["weight_map"] = where | dict.fromkeys(head, files[0].name)
        write_atomic(part / _INDEX, json.dumps(index, indent=2) + "\n")
    config.dtype = DTYPES[dtype]
    with naming_full_disk(part):
        config.save_pretrained(part)
    return Written(tensors=tensors, bytes=size, files=len(files))


def _merged(
    weight: Tensor, name: str, adapter: Adapter, trained: dict[str, Tensor], frozen: set[str], *, transposed: bool
) -> Tensor:
    """A tensor of the checkpoint, with its adapter if it has one; files may lack the prefix of the model."""
    layer = name.removesuffix(".weight")
    names = (layer, f"transformer.{layer}", f"model.{layer}")
    known = next((each for each in names if each in frozen or f"{each}.lora_A.weight" in trained), None)
    if known is None or not name.endswith(".weight"):
        return weight
    if known in frozen:
        weight = dequantized(*quantized(weight), weight.shape, torch.float32)
    if f"{known}.lora_A.weight" not in trained:
        return weight
    delta = trained[f"{known}.lora_B.weight"] @ trained[f"{known}.lora_A.weight"] * (adapter.alpha / adapter.rank)
    rows = (weight.T if transposed else weight).float() + delta
    if adapter.use_dora:
        norms = rows.norm(dim=1).clamp(min=torch.finfo(torch.float32).tiny)
        rows = rows * (trained[f"{known}.lora_magnitude_vector"] / norms).unsqueeze(1)
    return rows.T if transposed else rows


def _nf4_layers(config: PretrainedConfig) -> set[str]:
    """Names, in the files, of the layers that are kept in 4 bits."""
    decoder = adaptable_decoder(config)
    with torch.device("meta"):
        model: nn.Module = Decoder(decoder) if decoder is not None else AutoModelForCausalLM.from_config(config)
    blocks = model.blocks if isinstance(model, Decoder) else blocks_of(model)
    layer_of = names_in_files(config)
    return {layer_of(name) for name, _ in linear_layers(model, blocks)}
