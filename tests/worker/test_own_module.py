"""A Python file of one's own: trained in every layout that needs no surgery, resumed, and blamed by line."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from tests.lanes import cases
from tests.worker.harness import TinyRun, events
from trainworks.config.load import parse_run_file
from trainworks.errors import LayoutError, UsageError
from trainworks.host.probe import probe_host
from trainworks.plan.run.plan import make_measured_plan, measured_layouts
from trainworks.plan.run.processes import choose_processes
from trainworks.record.exit_code import ExitCode
from trainworks.record.resolved import ResolvedRun
from trainworks.record.runs_folder import create_run_dir
from trainworks.record.step_time import StepTimeGroups
from trainworks.record.trial import Trial
from trainworks.worker.data.card import DataFolders
from trainworks.worker.export import export
from trainworks.worker.tasks.user_module import load_user_module

MODULE = """
import torch
from torch import nn
from torch.utils.data import TensorDataset

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.enter = nn.Linear(6, 16)
        self.layers = nn.ModuleList(nn.Linear(16, 16) for _ in range(3))
        self.leave = nn.Linear(16, 1)

    def forward(self, x, y):
        x = self.enter(x)
        for layer in self.layers:
            x = x + torch.tanh(layer(x)) NOISE
        return nn.functional.mse_loss(self.leave(x).squeeze(-1), y)

def build_model():
    return Net()

def build_dataset():
    x = torch.randn(60, 6, generator=torch.Generator().manual_seed(1))
    return TensorDataset(x, torch.sin(x.sum(1)))
"""
SGD = """
def build_optimizer(parameters):
    return torch.optim.SGD(parameters, lr=0.05, momentum=0.9)
"""
TAGGER = """
import torch
from torch import nn

class Answers:
    # 60 sequences of 12 tokens, of which 1 to 12 are an answer.
    def __init__(self):
        draw = torch.Generator().manual_seed(1)
        self.tokens = torch.randint(0, 20, (60, 12), generator=draw)
        self.answers = torch.randint(1, 13, (60,), generator=draw)

    def __len__(self):
        return 60

    def __getitem__(self, index):
        labels = (self.tokens[index] * 7 + index) % 5
        labels[: 12 - self.answers[index]] = -100
        return {"tokens": self.tokens[index], "LABELS": labels}

class Tagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(20, 16)
        self.layers = nn.ModuleList(nn.Linear(16, 16) for _ in range(2))
        self.leave = nn.Linear(16, 5)

    def forward(self, tokens, LABELS):
        x = self.embed(tokens)
        for layer in self.layers:
            x = x + torch.tanh(layer(x))
        return nn.functional.cross_entropy(self.leave(x).flatten(0, 1), LABELS.flatten())

def build_model():
    return Tagger()

def build_dataset():
    return Answers()
"""
COUNTED = """
def num_items_in_batch(batch):
    return COUNT
"""
TAGGERS = {
    "labels": TAGGER.replace("LABELS", "labels"),
    "counted by the file": TAGGER.replace("LABELS", "y") + COUNTED.replace("COUNT", '(batch["y"] != -100).sum()'),
}
TRIAL = Trial(
    num_parameters=1,
    num_samples=60,
    flops_per_sample=0,
    step_time=StepTimeGroups(compute_s=0.01, communication_s=0, optimizer_s=0, data_s=0),
    baseline_bytes=1,
    weights_bytes=1,
    gradients_bytes=1,
    optimizer_bytes=1,
    peak_bytes=10,
    checkpoint_bytes=1,
    own_optimizer=False,
    seconds=1,
)


def own_run(folder: Path, text: str, layout: str, ranks: int, evaluation: str = "null") -> TinyRun:
    """A run of 24 steps of a module, 12 samples each."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "own.py").write_text(text, encoding="utf-8")
    workload = (
        f"{{task: module, model: {{module: {folder / 'own.py'}}}, precision: fp32, global_batch: 12, "
        f"train_for: 24 steps, optimizer: {{lr: 0.01, eps: 1e-5, warmup: 4 steps}}, eval: {evaluation}}}"
    )
    run_file, _ = parse_run_file(
        f"name: own\nworkload: {workload}\ncluster: {{processes_per_node: {ranks}}}\nlayout: {layout}\n"
        "checkpoint: {every: 8 steps}\n",
        name="own.yaml",
    )
    assert run_file.workload is not None
    processes = choose_processes(run_file, num_cores=1, num_accelerators=0)
    chosen = next(measured_layouts(run_file.workload, run_file.layout, world_size=ranks))
    plan = make_measured_plan(run_file, chosen, processes, TRIAL).model_copy(update={"log_every_steps": 3})
    run_dir = create_run_dir(folder / "runs", "own")
    run_dir.write_resolved(
        ResolvedRun(
            run_id=run_dir.run_id,
            created_at=time.time(),
            trainworks="test",
            run_file=run_file,
            working_folder=str(folder),
            processes=processes,
            host=probe_host(folder),
            plan=plan,
        )
    )
    return TinyRun(run_dir, DataFolders(run_dir.path), ranks)


