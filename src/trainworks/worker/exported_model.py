"""`python -m trainworks.worker.exported_model check|onnx REQUEST_JSON PARENT_PID`: an exported folder, opened again.

`transformers` loads it, not the code that trained it. `check` computes the loss on the held-out samples of the run, and
`onnx` writes the model as a graph whose logits in onnxruntime are those of `transformers`.
"""

from __future__ import annotations

import shutil
import sys
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any, TypedDict

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from transformers import AutoModelForCausalLM, PreTrainedModel
from transformers.utils import logging

from trainworks.config.run_file import Workload
from trainworks.errors import EnvironmentProblem
from trainworks.files import fsync_folder, naming_full_disk
from trainworks.host.folders import cache_folder
from trainworks.record.manifest import read_manifest
from trainworks.record.run_dir import RunDir
from trainworks.worker.data.command import answer
from trainworks.worker.data.opening import open_dataset
from trainworks.worker.data.preparation import prepare_evaluation
from trainworks.worker.data.reader import BatchReader
from trainworks.worker.evaluation import SEED
from trainworks.worker.export import data_folder
from trainworks.worker.export_files import flush, report
from trainworks.worker.loss import IGNORED

_AUTOCAST = {"bf16": torch.bfloat16, "fp16": torch.float16}
_MOST_ERROR = 1e-4
"""Largest difference of a logit in fp32 between two programs, over the largest logit."""


class HeldOutLoss(TypedDict):
    """Mean loss of the exported model, and over how many samples and tokens."""

    loss: float
    samples: int
    tokens: int


def main(action: str, request_json: str, parent: str) -> int:
    """Answer the request; returns the exit code."""
    logging.disable_progress_bar()

    def work(asked: Any) -> Any:
        folder = Path(asked["folder"])
        if action == "onnx":
            return write_onnx(folder)
        return held_out_loss(RunDir(Path(asked["run"])), asked["step"], folder, asked["samples"])

    return answer(request_json, parent, work)


