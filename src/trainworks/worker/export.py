"""`python -m trainworks.worker.export export REQUEST_JSON PARENT_PID`: a checkpoint as a Hugging Face model.

A model of a user's module is written as a state dict in safetensors, under its own names.

Reads one output file's worth of a checkpoint at a time, without a process group, for any layout that wrote it. Prints
one JSON object per line, as `data.command` does.
"""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import (
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    PretrainedConfig,
    PreTrainedTokenizerFast,
)
from transformers.models.auto import modeling_auto

from trainworks.config.run_file import Workload
from trainworks.errors import EnvironmentProblem, UsageError
from trainworks.files import naming_full_disk, write_atomic
from trainworks.host.folders import cache_folder
from trainworks.record.events.log import of_kind, read_events
from trainworks.record.events.training import DataReadyEvent
from trainworks.record.manifest import Manifest, check_tokenization
from trainworks.record.resolved import Plan
from trainworks.record.run_dir import RunDir
from trainworks.worker.checkpoint.failures import undamaged_manifest
from trainworks.worker.data.card import CARD, TOKENIZER
from trainworks.worker.data.command import answer
from trainworks.worker.data.opening import open_dataset
from trainworks.worker.data.preparation import training_side
from trainworks.worker.data.prepare import prepare
from trainworks.worker.data.tokenization import (
    TEMPLATE,
    TOKENIZER_CONFIG,
    TOKENS_MAP,
    ChatStyle,
    Tokenization,
    end_of_text,
    fingerprint_of,
    special_tokens,
)
from trainworks.worker.export_files import (
    DTYPES,
    Written,
    check_space,
    complete_or_absent,
    flush,
    read_tensors,
    report,
    save_tensors,
    state_of,
    write_adapted,
)
from trainworks.worker.models.decoder import Decoder
from trainworks.worker.models.families import decoder_config, stored_as, stored_names
from trainworks.worker.models.transformer import checkpoint_folder, model_config
from trainworks.worker.tasks.transformer_tasks import ImageClassification, MaskedLanguageModeling

_FILE_BYTES = 5_000_000_000
"""Largest safetensors file, unless a single tensor is larger; the default of `transformers`."""
_WRAPPER = "model."
"""Prefix of parameter names of a model inside an objective."""
_SETTINGS = (TOKENIZER_CONFIG, TOKENS_MAP, TEMPLATE, "added_tokens.json")


def main(action: str, request_json: str, parent: str) -> int:
    """Answer the request; returns the exit code."""
    return answer(
        request_json,
        parent,
        lambda asked: export(
            RunDir(Path(asked["run"])),
            asked["step"],
            Path(asked["to"]),
            dtype=asked["dtype"],
            merge=bool(asked.get("merge")),
            card=asked.get("card", ""),
        ),
    )