@pytest.fixture(scope="module")
def one_process(tmp_path_factory) -> dict[str, list[tuple[float, float]]]:
    """Curves of one process, with AdamW and with an optimizer of the file."""
    curves = {}
    for name, text in {"adamw": MODULE, "own": MODULE + SGD}.items():
        run = own_run(tmp_path_factory.mktemp("one"), text.replace("NOISE", ""), "{micro_batch: 12}", 1)
        assert run.train() == [0], run.run_dir.rank_log(0).read_text()
        curves[name] = run.curve()
    return curves


LAYOUTS = {
    "replicas": ("{dp_replicate: 2, micro_batch: 3}", 2),
    "shards": ("{dp_shard: 2, zero: 3}", 2),
    "three-shards": ("{dp_shard: 3, zero: 1, micro_batch: 2}", 3),
    "replicas-of-shards": ("{dp_replicate: 2, dp_shard: 2, zero: 2, micro_batch: 1, recompute: full}", 4),
}


@pytest.mark.parametrize(
    "case",
    cases(
        [(optimizer, name) for optimizer in ("adamw", "own") for name in LAYOUTS],
        at_night=[("own", "three-shards"), ("own", "replicas-of-shards")],
    ),
    ids="-".join,
)
def test_a_module_learns_the_same_in_every_layout(tmp_path, one_process, case):
    optimizer, (layout, ranks) = case[0], LAYOUTS[case[1]]
    text = MODULE.replace("NOISE", "") + (SGD if optimizer == "own" else "")
    run = own_run(tmp_path, text, layout, ranks)
    assert run.train() == [0] * ranks, run.run_dir.rank_log(0).read_text()
    assert [loss for loss, _ in run.curve()] == pytest.approx([loss for loss, _ in one_process[optimizer]], rel=1e-4)


@pytest.fixture(scope="module")
def answers(tmp_path_factory) -> list[float]:
    """Losses over unequal answers, of one process that never has more than one micro-batch."""
    run = own_run(tmp_path_factory.mktemp("answers"), TAGGER.replace("LABELS", "y"), "{micro_batch: 12}", 1)
    assert run.train() == [0], run.run_dir.rank_log(0).read_text()
    return [loss for loss, _ in run.curve()]


@pytest.mark.parametrize("counted", TAGGERS)
@pytest.mark.parametrize(
    ("layout", "ranks"),
    [("{micro_batch: 1}", 1), ("{dp_replicate: 2, micro_batch: 2}", 2), ("{dp_shard: 2, micro_batch: 1}", 2)],
)
def test_unequal_answers_are_averaged_over_all_their_tokens(tmp_path, answers, layout, ranks, counted):
    run = own_run(tmp_path, TAGGERS[counted], layout, ranks)
    assert run.train() == [0] * ranks, run.run_dir.rank_log(0).read_text()
    assert [loss for loss, _ in run.curve()] == pytest.approx(answers, rel=1e-4)


