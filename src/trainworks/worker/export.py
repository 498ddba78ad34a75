"""`python -m trainworks.worker.export export REQUEST_JSON PARENT_PID`: a checkpoint as a Hugging Face model.

A model of a user's module is written as a state dict in safetensors, under its own names.

Reads one output file's worth of a checkpoint at a time, without a process group, for any layout that wrote it. Prints
one JSON object per line, as `data_command` does.
"""

from __future__ import annotations

import json
import shutil
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.distributed.checkpoint as dcp
from safetensors import SafetensorError
from safetensors.torch import save_file
from tokenizers import Tokenizer
from torch import Tensor
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.metadata import TensorStorageMetadata
from transformers import AutoModelForCausalLM, PretrainedConfig, PreTrainedTokenizerFast
from transformers.models.auto.modeling_auto import (
    MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
    MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING_NAMES,
    MODEL_FOR_MASKED_LM_MAPPING_NAMES,
)

from trainworks.config.run_file import Workload
from trainworks.errors import DiskFullError, EnvironmentProblem, UsageError
from trainworks.files import free_bytes, fsync_folder, naming_full_disk, take_lock, write_atomic
from trainworks.host.folders import cache_folder
from trainworks.record.events import read_events
from trainworks.record.manifest import Manifest
from trainworks.record.resolved import Plan
from trainworks.record.run_dir import RunDir
from trainworks.units import format_bytes
from trainworks.worker.checkpoint.checksums import undamaged_manifest
from trainworks.worker.checkpoint.shards import reader_of
from trainworks.worker.checkpoint.values import LoadPlannerOfValues
from trainworks.worker.data.card import CARD, hash_file
from trainworks.worker.data.preparation import training_side
from trainworks.worker.data.prepare import prepare
from trainworks.worker.data.token_shards import end_of_text
from trainworks.worker.data_command import answer, print_facts
from trainworks.worker.models.decoder import Decoder
from trainworks.worker.models.families import decoder_config, stored_as, stored_names
from trainworks.worker.models.transformer import checkpoint_folder, model_config
from trainworks.worker.tasks.transformer_tasks import ImageClassification, MaskedLanguageModeling, first_card

_FILE_BYTES = 5_000_000_000
"""Largest safetensors file, unless a single tensor is larger; the default of `transformers`."""
_DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
_WRAPPER = "model."
"""Prefix of parameter names of a model inside an objective."""
_BESIDE_TOKENIZER = ("tokenizer_config.json", "special_tokens_map.json", "chat_template.jinja", "added_tokens.json")


def main(action: str, request_json: str, parent: str) -> int:
    """Answer the request; returns the exit code."""
    return answer(
        request_json,
        parent,
        lambda asked: export(RunDir(Path(asked["run"])), asked["step"], Path(asked["to"]), dtype=asked["dtype"]),
    )


def export(run_dir: RunDir, step: int, to: Path, *, dtype: str, file_bytes: int = _FILE_BYTES) -> dict[str, Any]:
    """Write the checkpoint of a step to a folder that `from_pretrained` opens; the folder is complete or absent.

    Of `task: module` the folder has safetensors files alone, for `load_state_dict`.

    Args:
        run_dir: of a workload.
        step: of a complete checkpoint.
        to: where nothing is yet.
        dtype: fp32 as trained, or bf16 or fp16.
        file_bytes: most bytes of one file; also how much of the model is in memory, in fp32.

    Returns:
        Facts: folder, tensors, parameters, bytes and files.

    Raises:
        UsageError: something is at the place, or another export writes there.
        EnvironmentProblem: the checkpoint is damaged, or the config or the tokenizer cannot be read.
        DiskFullError: no space left.
    """
    resolved = run_dir.read_resolved()
    assert resolved.plan is not None and resolved.run_file.workload is not None
    workload, folder = resolved.run_file.workload, run_dir.checkpoint(step)
    manifest = undamaged_manifest(run_dir, step, _report)
    data = None if workload.task == "module" else _data_folder(run_dir, workload, manifest)
    _check_space(to, resolved.plan.model.num_parameters * _DTYPES[dtype].itemsize)
    with _complete_or_absent(to) as part:
        if data is None:
            facts = _write_state(folder, part, dtype, file_bytes)
        elif workload.task == "causal-lm":
            facts = _write_causal(resolved.plan, workload, data, folder, part, dtype, file_bytes)
        else:
            facts = _write_transformer(workload, data, folder, part, dtype, file_bytes)
    return facts | {"folder": str(to), "step": step, "dtype": dtype}


