"""From the text of a run file to a RunFile, or to errors that each say file, line, field and next step."""

from __future__ import annotations

from pathlib import Path

import pytest

from trainworks.cli.options import read_settings
from trainworks.config.load import LATER, parse_run_file, with_settings
from trainworks.config.run_description import load_tasks
from trainworks.config.run_file import RunFile
from trainworks.config.skypilot_task import NOT_A_JOB
from trainworks.errors import LayoutError, RunFileError, TrainworksError, UsageError

GOOD = """\
name: stdlib-lm
workload:
  task: causal-lm
  model: {architecture: llama, layers: 6, hidden: 256, heads: 8}
  data: {source: python-stdlib, sequence_length: 256}
  global_batch: 32
  train_for: 300 steps
  optimizer:
    lr: 3e-4
    warmup: 20 steps
cluster: local
layout: auto
goal: {deadline: 3h}
checkpoint: {every: auto, keep: 3}
recover: {max_restarts: 3}
"""
EDITS = [
    # keys
    ("name: stdlib-lm", "nmae: stdlib-lm"),
    ("name: stdlib-lm", "name: ../escape"),
    ("name: stdlib-lm", "name: stdlib-lm\nname: again"),
    ("  train_for: 300 steps\n", ""),
    ("global_batch: 32", "global_bach: 32"),
    ("goal: {deadline: 3h}", "gaol: {deadline: 3h}"),
    ("lr: 3e-4", "learning_rate: 3e-4"),
    ("cluster: local", "cluster: {engine: local, node: 2}"),
    ("layout: auto", "layout: {dp_shrad: 2}"),
    # quantities
    ("300 steps", "300"),
    ("300 steps", "300 stpes"),
    ("300 steps", "0 steps"),
    ("300 steps", "1.5 epochs"),
    ("300 steps", "2X tokens"),
    ("deadline: 3h", "deadline: 3"),
    ("deadline: 3h", "deadline: 3 hrs"),
    ("deadline: 3h", "deadline: soon"),
    ("every: auto", "every: sometimes"),
    ("every: auto", "every: 10 minutes"),
    ("every: auto", "every: 0 steps"),
    ("warmup: 20 steps", "warmup: 1 epoch"),
    # values
    ("task: causal-lm", "task: causal-ml"),
    ("architecture: llama", "architecture: lama"),
    ("architecture: llama", "architecture: mamba"),
    ("layers: 6", "layers: six"),
    ("layers: 6", "layers: 0"),
    ("global_batch: 32", "global_batch: 32.5"),
    ("sequence_length: 256", "sequence_length: 1"),
    ("lr: 3e-4", "lr: -1"),
    ("keep: 3", "keep: 1"),
    ("max_restarts: 3", "max_restarts: -1"),
    ("cluster: local", "cluster: {engine: slrum}"),
    ("layout: auto", "layout: {dp_shard: 0}"),
    ("layout: auto", "layout: {micro_batch: some}"),
    ("layout: auto", "layout: fast"),
    ("layout: auto", "layout: {zero: 4}"),
    ("layout: auto", "layout: {recompute: sellective}"),
    ("layout: auto", "layout: {interleave: 0}"),
    ("  global_batch: 32", "  precision: bf61\n  global_batch: 32"),
    ("cluster: local", "cluster: {of: 64x H100, usd_per_accelerator_hour: 0}"),
    (GOOD, "name: task\nrun: echo\nframework: tensor-flow\n"),
    (GOOD, "name: task\nrun: echo\nnum_nodes: 0\n"),
    (GOOD, "name: task\nrun: echo\nresources: {accelerator: A100:8}\n"),
    (GOOD, "name: task\nrun: echo\nresources:\n  accelerators: A100:1.5\n"),
    (GOOD, "name: task\nrun: echo\nresources:\n  accelerators: 8\n"),
    (GOOD, "name: task\nrun: echo\nresources: {memory: lots}\n"),
    (GOOD, "run: echo\nworkdir: {ref: main}\n"),
    ("deadline: 3h", "budget: 2000"),
    ("deadline: 3h", "budget: 2000 EUR"),
    # what does not go together
    ("  model: {architecture: llama, layers: 6, hidden: 256, heads: 8}", "  model: {layers: 6}"),
    ("layers: 6, hidden: 256, heads: 8", "hf: ./gpt2, layers: 6"),
    ("layers: 6, hidden: 256, heads: 8", "preset: llama3-8b, layers: 6"),
    ("heads: 8", "heads: 8, weights: pretrained"),
    ("heads: 8", "heads: 7"),
    ("heads: 8", "heads: 8, kv_heads: 3"),
    ("heads: 8", "heads: 8, dropout: 0.1"),
    ("cluster: local", "run: python train.py"),
    ("cluster: local", "setup: pip install -r requirements.txt"),
    ("cluster: local", "framework: jax"),
    ("cluster: local", "num_nodes: 2"),
    (GOOD, "name: task\nrun: echo\nnum_nodes: 3\ncluster: {nodes: 2}\n"),
    (GOOD, "name: nothing-to-do\n"),
    (GOOD, "name: command\nrun: echo\nlayout: {dp_shard: 2}\n"),
    # not a run file
    ("model: {architecture", "model: {{architecture"),
    ("  task: causal-lm", "\ttask: causal-lm"),
    (GOOD, ""),
    (GOOD, "- a\n- list\n"),
    (GOOD, "just text\n"),
    (GOOD, "name: \x07\n"),
]  # fmt: skip