def export(
    run_dir: RunDir,
    step: int,
    to: Path,
    *,
    dtype: str,
    merge: bool = False,
    card: str = "",
    file_bytes: int = _FILE_BYTES,
) -> dict[str, object]:
    """Write the checkpoint of a step to a folder that `from_pretrained` opens; the folder is complete or absent.

    Of `task: module` the folder has safetensors files alone, for `load_state_dict`. Of a run with an adapter it has the
    adapter, for `peft`, or with `merge` the whole model. `card` is the text of its README.md. `dtype` is fp32 as
    trained, or bf16 or fp16. A file has at most `file_bytes`, which is also how much of the model is in memory, in
    fp32.

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
    manifest = undamaged_manifest(run_dir, step, report)
    data = None if workload.task == "module" else data_folder(run_dir, workload, manifest)
    whole = workload.adapter is None or merge
    check_space(to, resolved.plan.model.num_parameters * DTYPES[dtype].itemsize if whole else manifest.num_bytes)
    if merge and workload.adapter is None:
        raise UsageError(f"run {run_dir.run_id} has no adapter to merge", hint="leave `--merge` out")
    with complete_or_absent(to) as part:
        if data is None:
            facts = _write_state(folder, part, dtype, file_bytes)
        elif workload.adapter is not None:
            tokenization, base = Tokenization.read(data), manifest.base_fingerprint
            config = _config_of(workload, resolved.plan, tokenization)
            facts = write_adapted(workload, config, folder, part, dtype, base_fingerprint=base, merge=merge)
            write_tokenizer(workload, tokenization, part)
        elif workload.task == "causal-lm":
            facts = _write_causal(resolved.plan, workload, data, folder, part, dtype, file_bytes)
        else:
            facts = _write_transformer(workload, data, folder, part, dtype, file_bytes)
        if card:
            write_atomic(part / "README.md", card)
    return {**facts, "folder": str(to), "step": step, "dtype": dtype}


def _write_causal(
    plan: Plan, workload: Workload, data: Path, folder: Path, part: Path, dtype: str, file_bytes: int
) -> Written:
    tokenization = Tokenization.read(data)
    config = _config_of(workload, plan, tokenization)
    write = _write_whole if decoder_config(config) is None else _write_decoder
    facts = write(folder, config, part, dtype, file_bytes, scores=workload.trains_reward)
    if workload.model.hf is None:  # given by dimensions: it gets the token that ends its documents
        end = end_of_text(tokenization.tokenizer)
        config.bos_token_id, config.eos_token_id = end, end
    _write_config(config, part, dtype)
    write_tokenizer(workload, tokenization, part)
    return facts


def _config_of(workload: Workload, plan: Plan, tokenization: Tokenization) -> PretrainedConfig:
    """The config of the whole model; a reward model has one output, and names the token that rows are filled with."""
    config = model_config(workload.model, plan.model)
    architectures: Mapping[str, str] = modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
    if workload.trains_reward:
        architectures = modeling_auto.MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES
        config.num_labels, config.pad_token_id = 1, tokenization.padding
    config.architectures = [architectures[config.model_type]]
    return config


def _write_transformer(
    workload: Workload, data: Path, folder: Path, part: Path, dtype: str, file_bytes: int
) -> Written:
    """A masked language model with its tokenizer, or a classifier of images; both are trained under their own names."""
    facts = _write_state(folder, part, dtype, file_bytes)
    if workload.task == "masked-lm":
        config = MaskedLanguageModeling(workload, data, micro_batch=1).config
        architectures: Mapping[str, str] = modeling_auto.MODEL_FOR_MASKED_LM_MAPPING_NAMES
        write_tokenizer(workload, Tokenization.read(data), part)
    else:
        config = ImageClassification(workload, data, micro_batch=1).config
        architectures = modeling_auto.MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING_NAMES
    config.architectures = [architectures[config.model_type]]
    _write_config(config, part, dtype)
    return facts


def _write_state(folder: Path, part: Path, dtype: str, file_bytes: int) -> Written:
    """The tensors of a checkpoint under the names that the model itself has for them."""
    state = state_of(folder)
    tensors: dict[str, list[tuple[str, Any]]] = {
        name.removeprefix(_WRAPPER): [(name, None)] for name in state if name.startswith(_WRAPPER)
    }

    def content(names: Sequence[str], values: Mapping[str, Tensor]) -> dict[str, Tensor]:
        wholes = {name: values[tensors[name][0][0]] for name in names}
        return {name: whole.to(DTYPES[dtype]) if whole.is_floating_point() else whole for name, whole in wholes.items()}

    return _write_files(folder, tensors, state, content, part, dtype, file_bytes)


def _write_decoder(
    folder: Path, config: PretrainedConfig, part: Path, dtype: str, file_bytes: int, *, scores: bool
) -> Written:
    """One file after the other; the parameters that a file needs are read for it, and forgotten."""
    decoder = decoder_config(config)
    assert decoder is not None
    with torch.device("meta"):
        parameters = dict(Decoder(replace(decoder, scores=scores)).named_parameters())
    tensors = stored_names(list(parameters), config)

    def content(names: Sequence[str], values: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return {name: _tensor(tensors[name], values, config, DTYPES[dtype]) for name in names}

    return _write_files(folder, tensors, parameters, content, part, dtype, file_bytes)


def _write_files(
    folder: Path,
    tensors: Mapping[str, list[tuple[str, Any]]],
    parameters: Mapping[str, Tensor],
    content_of: Callable[[Sequence[str], Mapping[str, Tensor]], dict[str, Tensor]],
    part: Path,
    dtype: str,
    file_bytes: int,
) -> Written:
    """Safetensors files, and an index if there are several. Each tensor is made of parameters of the checkpoint."""
    files = _files(tensors, parameters, DTYPES[dtype].itemsize, file_bytes)
    read = {holder for holders in tensors.values() for holder, _ in holders}
    total = sum(parameters[name].numel() for name in read) * DTYPES[dtype].itemsize
    where: dict[str, str] = {}
    done = 0
    for number, names in enumerate(files, start=1):
        needed = {holder for name in names for holder, _ in tensors[name]}
        values = read_tensors(folder, {name: parameters[name] for name in sorted(needed)})
        content = content_of(names, values)
        file = f"model-{number:05d}-of-{len(files):05d}.safetensors" if len(files) > 1 else "model.safetensors"
        save_tensors(content, part / file)
        where |= dict.fromkeys(names, file)
        done += sum(tensor.nbytes for tensor in content.values())
        report(done, total)
    if len(files) > 1:
        index = {"metadata": {"total_size": total}, "weight_map": where}
        write_atomic(part / "model.safetensors.index.json", json.dumps(index, indent=2) + "\n")
    return Written(tensors=len(where), bytes=total, files=len(files))


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


def _write_whole(
    folder: Path, config: PretrainedConfig, part: Path, dtype: str, file_bytes: int, *, scores: bool
) -> Written:
    """A model that `transformers` computes, written by it; all of it is in memory."""
    kind = AutoModelForSequenceClassification if scores else AutoModelForCausalLM
    model = kind.from_config(config, dtype=torch.float32)
    state = {f"model.{name}": tensor for name, tensor in model.state_dict().items()}
    with torch.no_grad():
        for name, value in read_tensors(folder, state).items():
            state[name].copy_(value)
    with naming_full_disk(part):
        model.to(DTYPES[dtype]).save_pretrained(part, max_shard_size=file_bytes)
    files = list(part.glob("*.safetensors"))
    for file in files:
        flush(file)
    size = sum(file.stat().st_size for file in files)
    return Written(tensors=len(model.state_dict()), bytes=size, files=len(files))


def _write_config(config: PretrainedConfig, part: Path, dtype: str) -> None:
    config.dtype = DTYPES[dtype]
    with naming_full_disk(part):
        config.save_pretrained(part)


def data_folder(run_dir: RunDir, workload: Workload, manifest: Manifest) -> Path:
    """The prepared data that the run trained on, with its tokenization or classes: kept, or made again if they are
    what they were.
    """
    ready = [event["folder"] for event in of_kind(read_events(run_dir.events_file), DataReadyEvent)]
    kept = [folder for folder in map(Path, ready[-1:]) if (folder / CARD).is_file()]
    if kept:
        folder = kept[0]
    else:
        folder, _ = prepare(workload.data, cache_folder("data"), side=training_side(workload.eval))
        if open_dataset(folder, workload.data).fingerprint != manifest.data_fingerprint:
            raise EnvironmentProblem(
                "the prepared data of the run is gone and its source changed: the tokenizer cannot be made again",
                hint="restore the files of the source",
            )
    check_tokenization(manifest, fingerprint_of(folder))
    return folder


def write_tokenizer(workload: Workload, tokenization: Tokenization, part: Path) -> None:
    """Write a tokenizer and its chat template to the folder of an exported model, as `transformers` stores them.

    The template and the special tokens in it are always those of the data; other settings are those of the checkpoint
    that the run started from, where the tokenizer is the same.

    Raises:
        DiskFullError: no space left.
    """
    origin = checkpoint_folder(workload.model.hf) if workload.model.hf is not None else None
    with naming_full_disk(part):
        theirs = None if origin is None else origin / TOKENIZER
        if origin and theirs and theirs.is_file() and theirs.read_bytes() == tokenization.tokenizer_json:
            for name in _SETTINGS:
                if (origin / name).is_file():
                    shutil.copyfile(origin / name, part / name)
        if not (part / TOKENIZER_CONFIG).exists():
            loaded = tokenization.tokenizer
            end = end_of_text(loaded)
            special = {} if end is None else {"eos_token": loaded.id_to_token(end)}
            length = workload.data.sequence_length
            PreTrainedTokenizerFast(tokenizer_object=loaded, model_max_length=length, **special).save_pretrained(part)
        write_atomic(part / TOKENIZER, tokenization.tokenizer_json)
        if (style := tokenization.chat) is not None:
            if workload.trains_reward:
                padding = tokenization.tokenizer.id_to_token(tokenization.padding)
                style = replace(style, tokens=style.tokens | {"pad_token": str(padding)})
            write_atomic(part / TEMPLATE, style.template)
            _name_special_tokens(part / TOKENIZER_CONFIG, style)
            (part / TOKENS_MAP).unlink(missing_ok=True)  # its tokens would count before them


def _name_special_tokens(file: Path, style: ChatStyle) -> None:
    """Let the settings of a tokenizer name the special tokens of a template, so that it renders it as the run did."""
    settings = json.loads(file.read_bytes())
    named = special_tokens(settings)
    settings |= {name: token for name, token in style.tokens.items() if named.get(name, "") != token}
    settings |= {name: None for name in named if name not in style.tokens and name in style.template}
    write_atomic(file, json.dumps(settings, indent=2) + "\n")


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