def test_a_file_that_counts_samples_averages_the_means_of_its_micro_batches(tmp_path, answers):
    text = TAGGERS["labels"] + COUNTED.replace("COUNT", "len(batch['labels'])")
    run = own_run(tmp_path, text, "{micro_batch: 1}", 1)
    run.train()
    assert [loss for loss, _ in run.curve()] != pytest.approx(answers, rel=1e-3)


@pytest.mark.parametrize(
    ("count", "what"), [("1.5", "float"), ("torch.ones(2)", r"torch.float32 of shape \(2,\)"), ("None", "NoneType")]
)
def test_a_count_that_is_no_whole_number_is_refused_with_its_line(tmp_path, count, what):
    run = own_run(tmp_path, TAGGERS["labels"] + COUNTED.replace("COUNT", count), "{micro_batch: 12}", 1)
    run.train()
    message = events(run, "failure")[-1]["message"]
    assert re.match(rf"{tmp_path / 'own.py'}:\d+: `num_items_in_batch` returned {what}, not one whole number", message)


@pytest.mark.parametrize("layout", cases(["{dp_shard: 2}", "{dp_replicate: 2}"], at_night=["{dp_replicate: 2}"]))
def test_a_module_that_draws_random_numbers_resumes_bit_identically(tmp_path, layout):
    text = MODULE.replace("NOISE", "+ 0.1 * torch.randn_like(x)") + SGD
    whole = own_run(tmp_path / "whole", text, layout, 2)
    assert whole.train() == [0, 0]
    hurt = own_run(tmp_path / "hurt", text, layout, 2)
    hurt.train(until=hurt.a_checkpoint_is_complete)
    assert hurt.train() == [0, 0]
    assert events(hurt, "attempt")[-1]["resumed_from_step"] > 0
    assert hurt.curve() == whole.curve()


def test_a_checkpoint_of_replicas_goes_on_as_shards(tmp_path, one_process):
    text = MODULE.replace("NOISE", "")
    run = own_run(tmp_path, text, "{dp_replicate: 2}", 2)
    run.train(until=run.a_checkpoint_is_complete)
    other = own_run(tmp_path / "other", text, "{dp_shard: 3}", 3)
    resolved = other.run_dir.read_resolved()
    run.run_dir.write_resolved(resolved.model_copy(update={"run_id": run.run_dir.run_id}))
    run.world_size = 3
    assert run.train() == [0, 0, 0]
    assert [loss for loss, _ in run.curve()] == pytest.approx([loss for loss, _ in one_process["adamw"]], rel=1e-4)


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
@pytest.mark.parametrize("layout", ["{dp_replicate: 2}", "{dp_shard: 2}"])
def test_a_module_is_exported_as_a_state_dict_under_its_own_names(tmp_path, layout):
    text = MODULE.replace("NOISE", "").replace(
        "self.leave =", 'self.register_buffer("seen", torch.arange(3))\n        self.leave ='
    )
    run = own_run(tmp_path, text, layout, 2)
    assert run.train() == [0, 0]
    facts = export(run.run_dir, 24, tmp_path / "model", dtype="bf16", file_bytes=600)
    files = sorted((tmp_path / "model").glob("*.safetensors"))
    state = {name: tensor for file in files for name, tensor in load_file(file).items()}
    model = load_user_module(tmp_path / "own.py").build_model()
    assert model.load_state_dict(state).missing_keys == []
    assert state["seen"].tolist() == [0, 1, 2]
    assert {tensor.dtype for name, tensor in state.items() if name != "seen"} == {torch.bfloat16}
    assert (facts["tensors"], facts["files"]) == (len(state), len(files))
    index = json.loads((tmp_path / "model" / "model.safetensors.index.json").read_text())
    assert index["weight_map"].keys() == state.keys()


def test_an_error_in_forward_is_told_with_file_and_line(tmp_path):
    run = own_run(tmp_path, MODULE.replace(" NOISE", ".nonsense"), "{micro_batch: 12}", 1)
    run.train()
    message = events(run, "failure")[-1]["message"]
    assert message.startswith(f"{tmp_path / 'own.py'}:16: AttributeError")