def refusal(text: str) -> RunFileError:
    """The error of a bad run file."""
    with pytest.raises(RunFileError) as refused:
        parse_run_file(text, name="run.yaml")
    return refused.value


def edited(before: str, after: str) -> str:
    """The good run file with one edit."""
    assert GOOD.count(before) == 1
    return GOOD.replace(before, after)


def test_the_good_run_file_is_good() -> None:
    run_file, _ = parse_run_file(GOOD, name="run.yaml")
    assert run_file.name == "stdlib-lm"


def test_every_mistake_has_its_error(golden) -> None:
    blocks = []
    for before, after in EDITS:
        heading = f"# {ascii(before) if before != GOOD else 'everything'} -> {after!a}"
        blocks.append(f"{heading}\n\n{refusal(edited(before, after)).render()}\n")
    golden("run_file_errors.txt", f"{GOOD}\n" + "\n\n".join(blocks))


def test_all_problems_come_at_once_in_the_order_of_the_file() -> None:
    text = GOOD.replace("layers: 6", "layers: 0").replace("lr: 3e-4", "lr: -1").replace("keep: 3", "keep: 1")
    places = [problem.place for problem in refusal(text).problems]
    assert places == [
        "run.yaml:4  workload.model.layers",
        "run.yaml:9  workload.optimizer.lr",
        "run.yaml:14  checkpoint.keep",
    ]


@pytest.mark.parametrize("line", range(1, 16))
def test_an_unknown_key_is_found_on_its_line(line: int) -> None:
    lines = GOOD.splitlines()
    indent = len(lines[line - 1]) - len(lines[line - 1].lstrip())
    lines.insert(line - 1, " " * indent + "surprise: 1")
    places = [problem.place for problem in refusal("\n".join(lines)).problems]
    assert any(place is not None and place.startswith(f"run.yaml:{line} ") for place in places)


def test_a_duplicate_key_is_refused_on_its_second_line() -> None:
    error = refusal(GOOD + "name: again\n")
    assert (error.message, error.place) == ("invalid YAML: duplicate key `name`", "run.yaml:16")


@pytest.mark.parametrize("mark", ["&again ", ""])
def test_a_duplicate_key_in_a_flow_mapping_is_refused(mark: str) -> None:
    error = refusal(f"name: x\nrun: y\ngoal: {mark}{{deadline: 1h, deadline: 2h}}\n")
    assert "duplicate key `deadline`" in error.message


