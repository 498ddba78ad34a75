"""Step time and memory that the plan of a run on one accelerator predicts, against what the run measures.

Each case is trained by `trainworks run`; calibration, plan and measurement are those of the run's own record. The first
plan is what counts: no earlier run of this machine has taught it. Time is the mean step after the first ten, memory the
peak of the device as nvidia-smi counts it.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from contenders import MODELS, Workspace, random_words, run_file_content

from trainworks.record.metric_columns import read_columns
from trainworks.record.resolved import ResolvedRun
from trainworks.record.run_dir import RunDir
from trainworks.units import format_bytes, format_duration

STEPS = 40
WARM_UP = 10
LONGEST_RUN_S = 150
VOCABULARY = 4096

SMALL = {"architecture": "llama", "layers": 8, "hidden": 512, "heads": 8}
MEDIUM = {"architecture": "llama", "layers": 24, "hidden": 1024, "heads": 16, "kv_heads": 4, "feed_forward": 2816}
GPT2 = {"architecture": "gpt2", "layers": 12, "hidden": 768, "heads": 12, "dropout": 0.1}
MIXTRAL = {"architecture": "mixtral", "layers": 8, "hidden": 1024, "heads": 16, "feed_forward": 2816, "experts": 8}
WINDOW = 1024

CASES: dict[str, dict[str, Any]] = {
    "llama-28m": {"model": SMALL},
    "llama-28m-compiled": {"model": SMALL, "compile": True},
    "llama-28m-fp8": {"model": SMALL, "precision": "fp8"},
    "llama-28m-fp8-compiled": {"model": SMALL, "precision": "fp8", "compile": True},
    "gpt2-88m-dropout": {"model": GPT2},
    "mixtral-600m": {"model": MIXTRAL},
    "llama-300m-gqa": {"model": MEDIUM, "length": 4096, "batch": 2},
    "llama-300m-gqa-packed": {"model": MEDIUM, "length": 4096, "batch": 2, "pack": True},
    "mistral-300m-window": {"hf": {"sliding_window": WINDOW}, "length": 4096, "batch": 2},
    "llama-300m-lora": {"hf": {}, "length": 4096, "batch": 2, "adapter": {"rank": 16}},
    "llama-300m-lora-packed": {"hf": {}, "length": 4096, "batch": 2, "adapter": {"rank": 16}, "pack": True},
    "350m": {"contender": "350m"},
    "1b": {"contender": "1b"},
}
"""Changes to a workload of 8 sequences of 1,024 tokens in bf16; `contender` is a model of trainer_overhead.py."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What was planned and what was measured of one run."""

    name: str
    planned_s: float
    low_s: float
    high_s: float
    """Ends of the 80 % interval."""
    measured_s: float
    planned_bytes: int
    measured_bytes: int
    """With the driver's context, both."""
    tokens_per_s: float
    mfu: float | None
    loss: float

    def row(self) -> str:
        """A line of the table."""
        of_time, of_memory = self.planned_s / self.measured_s - 1, self.planned_bytes / self.measured_bytes - 1
        spread = f"{format_duration(self.low_s)} .. {format_duration(self.high_s)}"
        seconds = f"{format_duration(self.planned_s)} ({spread}) | {format_duration(self.measured_s)} | {of_time:+.0%}"
        memory = f"{format_bytes(self.planned_bytes)} | {format_bytes(self.measured_bytes)} | {of_memory:+.0%}"
        mfu = "" if self.mfu is None else f"{self.mfu:.1%}"
        return f"| {self.name} | {seconds} | {memory} | {self.tokens_per_s:,.0f} | {mfu} | {self.loss:.3f} |"


HEADER = """\
| run | step planned (80 %) | measured | error | memory planned | measured | error | tokens/s | MFU | loss |
|---|---|---|---|---|---|---|---|---|---|"""