def held_out_loss(run_dir: RunDir, step: int, folder: Path, num_samples: int) -> HeldOutLoss:
    """Mean loss of the model in `folder` on the first `num_samples` samples of the run's evaluation.

        loss = sum_i l_i / n        over the n labels that count

    The arithmetic is that of the run: bf16 and fp16 by autocast, all others in fp32.

    Raises:
        EnvironmentProblem: the folder or the data cannot be read.
    """
    resolved = run_dir.read_resolved()
    workload, manifest = resolved.run_file.workload, read_manifest(run_dir.checkpoint(step))
    assert workload is not None and resolved.plan is not None and manifest is not None
    data = data_folder(run_dir, workload, manifest)
    assert workload.eval is not None
    folders = prepare_evaluation(workload.data, workload.eval, data, cache_folder("data"))
    held_out = folders[workload.eval.deciding_set(folders)]
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model = _opened(folder).to(device)
    batch = workload.global_batch
    count = -(-num_samples // batch)
    dataset = open_dataset(held_out, workload.data, augment=False)
    reader = BatchReader(
        dataset,
        seed=SEED,
        global_batch=batch,
        micro_batch=resolved.plan.layout.micro_batch,
        dp_rank=0,
        dp=1,
        first_step=0,
        last_step=count,
    )
    total, tokens = torch.zeros((), dtype=torch.float64), 0
    try:
        for number in range(count):
            arrays, samples = reader.next_batch(), reader.samples(number)
            for micro, names in enumerate(samples):
                piece = {name: values[micro].to(device) for name, values in arrays.items()}
                real = torch.from_numpy(names < num_samples)
                loss, counted = _loss(model, {name: values[real] for name, values in piece.items()}, workload)
                total, tokens = total + loss, tokens + counted
            report(number + 1, count)
    finally:
        reader.close()
    return HeldOutLoss(loss=total.item() / max(1, tokens), samples=num_samples, tokens=tokens)


def _opened(folder: Path) -> PreTrainedModel:
    try:
        return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    except (OSError, ValueError, ImportError) as error:
        raise EnvironmentProblem(
            f"transformers cannot open `{folder}`: {str(error).splitlines()[0]}",
            hint="an adapter needs `pip install peft` and the checkpoint that it was trained on",
        ) from None


@torch.no_grad()
def _loss(model: nn.Module, arrays: dict[str, Tensor], workload: Workload) -> tuple[Tensor, int]:
    """Sum of the losses of a micro-batch, and the labels that count."""
    if "tokens" in arrays:
        x, labels = arrays["tokens"][:, :-1], arrays["tokens"][:, 1:]
    else:
        x, labels = arrays["x"], arrays["labels"]
    counted = int((labels != IGNORED).sum())
    if not counted:
        return torch.zeros(()), 0
    places = {"position_ids": arrays["positions"]} if "positions" in arrays else {}
    dtype = _AUTOCAST.get(workload.precision)
    with torch.autocast(x.device.type, dtype=dtype or torch.bfloat16, enabled=dtype is not None):
        logits = model(input_ids=x, use_cache=False, **places).logits
    losses = cross_entropy(logits.flatten(0, 1).float(), labels.flatten(), ignore_index=IGNORED, reduction="sum")
    return losses.double().cpu(), counted


class _Logits(nn.Module):
    """Tokens to logits, as a graph has them."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, input_ids: Tensor) -> Tensor:
        logits: Tensor = self.model(input_ids=input_ids, use_cache=False).logits
        return logits


@torch.no_grad()
def write_onnx(folder: Path) -> dict[str, object]:
    """Write `onnx/model.onnx` in fp32 into an exported folder, complete or absent; returns the largest difference.

    The graph takes `input_ids` [batch, sequence] of any size and gives `logits`; it has no cache of keys and values.

    Raises:
        EnvironmentProblem: torch cannot write the model, or its logits differ from those of transformers.
    """
    import onnxruntime  # noqa: PLC0415  # an extra

    model = _opened(folder)
    num_tokens = model.get_input_embeddings().num_embeddings
    tokens = torch.randint(0, num_tokens, (2, 12), generator=torch.Generator().manual_seed(1))
    part = folder / ".onnx.part"
    shutil.rmtree(part, ignore_errors=True)
    sizes = {"input_ids": {0: torch.export.Dim("batch"), 1: torch.export.Dim("sequence", min=2)}}
    try:
        with redirect_stdout(sys.stderr), naming_full_disk(part):
            part.mkdir()
            program = torch.onnx.export(
                _Logits(model).eval(),
                (tokens,),
                input_names=["input_ids"],
                output_names=["logits"],
                dynamic_shapes=sizes,
                dynamo=True,
                verbose=False,
            )
            assert program is not None
            program.save(str(part / "model.onnx"))
        session = onnxruntime.InferenceSession(str(part / "model.onnx"), providers=["CPUExecutionProvider"])
        error = max(_difference(session, model, tokens[:rows, :length]) for rows, length in ((2, 12), (1, 7)))
        if not error <= _MOST_ERROR:
            raise EnvironmentProblem(f"onnxruntime has other logits than transformers, by {error:.1e} of the largest")
        for file in part.iterdir():
            flush(file)
        fsync_folder(part)
        part.rename(folder / "onnx")
        fsync_folder(folder)
    except torch.onnx.OnnxExporterError as failure:
        cause: BaseException = failure
        while cause.__cause__ is not None:
            cause = cause.__cause__
        raise EnvironmentProblem(
            f"torch cannot write this model as ONNX: {str(cause).strip().splitlines()[0]}",
            hint="leave out `--onnx`; the other files are complete",
        ) from None
    finally:
        shutil.rmtree(part, ignore_errors=True)
    return {"difference": error}


def _difference(session: Any, model: nn.Module, tokens: Tensor) -> float:
    theirs = torch.from_numpy(session.run(None, {"input_ids": tokens.numpy()})[0])
    ours: Tensor = model(input_ids=tokens, use_cache=False).logits
    largest = ours.abs().max()
    return ((theirs - ours).abs().max() / largest).item()


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