def test_a_missing_field_points_at_its_parent() -> None:
    error = refusal(GOOD.replace("  train_for: 300 steps\n", ""))
    assert error.place == "run.yaml:2  workload.train_for"


def test_a_layout_that_does_not_fit_is_located_in_the_file() -> None:
    _, source = parse_run_file(GOOD.replace("layout: auto", "layout:\n  dp_shard: 4\n  tp: 8"), name="llama.yaml")
    error = source.locate(LayoutError("the product is 32", field="dp_shard", hint="set `dp_shard: 8`"))
    assert error.render() == "error: the product is 32\n  --> llama.yaml:13  layout.dp_shard\n\nhint: set `dp_shard: 8`"


def test_a_file_that_does_not_exist_names_the_nearest(tmp_path: Path) -> None:
    (tmp_path / "train.yaml").write_text(GOOD)
    with pytest.raises(UsageError) as refused:
        load_tasks(tmp_path / "tran.yaml")[0]
    assert refused.value.hint == f"did you mean `{tmp_path}/train.yaml`?"


def test_a_folder_is_no_run_file_and_the_hint_names_one_in_it(tmp_path: Path) -> None:
    (tmp_path / "train.yaml").write_text(GOOD)
    with pytest.raises(UsageError) as refused:
        load_tasks(tmp_path)[0]
    assert refused.value.message == f"`{tmp_path}` is a folder, not a run file"
    assert refused.value.hint == f"name `{tmp_path}/train.yaml` in it"


def test_a_file_that_is_not_utf_8_is_refused(tmp_path: Path) -> None:
    (tmp_path / "run.yaml").write_bytes(b"name: \xff\n")
    with pytest.raises(UsageError, match=r"run\.yaml`: not text in UTF-8$"):
        load_tasks(tmp_path / "run.yaml")[0]


def test_problems_come_in_the_order_of_a_file_written_in_another_order() -> None:
    error = refusal("recover: {max_restarts: -1}\nsurprise: 1\nname: a b\nrun: 'true'\n")
    assert [problem.place.split()[0] for problem in error.problems] == ["run.yaml:1", "run.yaml:2", "run.yaml:3"]


def test_a_mapping_that_contains_itself_is_refused() -> None:
    assert refusal("name: x\nrun: y\nenvs: &a {b: *a}\n")


def test_a_key_that_is_no_text_is_found_on_its_line() -> None:
    assert refusal("name: x\nrun: y\n1: 2\n").place == "run.yaml:3  1"


@pytest.mark.parametrize("key", sorted(NOT_A_JOB))
def test_a_server_of_skypilot_is_refused_as_what_it_is(key: str) -> None:
    assert refusal(f"setup: pip install vllm\nrun: serve\n{key}: {{replicas: 2}}\n").message == NOT_A_JOB[key][0]


@pytest.mark.parametrize("field", sorted(LATER))
def test_a_key_that_is_not_implemented_yet_is_refused(field: str) -> None:
    parent, _, key = field.rpartition(".")
    lines = ["name: x", "run: make", f"{parent}: {{{key}: 1}}" if parent else f"{key}: 1"]
    with pytest.raises(RunFileError, match=f"`{key}` is not supported yet"):
        parse_run_file("\n".join(lines), name="x.yaml")


def test_a_command_without_a_name_has_that_of_its_file() -> None:
    run_file, _ = parse_run_file("run: make\n", name="tasks/my task.yaml")
    assert run_file.name == "my-task"


def test_numbers_in_envs_are_text() -> None:
    run_file, _ = parse_run_file("run: make\nenvs: {LR: 0.1, STEPS: 300, TOKEN: null}\n", name="x.yaml")
    assert run_file.envs == {"LR": "0.1", "STEPS": "300", "TOKEN": None}


def test_a_window_of_steps_is_no_number_of_base_60() -> None:
    run_file, _ = parse_run_file(GOOD + "profile: 20:25\n", name="run.yaml")
    assert str(run_file.profile) == "20:25"
    command, _ = parse_run_file("run: date\nenvs: {AT: 12:30:15}\n", name="run.yaml")
    assert command.envs == {"AT": "12:30:15"}


