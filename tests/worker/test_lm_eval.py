"""An exported checkpoint is a model that lm-evaluation-harness opens and scores."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch.nn.functional import log_softmax
from transformers import AutoModelForCausalLM, AutoTokenizer

from trainworks.record.events.log import append_event
from trainworks.worker.export import export

PYTHON = os.environ.get("TRAINWORKS_TEST_LM_EVAL", "")
EXAMPLES = Path(__file__).parents[2] / "examples"
pytestmark = [
    pytest.mark.filterwarnings("ignore:torch.distributed is disabled"),
    pytest.mark.skipif(
        not PYTHON,
        reason="NOT TESTED: lm-evaluation-harness; set TRAINWORKS_TEST_LM_EVAL to a Python that has lm_eval",
    ),
]


def module(file: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(file.stem, file)
    assert spec is not None and spec.loader is not None
    loaded = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loaded)
    return loaded


@torch.no_grad()
def by_hand(folder: Path, questions: Path) -> float:
    """Share of the questions whose right answer has the higher log-probability."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    right = []
    for line in questions.read_text().splitlines():
        question = json.loads(line)
        scores = []
        before = tokenizer(question["question"])["input_ids"]
        for choice in question["choices"]:
            tokens = torch.tensor(tokenizer(f"{question['question']} {choice}")["input_ids"])
            log_p = log_softmax(model(input_ids=tokens[None]).logits[0, :-1], -1)
            at = torch.arange(len(before) - 1, len(tokens) - 1)
            scores.append(log_p[at, tokens[len(before) :]].sum().item())
        right.append(scores[0] > scores[1])
    return sum(right) / len(right)


def test_its_accuracy_is_that_of_transformers_by_hand(new_run: Any, tmp_path: Path) -> None:
    module(EXAMPLES / "finetune" / "make_data.py").main(tmp_path)
    module(EXAMPLES / "evaluate" / "make_questions.py").main(tmp_path, count=30)
    shutil.copytree(EXAMPLES / "evaluate" / "tasks", tmp_path / "tasks")
    data = {"source": str(tmp_path / "texts"), "sequence_length": 32, "vocabulary": 300}
    run = new_run(workload__data=data, workload__train_for="60 steps")
    assert run.train() == [0, 0]
    append_event(run.run_dir.events_file, {"kind": "data_ready", "folder": str(run.data_folder)})
    export(run.run_dir, 60, tmp_path / "model", dtype="fp32")
    command = [PYTHON, "-m", "lm_eval", "run", "--model", "hf", "--model_args", "pretrained=model,dtype=float32"]
    command += ["--tasks", "sums", "--include_path", "tasks", "--device", "cpu", "--output_path", "scores"]
    offline = {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "HF_HOME": str(tmp_path / "hub")}
    done = subprocess.run(command, cwd=tmp_path, env=os.environ | offline, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    (found,) = (tmp_path / "scores").rglob("results_*.json")
    accuracy = json.loads(found.read_text())["results"]["sums"]["acc,none"]
    assert accuracy == pytest.approx(by_hand(tmp_path / "model", tmp_path / "questions.jsonl"))