def test_a_forward_that_returns_no_loss_is_refused(tmp_path):
    run = own_run(tmp_path, MODULE.replace("NOISE", "").replace("return nn.functional.mse_loss", "return "), "auto", 1)
    run.train()
    assert "the model returned tuple, not its loss" in events(run, "failure")[-1]["message"]


@pytest.mark.parametrize(
    ("text", "message", "line"),
    [
        ("import nowhere", "ModuleNotFoundError: No module named 'nowhere'", 1),
        ("def build_model(:", "SyntaxError: invalid syntax", 1),
        ("def build_model(): ...", "`own.py` has no function `build_dataset`", 1),
        ("x = 1\n\nx / 0", "ZeroDivisionError: division by zero", 3),
    ],
)
def test_a_file_that_cannot_be_executed_is_refused_with_its_line(tmp_path, text, message, line):
    file = tmp_path / "own.py"
    file.write_text(text, encoding="utf-8")
    with pytest.raises(UsageError) as refused:
        load_user_module(file)
    assert (refused.value.message, refused.value.place) == (message, f"{file}:{line}")


def test_layouts_that_cut_layers_are_refused(tmp_path):
    with pytest.raises(LayoutError, match=r"tp \(2\) cuts the layers"):
        own_run(tmp_path, MODULE, "{tp: 2}", 2)


def test_the_run_file_of_a_module_has_no_data(tmp_path):
    text = "name: a\nworkload: {task: module, model: {module: a.py}, data: {source: x, sequence_length: 8}, "
    with pytest.raises(UsageError, match="the module builds its own dataset"):
        parse_run_file(text + "global_batch: 1, train_for: 1 steps}\n", name="a.yaml")


def test_an_optimizer_that_needs_whole_parameters_is_refused_under_shards(tmp_path):
    text = MODULE.replace("NOISE", "") + "\ndef build_optimizer(p):\n    return torch.optim.Adafactor(p, lr=0.01)\n"
    run = own_run(tmp_path, text, "{dp_shard: 2}", 2)
    run.train()
    assert "keeps `row_var`" in json.dumps(events(run, "failure"))


HELD_OUT = """
def build_eval_dataset():
    near, far = (torch.randn(n, 6, generator=torch.Generator().manual_seed(n)) for n in (24, 36))
    return {"near": TensorDataset(near, torch.sin(near.sum(1))), "far": TensorDataset(far, far.sum(1))}

def measure(model, batch):
    x, y = batch
    return {"again": (model(x, y), 1), "samples-seen": float(len(y))}
"""


@pytest.mark.parametrize(("layout", "ranks"), [("{dp_shard: 2, zero: 3}", 2), ("{dp_replicate: 1}", 1)])
def test_a_module_has_held_out_sets_by_name_and_a_metric_of_model_and_batch(
    tmp_path: Path, layout: str, ranks: int
) -> None:
    text = MODULE.replace("NOISE", "") + HELD_OUT
    evaluation = "{every: 12 steps, steps: all, metric_of: far, metrics: [own:measure]}"
    run = own_run(tmp_path / "own", text, layout, ranks, evaluation)
    assert run.train() == [0] * ranks
    found = [row["evaluation"] for row in run.rows() if "evaluation" in row]
    assert len(found) == 2
    for result in found:
        figures = result["figures"]
        assert result["loss"] == figures["far/loss"]
        assert [figures[f"{name}/again"] for name in ("near", "far")] == pytest.approx(
            [figures[f"{name}/loss"] for name in ("near", "far")]
        )
        assert figures["near/samples-seen"] == 12 / ranks

    wrong = own_run(tmp_path / "wrong", text, "{dp_replicate: 1}", 1, evaluation.replace("far", "fa"))
    assert wrong.train() == [ExitCode.USER_ERROR]
    (failure,) = events(wrong, "failure")
    assert "returns no set `fa`" in failure["message"] and failure["hint"] == "did you mean `far`?"