@pytest.mark.parametrize(
    ("written", "instead", "why"),
    [
        ("layers: 6", "layers: 100000000", "the deepest published model has 1,000"),
        ("hidden: 256", "hidden: 99999999", "above the limit of 1,000,000"),
        ("heads: 8", "heads: 9999999", "above the limit of 100,000"),
        ("global_batch: 32", "global_batch: 99999999999999999999", "global_batch is 1e+20, above the limit of"),
        ("sequence_length: 256", "sequence_length: 999999999", "the longest published is 10 million tokens"),
        ("300 steps", "1e12 steps", "above the limit of 100,000,000,000"),
        ("300 steps", "99999T tokens", "the longest published runs take 40 trillion"),
        ("cluster: local", "cluster: {engine: local, nodes: 99999999}", "above the limit of 10,000,000"),
        ("layout: auto", "layout: {tp: 99999999}", "the largest announced clusters have one million accelerators"),
        ("layout: auto", "layout: {stage_layers: [99999]}", "stage_layers is 99,999, above the limit"),
    ],
)
def test_a_count_above_its_limit_is_refused_with_the_reason(written: str, instead: str, why: str) -> None:
    with pytest.raises(RunFileError) as raised:
        parse_run_file(GOOD.replace(written, instead), name="run.yaml")
    (problem,) = raised.value.problems
    assert why in problem.message
    assert problem.hint == "check the number of digits"


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("a: " + "[" * 5000, "nested more than 100 levels deep"),
        ("a: " + "{b: " * 5000, "nested more than 100 levels deep"),
        (f"a: {'9' * 5000}", "is not a valid int"),
        ("a: 2001-99-99", "`2001-99-99` is not a valid timestamp"),
        ("a: !!bool maybe", "`maybe` is not a valid bool"),
        ("a: !!int ''", "is not a valid int"),
        (f"a: {'9' * 400}.0", "name"),
    ],
)
def test_yaml_that_cannot_be_read_is_refused_on_its_line(text: str, why: str) -> None:
    with pytest.raises(RunFileError, match=why) as raised:
        parse_run_file(text, name="run.yaml")
    assert str(raised.value.place).startswith("run.yaml:1")


def test_aliases_that_repeat_each_other_without_end_are_refused() -> None:
    levels = [f"a{level}: &a{level} [{', '.join([f'*a{level - 1}'] * 10)}]" for level in range(1, 12)]
    with pytest.raises(RunFileError, match="more than 100,000 fields"):
        parse_run_file("\n".join(["a0: &a0 [1]", *levels]), name="run.yaml")


def test_ranks_from_the_command_line_have_the_limits_of_the_run_file() -> None:
    run_file, _ = parse_run_file(GOOD, name="run.yaml")
    with pytest.raises(UsageError, match="processes_per_node is 5,000, above the limit of 4,096"):
        run_file.with_ranks(None, 5000)


def with_set(*texts: str, text: str = GOOD) -> RunFile:
    return parse_run_file(text, name="run.yaml", settings=read_settings(list(texts)))[0]


@pytest.mark.parametrize(
    ("texts", "same_as"),
    [
        (["optimizer.lr=1e-4"], GOOD.replace("lr: 3e-4", "lr: 1e-4")),
        (["workload.optimizer.lr=1e-4", "optimizer.lr=2e-4"], GOOD.replace("lr: 3e-4", "lr: 2e-4")),
        (["cluster.nodes=4"], GOOD.replace("cluster: local", "cluster: {engine: local, nodes: 4}")),
        (["layout.tp=2"], GOOD.replace("layout: auto", "layout: {tp: 2}")),
        (["goal.deadline=null"], GOOD.replace("goal: {deadline: 3h}", "goal: {}")),
        (["job.team=20:25"], GOOD + "job: {team: 20:25}\n"),
        (["checkpoint={keep: 2}"], GOOD.replace("{every: auto, keep: 3}", "{keep: 2}")),
        (["recover.max_restarts=1", "recover={max_restarts: 2}"], GOOD.replace("max_restarts: 3", "max_restarts: 2")),
    ],
)
def test_a_setting_is_what_the_file_could_have_said(texts: list[str], same_as: str) -> None:
    assert with_set(*texts) == parse_run_file(same_as, name="run.yaml")[0]
    before = parse_run_file(GOOD, name="run.yaml")[0]
    assert with_settings(before, read_settings(texts)) == with_set(*texts), "also of a run file as an object"