def _write_causal(
    plan: Plan, workload: Workload, data: Path, folder: Path, part: Path, dtype: str, file_bytes: int
) -> dict[str, Any]:
    """A causal language model with its config and tokenizer."""
    config = model_config(workload.model, plan.model)
    tokenizer = first_card(data)[1] / "tokenizer.json"
    write = _write_whole if decoder_config(config) is None else _write_decoder
    facts = write(folder, config, part, dtype, file_bytes)
    config.architectures = [MODEL_FOR_CAUSAL_LM_MAPPING_NAMES[config.model_type]]
    if workload.model.hf is None:  # given by dimensions: it gets the token that ends its documents
        end = end_of_text(Tokenizer.from_file(str(tokenizer)))
        config.bos_token_id, config.eos_token_id = end, end
    _write_config(config, part, dtype)
    _write_tokenizer(workload, tokenizer, part)
    return facts


def _write_transformer(
    workload: Workload, data: Path, folder: Path, part: Path, dtype: str, file_bytes: int
) -> dict[str, Any]:
    """A masked language model with its tokenizer, or a classifier of images; both are trained under their own names."""
    facts = _write_state(folder, part, dtype, file_bytes)
    if workload.task == "masked-lm":
        config = MaskedLanguageModeling(workload, data, micro_batch=1).config
        architectures: Mapping[str, str] = MODEL_FOR_MASKED_LM_MAPPING_NAMES
        _write_tokenizer(workload, first_card(data)[1] / "tokenizer.json", part)
    else:
        config = ImageClassification(workload, data, micro_batch=1).config
        architectures = MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING_NAMES
    config.architectures = [architectures[config.model_type]]
    _write_config(config, part, dtype)
    return facts


def _write_state(folder: Path, part: Path, dtype: str, file_bytes: int) -> dict[str, Any]:
    """The tensors of a checkpoint under the names that the model itself has for them."""
    state = _state_of(folder)
    tensors: dict[str, list[tuple[str, Any]]] = {
        name.removeprefix(_WRAPPER): [(name, None)] for name in state if name.startswith(_WRAPPER)
    }

    def content(names: Sequence[str], values: Mapping[str, Tensor]) -> dict[str, Tensor]:
        wholes = {name: values[tensors[name][0][0]] for name in names}
        return {
            name: whole.to(_DTYPES[dtype]) if whole.is_floating_point() else whole for name, whole in wholes.items()
        }

    return _write_files(folder, tensors, state, content, part, dtype, file_bytes)


def _state_of(folder: Path) -> dict[str, Tensor]:
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


