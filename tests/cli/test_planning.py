"""What can be planned for a cluster and not be trained on this machine is refused, before anything is measured."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import trainworks
from tests.program import trainworks_program
from trainworks.api.anchor import anchor
from trainworks.api.launching import workload_plan
from trainworks.api.launching.resolve import resolve
from trainworks.api.plan import plan
from trainworks.config.load import parse_run_file
from trainworks.errors import UsageError
from trainworks.measure.model_config import model_shape
from trainworks.record.calibration import CalibrationRequest

RUN = """\
name: demo
workload:
  task: causal-lm
  model: {layers: 2, hidden: 64, heads: 4}
  data: {source: python-stdlib, sequence_length: 64}
  precision: bf16
  global_batch: 8
  train_for: 3 steps
cluster: local
"""
EDITS = [
    ("cluster: local", "cluster: 4x p4d.24xlarge"),
    ("cluster: local", "cluster: {of: 64x H100, usd_per_accelerator_hour: 2}"),
    ("layers: 2, hidden: 64, heads: 4", "preset: qwen3-0.6b"),
    ("precision: bf16", "precision: fp8"),
    ("precision: bf16", "precision: tf32"),
    ("source: python-stdlib, ", ""),
    ("task: causal-lm", "task: masked-lm"),
]


def refusal(text: str, folder: Path) -> UsageError:
    """The error of a run that this version cannot do here."""
    run_file, source = parse_run_file(text, name="run.yaml")
    with pytest.raises(UsageError) as refused:
        resolve(run_file, source, run_id="demo", runs=folder)
    return refused.value


def test_the_baseline_is_measured_with_the_modules_that_ranks_import(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A rank that loads a model of `transformers` keeps 70 MB of it."""
    config = {"model_type": "llama", "num_hidden_layers": 2, "hidden_size": 64, "intermediate_size": 128}
    config |= {"num_attention_heads": 4, "vocab_size": 300, "max_position_embeddings": 64}
    (tmp_path / "config.json").write_text(json.dumps(config))
    measured: list[CalibrationRequest] = []

    def calibrate(request: CalibrationRequest, *_: object, **__: object) -> None:
        measured.append(request)
        raise UsageError("measured")

    monkeypatch.setattr(workload_plan, "calibrate", calibrate)
    for model in ("{layers: 2, hidden: 64, heads: 4}", f"{{hf: {tmp_path}}}"):
        text = RUN.replace("{layers: 2, hidden: 64, heads: 4}", model).replace("bf16", "fp32")
        assert refusal(text, tmp_path).message == "measured"
    assert ["transformers.modeling_utils" in request.modules for request in measured] == [False, True]


def test_only_a_model_that_is_planned_by_formulas_may_continue_on_fewer_nodes(tmp_path: Path) -> None:
    text = RUN.replace("causal-lm", "masked-lm").replace("cluster: local", "cluster: {nodes: 2}\njob: {min_nodes: 1}")
    assert "is measured, not planned, for its 2 node(s)" in refusal(text, tmp_path).message


def test_what_cannot_be_trained_here_is_refused_with_its_place(tmp_path: Path, golden) -> None:
    blocks = []
    for before, after in EDITS:
        assert RUN.count(before) == 1
        error = refusal(RUN.replace(before, after), tmp_path)
        blocks.append(f"# {before!a} -> {after!a}\n\n{error.render()}\n")
    golden("cannot_be_trained.txt", f"{RUN}\n" + "\n\n".join(blocks))


@pytest.mark.parametrize(
    ("block", "message"),
    [
        ("MaxText 2025", "`software.framework` is MaxText 2025, and Trainworks trains a workload itself"),
        ("{compiled: true}", "`software.compiled` is true, and the worker's false"),
        ("{attention: flash-3}", "`software.attention` is flash-3, and the worker's flash-2"),
        ("{fp8_recipe: rowwise}", "`software.fp8_recipe` is rowwise, and the worker's tensorwise"),
    ],
)
def test_software_that_the_worker_is_not_is_refused_when_it_runs_and_planned_elsewhere(
    tmp_path: Path, block: str, message: str
) -> None:
    text = f"{RUN}software: {block}\n"
    error = refusal(text, tmp_path)
    assert error.message == message
    assert (error.place or "").startswith(f"run.yaml:{text.count(chr(10))}")
    run_file, _ = parse_run_file(text, name="run.yaml")
    assert plan(run_file, on="8x A100").best