def test_a_setting_gives_a_key_that_the_file_lacks() -> None:
    assert with_set("train_for=7 steps", text=GOOD.replace("  train_for: 300 steps\n", "")).workload is not None


def test_a_pattern_with_colons_and_braces_is_quoted_once() -> None:
    run = with_set(r'metrics={pattern: "L=(?P<loss>\\d{1,3})"}', text="name: mine\nrun: python train.py\n")
    assert run.metrics.pattern == r"L=(?P<loss>\d{1,3})"


@pytest.mark.parametrize(
    ("texts", "message", "place", "hint"),
    [
        (["optimzer.lr=1"], "unknown key `optimzer`", "--set optimzer.lr", "did you mean `optimizer.lr`?"),
        (["optimizer.lrr=1"], "unknown key `lrr`", "--set workload.optimizer.lrr", "did you mean `lr`?"),
        (
            ["workload.learning_rate=1"],
            "unknown key `learning_rate`",
            "--set workload.learning_rate",
            "did you mean `workload.optimizer.lr`?",
        ),
        (["tp=2"], "unknown key `tp`", "--set tp", "did you mean `layout.tp`?"),
        (["layout={tp: 0}"], "`tp` must be at least 1, got `0`", "--set layout.tp", None),
        (["name.first=a"], "`name` must be text, got `{'first': 'a'}`", "--set name.first", None),
        (["train_for=null"], "`train_for` is missing", "--set workload.train_for", None),
        (["layout={"], "`{` is not a value of YAML", "--set layout", None),
        (["nonsense"], "`nonsense` is not a setting", "--set", "write it like `--set optimizer.lr=1e-4`"),
        (
            ["callbacks.0=x"],
            "`callbacks` is a list",
            "--set workload.callbacks.0",
            "set the whole list: `--set 'workload.callbacks=[...]'`",
        ),
        (
            ["data.sequence_length=1"],
            "a text task needs `data.sequence_length` of at least 2, and no `image_size` or `frames`",
            "run.yaml:2  workload, --set workload.data.sequence_length",
            None,
        ),
    ],
)
def test_an_error_of_a_setting_has_its_place(texts: list[str], message: str, place: str, hint: str | None) -> None:
    with pytest.raises(TrainworksError) as caught:
        with_set(*texts, text=GOOD.replace("  optimizer:", "  callbacks: [a:B]\n  optimizer:"))
    problem = caught.value.problems[0] if isinstance(caught.value, RunFileError) else caught.value
    assert (problem.message, problem.place, problem.hint) == (message, place, hint)


def test_the_settings_are_for_every_kind_of_file(tmp_path: Path) -> None:
    files = {
        "job.sbatch": "#!/bin/bash\n#SBATCH --nodes=2\nsrun python train.py\n",
        "task.yaml": "num_nodes: 2\nrun: echo hello\n",
        "two.yaml": "name: a\nrun: echo a\n---\nname: b\nrun: echo b\n",
    }
    for name, text in files.items():
        (tmp_path / name).write_text(text)
        tasks = load_tasks(tmp_path / name, {"job.priority": 7, "envs.SEED": "3"})
        assert [(task.job.priority, task.envs["SEED"]) for task, _ in tasks] == [(7, "3")] * len(tasks)
        with pytest.raises(RunFileError) as caught:
            load_tasks(tmp_path / name, {"job.priority": "high"})
        assert caught.value.problems[0].place == "--set job.priority"
