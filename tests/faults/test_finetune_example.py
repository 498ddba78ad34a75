"""The example of fine-tuning as it is, with fewer steps: from texts to an adapter that `peft` opens."""

from __future__ import annotations

import importlib.util
import math
import re
from pathlib import Path
from types import ModuleType

import pytest
import yaml

from tests.faults.launcher import Program
from trainworks.record.metric_columns import read_columns

pytestmark = [
    pytest.mark.slow,
    pytest.mark.lane("test-all"),
    pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated"),  # peft reads it
]
ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "finetune"
GUIDE = ROOT / "docs" / "guides" / "fine-tune.md"


def module(name: str) -> ModuleType:
    """A program of the example."""
    spec = importlib.util.spec_from_file_location(f"finetune_{name}", EXAMPLE / f"{name}.py")
    assert spec is not None and spec.loader is not None
    loaded = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loaded)
    return loaded


def test_chats_become_an_adapter_that_lowers_the_loss_on_held_out_answers(program: Program) -> None:
    pytest.importorskip("peft", reason="no peft: pip install peft")
    from peft import PeftModel
    from transformers import AutoModelForCausalLM, AutoTokenizer

    folder = program.folder
    module("make_data").main(folder)
    for name, steps in (("base", "train_for: 4 steps"), ("lora", "train_for: 8 steps")):
        text = (EXAMPLE / f"{name}.yaml").read_text()
        lines = [f"  {steps}" if line.strip().startswith("train_for") else line for line in text.splitlines()]
        (folder / f"{name}.yaml").write_text("\n".join(lines) + "\n")
    for words in (["run", "base.yaml"], ["export", "base-1", "--to", "base-model"], ["run", "lora.yaml"]):
        code, _, stderr = program.run(*words)
        assert code == 0, stderr
    code, _, stderr = program.run("export", "lora-1", "--to", "adapter")
    assert code == 0, stderr
    evaluate = module("evaluate")
    tokenizer = AutoTokenizer.from_pretrained(folder / "adapter")
    base = AutoModelForCausalLM.from_pretrained(folder / "base-model").eval()
    before, count = evaluate.loss_on_answers(base, tokenizer, folder / "held-out.jsonl")
    tuned = PeftModel.from_pretrained(base, folder / "adapter").eval()
    after, _ = evaluate.loss_on_answers(tuned, tokenizer, folder / "held-out.jsonl")
    assert math.isfinite(after) and after < before
    reported = read_columns(program.run_dir.metrics_file).steps()["eval_loss"][-1]
    assert after == pytest.approx(reported, abs=1e-4), "the loss of the run and that of `transformers` and `peft`"
    guide = GUIDE.read_text()
    assert re.findall(r"loss \d\.\d{4} over (\d+) tokens of answers", guide) == [str(count)] * 2


@pytest.mark.lane("test")
def test_the_guide_shows_the_run_file_of_the_example() -> None:
    shown = [yaml.safe_load(block) for block in re.findall(r"```yaml\n(name: .*?)```", GUIDE.read_text(), re.DOTALL)]
    assert shown == [yaml.safe_load((EXAMPLE / "lora.yaml").read_text())]