def test_software_that_the_worker_is_runs() -> None:
    own = "{framework: Trainworks, compiled: false, attention: flash-2, fp8_recipe: tensorwise}"
    run_file, source = parse_run_file(f"{RUN}software: {own}\n", name="run.yaml")
    assert anchor(run_file, source, on_nodes=False).run_file.software == run_file.software


@pytest.mark.parametrize(("before", "after"), EDITS)
def test_a_refused_run_leaves_nothing_behind(tmp_path: Path, before: str, after: str) -> None:
    refusal(RUN.replace(before, after), tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("command", ["run", "submit"])
def test_a_described_cluster_is_a_usage_error_of_run_and_submit(tmp_path: Path, command: str) -> None:
    (tmp_path / "run.yaml").write_text(RUN.replace("cluster: local", "cluster: 4x p4d.24xlarge"), encoding="utf-8")
    done = trainworks_program(command, "run.yaml", folder=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("error: cluster `4x p4d.24xlarge` is described")
    assert "--> run.yaml:9  cluster" in done.stderr


def test_a_preset_is_planned_for_this_machine(tmp_path: Path) -> None:
    text = RUN.replace("layers: 2, hidden: 64, heads: 4", "preset: gpt2").replace("source: python-stdlib, ", "")
    run_file, source = parse_run_file(text.replace("bf16", "fp32"), name="run.yaml")
    tiny = model_shape(parse_run_file(RUN, name="tiny.yaml")[0].workload)
    resolved = resolve(run_file, source, run_id="demo", runs=tmp_path, shape=tiny)
    assert resolved.plan is not None
    assert resolved.plan.model == tiny
    assert resolved.plan.step_time.total_s > 0


@pytest.mark.parametrize(
    ("preset", "code", "said"),
    [
        ("llama3.1-405b", 3, "error: the model does not fit: "),
        ("deepseek-v3", 2, "error: cannot plan `deepseek-v3` for this machine: no calibration gives the step time"),
        ("llama3-8bb", 2, "error: unknown model `llama3-8bb`"),
    ],
)
def test_a_preset_that_this_machine_cannot_plan_says_which_figure_is_missing(
    tmp_path: Path, preset: str, code: int, said: str
) -> None:
    text = RUN.replace("layers: 2, hidden: 64, heads: 4", f"preset: {preset}").replace("source: python-stdlib, ", "")
    (tmp_path / "run.yaml").write_text(text.replace("bf16", "fp32"), encoding="utf-8")
    done = trainworks_program("plan", "run.yaml", folder=tmp_path)
    assert done.returncode == code
    assert done.stderr.startswith(said)


def test_a_variable_of_this_shell_is_none_of_a_login_node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOKEN", "s3cret")
    slurm = "cluster: {engine: slurm, slurm: {login: ada@login1}}\nenvs: {TOKEN: null}\n"
    error = refusal(f"name: demo\nrun: python train.py\n{slurm}", tmp_path)
    assert (error.message, error.place) == (
        "`TOKEN` has a value here, and `ada@login1` does not see it",
        "run.yaml:4  envs.TOKEN",
    )


def test_a_command_of_your_own_is_refused_a_described_cluster_too(tmp_path: Path) -> None:
    error = refusal("name: demo\nrun: python train.py\ncluster: 8x H100\n", tmp_path)
    assert error.place == "run.yaml:3  cluster"


@pytest.mark.parametrize(
    ("script", "word"),
    [
        ("srun python train.py", "srun"),
        ("# srun\nhosts=$(scontrol show hostnames)", "scontrol"),
        ("torchrun --nnodes=${SLURM_NNODES} train.py", "$SLURM_NNODES"),
    ],
)
def test_a_batch_script_that_needs_slurm_is_refused_here(tmp_path: Path, script: str, word: str) -> None:
    error = refusal(json.dumps({"name": "demo", "framework": "slurm", "run": script}), tmp_path)
    assert error.message == f"the script needs Slurm: `{word}`, and `cluster` is this machine"
    assert error.place == "run.yaml:1  run"


@pytest.mark.parametrize("script", ["# srun python train.py\npython train.py", "echo no-srun", "python srun.py"])
def test_a_batch_script_that_needs_no_slurm_runs_here(tmp_path: Path, script: str) -> None:
    run_file, source = parse_run_file(
        json.dumps({"name": "demo", "framework": "slurm", "run": script}), name="run.yaml"
    )
    assert resolve(run_file, source, run_id="demo", runs=tmp_path).processes.starts == "once"


def test_a_batch_script_is_a_target_and_says_what_has_no_effect(tmp_path: Path) -> None:
    (tmp_path / "train.sh").write_text("#!/bin/bash\n#SBATCH --output=x.log\nsrun hostname\n")
    done = trainworks_program("submit", "train.sh", "--dry-run", folder=tmp_path)
    assert done.returncode == 0
    assert "note: train.sh:2  --output has no effect" in done.stderr
    assert "#SBATCH --job-name=train\n" in done.stdout


@pytest.mark.parametrize(
    ("nodes", "accelerators", "expected"),
    [(2, "A100:8", {"FI_PROVIDER": "efa"}), (1, "A100:8", {}), (2, None, {"FI_PROVIDER": "efa"})],
)
def test_a_run_records_what_nccl_needs_on_the_cluster_it_describes(
    tmp_path: Path, nodes: int, accelerators: str | None, expected: dict[str, str]
) -> None:
    cluster = {"engine": "slurm", "of": "4x p4d.24xlarge", "nodes": nodes}
    written = {"name": "demo", "run": "true", "cluster": cluster, "resources": {"accelerators": accelerators}}
    run_file, source = parse_run_file(json.dumps(written), name="run.yaml")
    assert resolve(run_file, source, run_id="demo", runs=tmp_path).processes.nccl_environment == expected


def test_a_description_that_names_no_cluster_is_refused_at_its_line(tmp_path: Path) -> None:
    written = {"name": "demo", "run": "true", "cluster": {"engine": "slurm", "of": "4x nonsense"}}
    run_file, source = parse_run_file(json.dumps(written), name="run.yaml")
    with pytest.raises(UsageError) as refused:
        resolve(run_file, source, run_id="demo", runs=tmp_path)
    assert refused.value.place == "run.yaml:1  cluster.of"


@pytest.fixture(scope="module")
def olmo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The folder of a model whose plan table has cuts that the worker does not make; it is asked once."""
    folder = tmp_path_factory.mktemp("olmo")
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
    config = {"model_type": "olmo2", "vocab_size": 64, "max_position_embeddings": 64, "eos_token_id": 0}
    (folder / "config.json").write_text(json.dumps(config | sizes))
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("TRAINWORKS_CACHE", str(folder / "cache"))
        yield folder


@pytest.mark.parametrize(
    ("start", "engine"),
    [
        (plan, "local"),
        (plan, "slurm, of: 2x A100"),
        (trainworks.run, "local"),
        (trainworks.submit, "local"),
        (trainworks.submit, "slurm"),
    ],
)
def test_a_cut_that_the_worker_cannot_make_is_refused_before_anything_starts(
    olmo: Path, tmp_path: Path, start: Callable[..., object], engine: str
) -> None:
    text = RUN.replace("{layers: 2, hidden: 64, heads: 4}", f"{{hf: {olmo}}}").replace("bf16", "fp32")
    text = text.replace("cluster: local", f"cluster: {{engine: {engine}, processes_per_node: 2}}")
    (file := tmp_path / "run.yaml").write_text(f"{text}layout: {{cp: 2}}\n")
    options = {} if start is plan else {"folder": tmp_path / "runs"}
    with pytest.raises(UsageError, match="`olmo2` cannot be cut over cp: the worker trains it as") as refused:
        start(file, **options)
    assert refused.value.place == f"{file}:10  layout.cp"
    assert refused.value.hint == "use `dp_shard` or `tp` or `pp` to spread the model"
    assert not list((tmp_path / "runs").glob("*"))
    assert not (olmo / "cache" / "calibration").exists()


def test_a_cut_of_a_measured_model_is_refused_before_its_data_are_tokenized(
    olmo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def tokenize(*_: object) -> str:
        raise AssertionError("tokenized")

    monkeypatch.setattr(workload_plan, "prepared_folder", tokenize)
    config = json.loads((olmo / "config.json").read_text()) | {"num_experts": 4, "num_experts_per_tok": 2}
    (tmp_path / "config.json").write_text(json.dumps(config | {"model_type": "olmoe"}))
    text = RUN.replace("{layers: 2, hidden: 64, heads: 4}", f"{{hf: {tmp_path}}}").replace("bf16", "fp32")
    text = text.replace("cluster: local", "cluster: {processes_per_node: 2}") + "layout: {tp: 2}\n"
    assert refusal(text, tmp_path).message.startswith("`olmoe` cannot be cut over tp: it has experts")


def test_a_balance_loss_of_a_model_without_experts_is_refused_on_a_single_rank(olmo: Path, tmp_path: Path) -> None:
    model = f"{{hf: {olmo}, balance_loss: 0.1}}"
    text = RUN.replace("{layers: 2, hidden: 64, heads: 4}", model).replace("bf16", "fp32")
    assert "`balance_loss` is for experts" in refusal(text, tmp_path).message