def main() -> int:
    """Train the cases, print a row for each; exit code 1 if one failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", default=",".join(CASES), help="comma-separated names")
    parser.add_argument("--folder", type=Path, required=True, help="keeps data, tokenizers and run directories")
    parser.add_argument("--small", action="store_true", help="tiny models in fp32, to try the benchmark without a GPU")
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    workspace, failed = Workspace(options.folder.resolve()), False
    print(HEADER, flush=True)
    for name in options.cases.split(","):
        started = time.perf_counter()
        try:
            print(outcome_of(name, train(name, workspace, small=options.small)).row(), flush=True)
        except (subprocess.SubprocessError, OSError) as error:
            failed = True
            said = getattr(error, "stderr", None) or getattr(error, "output", None) or str(error)
            text = said.decode(errors="replace") if isinstance(said, bytes) else str(said)
            print(f"| {name} | FAILED: {' / '.join(text.strip().splitlines()[-4:])} |", flush=True)
        print(f"{name}: {time.perf_counter() - started:.0f} s in all", file=sys.stderr, flush=True)
    return int(failed)


def train(name: str, workspace: Workspace, *, small: bool) -> Path:
    """One run of the program; its run directory.

    Raises:
        subprocess.SubprocessError: it failed, or took too long.
    """
    content = run_file(name, CASES[name], workspace, small=small)
    path = workspace.folder / f"{name}.yaml"
    path.write_text(json.dumps(content, indent=1))  # JSON is YAML
    runs = workspace.runs / name
    command = [sys.executable, "-m", "trainworks", "run", str(path), "--runs", str(runs)]
    environment = {**os.environ, "TRAINWORKS_CACHE": str(workspace.cache), "XDG_DATA_HOME": str(runs / "data")}
    subprocess.run(
        command, cwd=workspace.folder, env=environment, capture_output=True, check=True, timeout=LONGEST_RUN_S
    )
    return max(runs.glob("*/resolved.json"), key=lambda file: file.stat().st_mtime).parent


def run_file(name: str, case: dict[str, Any], workspace: Workspace, *, small: bool) -> dict[str, Any]:
    """The run file of a case."""
    if contender := case.get("contender"):
        config = MODELS["tiny" if small else contender]
        workspace.text_file(config)
        return {**run_file_content(config, workspace), "name": name}
    length, batch = (case.get("length", 1024), case.get("batch", 8)) if not small else (64, 2)
    workload = {
        "task": "causal-lm",
        "model": _model(case, workspace, small=small),
        "data": {"source": str(documents(workspace)), "vocabulary": VOCABULARY, "sequence_length": length},
        "precision": "fp32" if small else case.get("precision", "bf16"),
        "compile": case.get("compile", False) and not small,
        "global_batch": batch,
        "train_for": f"{STEPS} steps",
        "optimizer": {"lr": 3e-4, "warmup": "5 steps"},
        **({"adapter": case["adapter"]} if "adapter" in case else {}),
    }
    workload["data"] |= {"pack": True} if case.get("pack") else {}
    if "adapter" in case:  # pretrained weights come with their tokenizer
        workload["data"] |= {"tokenizer": str(Path(workload["model"]["hf"]) / "tokenizer.json")}
        del workload["data"]["vocabulary"]
    return {
        "name": name,
        "workload": workload,
        "cluster": {"engine": "local", "processes_per_node": 1},
        "layout": {"micro_batch": batch},
        "checkpoint": {"every": f"{10 * STEPS} steps"},
        "recover": {"max_restarts": 0},
    }


def _model(case: dict[str, Any], workspace: Workspace, *, small: bool) -> dict[str, Any]:
    if "hf" not in case:
        return case["model"] | ({"layers": 2, "hidden": 64, "heads": 4, "feed_forward": 64} if small else {})
    folder = workspace.folder / f"checkpoint-{'window' if case['hf'] else 'plain'}"
    if not folder.exists():
        _write_checkpoint(folder, case["hf"], small=small)
        _write_tokenizer(folder / "tokenizer.json", workspace)
    return {"hf": str(folder), "weights": "pretrained" if "adapter" in case else "random"}


def _write_checkpoint(folder: Path, changes: dict[str, Any], *, small: bool) -> None:
    """Random weights in the layout of `MEDIUM`, as transformers saves them."""
    import torch  # noqa: PLC0415 - seconds that few cases need
    from transformers import LlamaConfig, LlamaForCausalLM, MistralConfig, MistralForCausalLM  # noqa: PLC0415

    torch.manual_seed(0)
    sizes = {
        "vocab_size": VOCABULARY, "hidden_size": 64 if small else 1024, "intermediate_size": 128 if small else 2816,
        "num_hidden_layers": 2 if small else 24, "num_attention_heads": 16, "num_key_value_heads": 4,
        "max_position_embeddings": 4096, "tie_word_embeddings": True,
    }  # fmt: skip
    kinds: tuple[Callable[..., Any], Callable[..., Any]] = (LlamaConfig, LlamaForCausalLM)
    if changes:
        kinds = (MistralConfig, MistralForCausalLM)
    config, model = kinds
    model(config(**sizes, **changes)).to(torch.bfloat16).save_pretrained(folder)


def _write_tokenizer(path: Path, workspace: Workspace) -> None:
    """A byte-pair tokenizer of the documents."""
    from tokenizers import ByteLevelBPETokenizer  # noqa: PLC0415 - needed here alone

    tokenizer = ByteLevelBPETokenizer()
    tokenizer.train([str(documents(workspace))], vocab_size=VOCABULARY, special_tokens=["<|endoftext|>"])
    tokenizer.save(str(path))


def documents(workspace: Workspace) -> Path:
    """JSON lines of random words, some hundred tokens each: short enough to pack."""
    path = workspace.folder / "documents.jsonl"
    if not path.exists():
        lines = random_words(3_000_000, seed=1, num_words=5000).splitlines()
        sizes = np.random.default_rng(1).geometric(1 / 30, size=len(lines) // 40)
        ends = np.cumsum(sizes)
        texts = [" ".join(lines[end - size : end]) for size, end in zip(sizes, ends, strict=True)]
        path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts if text))
    return path


def outcome_of(name: str, folder: Path) -> Outcome:
    """The prediction and the measurement in the record of a finished run."""
    run = ResolvedRun.model_validate_json((folder / "resolved.json").read_bytes())
    plan = run.plan
    assert plan is not None
    recorded = read_columns(RunDir(folder).metrics_file).steps()
    steps = recorded.where(slice(WARM_UP, None))
    step_s = float(np.mean(steps["step_s"] - np.nan_to_num(steps["checkpoint_s"])))
    expected, tokens_per_s = plan.expected, plan.tokens_per_step / step_s
    return Outcome(
        name=name,
        planned_s=plan.step_time.total_s,
        low_s=expected.low_s if expected else float("nan"),
        high_s=expected.high_s if expected else float("nan"),
        measured_s=step_s,
        planned_bytes=plan.memory.total_bytes,
        measured_bytes=int(np.nanmax(recorded["memory_peak_bytes"])),
        tokens_per_s=tokens_per_s,
        mfu=plan.mfu(tokens_per_s),
        loss=float(steps["loss"][-1]),
    )


if __name__ == "__main__":
    sys.exit(main())