def _write_decoder(folder: Path, config: PretrainedConfig, part: Path, dtype: str, file_bytes: int) -> dict[str, Any]:
    """One file after the other; the parameters that a file needs are read for it, and forgotten."""
    decoder = decoder_config(config)
    assert decoder is not None
    with torch.device("meta"):
        parameters = dict(Decoder(decoder).named_parameters())
    tensors = stored_names(list(parameters), config)

    def content(names: Sequence[str], values: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return {name: _tensor(tensors[name], values, config, _DTYPES[dtype]) for name in names}

    return _write_files(folder, tensors, parameters, content, part, dtype, file_bytes)


def _write_files(
    folder: Path,
    tensors: Mapping[str, list[tuple[str, Any]]],
    parameters: Mapping[str, Tensor],
    content_of: Callable[[Sequence[str], Mapping[str, Tensor]], dict[str, Tensor]],
    part: Path,
    dtype: str,
    file_bytes: int,
) -> dict[str, Any]:
    """Safetensors files, and an index if there are several.

    Args:
        folder: of the checkpoint.
        tensors: to be written, by name; each with the parameters that it is made of.
        parameters: of the checkpoint, without storage.
        content_of: makes the tensors of a file from the values of the parameters.
        part: where the files go.
        dtype: of floating-point tensors.
        file_bytes: most bytes of one file.
    """
    files = _files(tensors, parameters, _DTYPES[dtype].itemsize, file_bytes)
    read = {holder for holders in tensors.values() for holder, _ in holders}
    total = sum(parameters[name].numel() for name in read) * _DTYPES[dtype].itemsize
    where: dict[str, str] = {}
    done = 0
    for number, names in enumerate(files, start=1):
        needed = {holder for name in names for holder, _ in tensors[name]}
        values = _read(folder, {name: parameters[name] for name in sorted(needed)})
        content = content_of(names, values)
        file = f"model-{number:05d}-of-{len(files):05d}.safetensors" if len(files) > 1 else "model.safetensors"
        _save(content, part / file)
        where |= dict.fromkeys(names, file)
        done += sum(tensor.nbytes for tensor in content.values())
        _report(done, total)
    if len(files) > 1:
        index = {"metadata": {"total_size": total}, "weight_map": where}
        write_atomic(part / "model.safetensors.index.json", json.dumps(index, indent=2) + "\n")
    return {"tensors": len(where), "bytes": total, "files": len(files)}


def _files(
    tensors: Mapping[str, list[tuple[str, Any]]], parameters: Mapping[str, Tensor], itemsize: int, file_bytes: int
) -> list[list[str]]:
    """Names of the tensors of each file, in the order of the model."""
    files: list[list[str]] = [[]]
    size = 0
    for name, holders in tensors.items():
        values = sum(parameters[holder][0 if row is not None else ...].numel() for holder, row in holders)
        if files[-1] and size + values * itemsize > file_bytes:
            files.append([])
            size = 0
        files[-1].append(name)
        size += values * itemsize
    return files


def _tensor(
    holders: list[tuple[str, Any]], values: Mapping[str, Tensor], config: PretrainedConfig, dtype: torch.dtype
) -> Tensor:
    """A tensor of the files from the parameters that it holds: the inverse of `load_weights`."""
    transposed = stored_as(holders[0][0], config).transposed
    pieces = [values[name] if row is None else values[name][row] for name, row in holders]
    whole = torch.cat([piece.T if transposed else piece for piece in pieces], dim=1 if transposed else 0)
    return whole.to(dtype).contiguous()


def _read(folder: Path, wanted: Mapping[str, Tensor]) -> dict[str, Tensor]:
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


def _write_whole(folder: Path, config: PretrainedConfig, part: Path, dtype: str, file_bytes: int) -> dict[str, Any]:
    """A model that `transformers` computes, written by it; all of it is in memory."""
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    state = {f"model.{name}": tensor for name, tensor in model.state_dict().items()}
    with torch.no_grad():
        for name, value in _read(folder, state).items():
            state[name].copy_(value)
    with naming_full_disk(part):
        model.to(_DTYPES[dtype]).save_pretrained(part, max_shard_size=file_bytes)
    files = list(part.glob("*.safetensors"))
    for file in files:
        _flush(file)
    size = sum(file.stat().st_size for file in files)
    return {"tensors": len(model.state_dict()), "bytes": size, "files": len(files)}


def _save(content: dict[str, Tensor], file: Path) -> None:
    try:
        save_file(content, file, metadata={"format": "pt"})
    except SafetensorError as error:
        if "No space left" not in str(error):
            raise EnvironmentProblem(f"cannot write `{file}`: {error}") from None
        raise DiskFullError(
            f"no space left on device: {format_bytes(free_bytes(file.parent))} free, writing `{file.name}`",
            hint="free some space, or export to another disk",
        ) from None
    _flush(file)


def _flush(file: Path) -> None:
    with naming_full_disk(file):
        fsync_folder(file)  # a file's own bytes, as a folder's names


def _write_config(config: PretrainedConfig, part: Path, dtype: str) -> None:
    config.dtype = _DTYPES[dtype]
    with naming_full_disk(part):
        config.save_pretrained(part)


def _write_tokenizer(workload: Workload, tokenizer: Path, part: Path) -> None:
    """Copy the tokenizer of the data, with its other files if it belongs to the checkpoint of the model."""
    origin = checkpoint_folder(workload.model.hf) if workload.model.hf is not None else None
    with naming_full_disk(part):
        beside = origin / "tokenizer.json" if origin is not None else None
        if origin is not None and beside is not None and beside.is_file() and hash_file(beside) == hash_file(tokenizer):
            for name in ("tokenizer.json", *_BESIDE_TOKENIZER):
                if (origin / name).is_file():
                    shutil.copyfile(origin / name, part / name)
        if not (part / "tokenizer_config.json").exists():
            loaded = Tokenizer.from_file(str(tokenizer))
            end = end_of_text(loaded)
            special = {} if end is None else {"eos_token": loaded.id_to_token(end)}
            length = workload.data.sequence_length
            PreTrainedTokenizerFast(tokenizer_object=loaded, model_max_length=length, **special).save_pretrained(part)


def _data_folder(run_dir: RunDir, workload: Workload, manifest: Manifest) -> Path:
    """The prepared data that the run trained on, with its tokenizer or classes: kept, or made again.

    Raises:
        EnvironmentProblem: the source is not what it was.
    """
    ready = [event["folder"] for event in read_events(run_dir.events_file) if event["kind"] == "data_ready"]
    kept = Path(ready[-1]) if ready else None
    if kept is not None and (kept / CARD).is_file():
        return kept
    folder, card = prepare(workload.data, cache_folder("data"), side=training_side(workload.eval))
    if card.fingerprint != manifest.data_fingerprint:
        raise EnvironmentProblem(
            "the prepared data of the run is gone and its source changed: the tokenizer cannot be made again",
            hint="restore the files of the source",
        )
    return folder


def _check_space(to: Path, needed: int) -> None:
    if (free := free_bytes(to)) < needed:
        raise DiskFullError(
            f"the model takes {format_bytes(needed)}, `{to.parent}` has {format_bytes(free)} free",
            hint="free some space, export to another disk, or take `--dtype bf16`",
        )


@contextmanager
def _complete_or_absent(to: Path) -> Iterator[Path]:
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


def _report(done: int, total: int) -> None:
    print_facts({"done": done, "total": total})


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
