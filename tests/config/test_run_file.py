"""Run files as frozen values: what is read can be written and read again."""

from __future__ import annotations

import unicodedata
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from tests.plan.shapes import workload
from trainworks.config.quantities import CheckpointInterval, StepWindow, TrainFor
from trainworks.config.run_description import load_tasks
from trainworks.config.run_file import RunFile
from trainworks.config.spec import name_from
from trainworks.errors import QuantityError, UsageError
from trainworks.units import Money

_FOLDER = Path(__file__).parents[2] / "examples"
EXAMPLES = sorted([*_FOLDER.glob("*.yaml"), *(_FOLDER / "finetune").glob("*.yaml")])
WORKLOAD = {
    "task": "causal-lm",
    "model": {"layers": 2, "hidden": 64, "heads": 4},
    "data": {"source": "python-stdlib", "sequence_length": 64},
    "global_batch": 8,
    "train_for": "300 steps",
}
RUN_FILES = st.fixed_dictionaries(
    {"name": st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,20}", fullmatch=True)},
    optional={
        "cluster": st.sampled_from(
            [
                "local",
                "64x H100",
                {"nodes": 2},
                {"processes_per_node": 4},
                {"of": "8x B200", "usd_per_accelerator_hour": 3},
            ]
        ),
        "goal": st.builds(
            lambda hours, usd: {"deadline": f"{hours}h", "budget": f"{usd} USD"},
            st.integers(1, 99),
            st.integers(1, 10**9),
        ),
        "checkpoint": st.sampled_from([{"every": "auto"}, {"every": "50 steps"}, {"every": "90 s"}, {"keep": 2}]),
        "recover": st.builds(lambda days: {"max_restarts": 1, "node_mttf": f"{days} d"}, st.integers(1, 99)),
    },
)
WORKS = st.sampled_from(
    [
        {"run": "python train.py", "setup": "true", "envs": {"A": "1", "B": None}, "framework": "jax"},
        {"run": "torchrun train.py", "num_nodes": 2, "resources": {"accelerators": ["A100:8", "H100"], "cpus": "4+"}},
        {"workload": WORKLOAD, "layout": {"dp_shard": 2}},
        {
            "workload": WORKLOAD | {"model": {"preset": "llama3-70b"}, "precision": "fp8"},
            "layout": {"zero": 1, "tp": 8},
        },
        {"workload": WORKLOAD | {"train_for": "2B tokens", "optimizer": {"warmup": "20 steps"}}, "layout": "auto"},
    ]
)


def run_file(**changes: Any) -> RunFile:
    """A run file of a workload with changes at its top level."""
    return RunFile.model_validate({"name": "demo", "workload": WORKLOAD} | changes)


@given(RUN_FILES, WORKS)
def test_what_is_written_as_json_is_read_as_the_same(common: dict[str, Any], work: dict[str, Any]) -> None:
    written = RunFile.model_validate(common | work)
    assert RunFile.model_validate_json(written.model_dump_json()) == written


@given(st.integers(1, 10**8))
def test_a_checkpoint_interval_in_seconds_survives_json(seconds: int) -> None:
    written = run_file(checkpoint={"every": f"{seconds} s"})
    assert RunFile.model_validate_json(written.model_dump_json()) == written


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.name)
def test_every_example_is_a_run_file(example: Path) -> None:
    assert load_tasks(example)[0][0].name


def test_there_are_examples() -> None:
    assert EXAMPLES


def test_a_run_file_cannot_be_changed() -> None:
    with pytest.raises(ValidationError, match="frozen"):
        run_file().name = "other"  # type: ignore[misc]


def test_every_field_of_every_section_is_documented_or_speaks_for_itself() -> None:
    schema = RunFile.model_json_schema()
    assert all("description" in section for section in [schema, *schema["$defs"].values()])


@pytest.mark.parametrize(
    ("text", "amount", "unit"),
    [("300 steps", 300, "steps"), ("2B tokens", 2 * 10**9, "tokens"), ("1 epoch", 1, "epochs")],
)
def test_the_length_of_a_run_is_a_count_and_a_noun(text: str, amount: int, unit: str) -> None:
    assert TrainFor.parse(text) == TrainFor(amount=amount, unit=unit)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("text", "interval"),
    [
        ("auto", CheckpointInterval()),
        ("50 steps", CheckpointInterval(steps=50)),
        ("1 step", CheckpointInterval(steps=1)),
        ("10m", CheckpointInterval(seconds=600.0)),
    ],
)
def test_a_checkpoint_interval_is_automatic_or_steps_or_a_time(text: str, interval: CheckpointInterval) -> None:
    assert CheckpointInterval.parse(text) == interval


def test_an_interval_is_not_both_steps_and_a_time() -> None:
    with pytest.raises(ValidationError, match="either steps or a duration"):
        CheckpointInterval(steps=1, seconds=1.0)


@pytest.mark.parametrize("deadline", [3, "3", "-3h"])
def test_a_deadline_without_a_unit_is_refused(deadline: Any) -> None:
    with pytest.raises(ValidationError):
        run_file(goal={"deadline": deadline})


@pytest.mark.parametrize("node_mttf", [-1.0, 0.0, float("nan"), "0 s"])
def test_a_time_to_failure_is_positive(node_mttf: Any) -> None:
    with pytest.raises(ValidationError):
        run_file(recover={"node_mttf": node_mttf})


def test_a_checkpoint_interval_is_positive() -> None:
    with pytest.raises(ValidationError):
        run_file(checkpoint={"every": "0 s"})


@pytest.mark.parametrize("name", ["", "-a", ".hidden", "a/b", "a b", "x" * 64])
def test_a_name_is_a_plain_folder_name(name: str) -> None:
    with pytest.raises(ValidationError, match="name"):
        run_file(name=name)


def test_a_cluster_may_be_given_by_its_engine() -> None:
    assert run_file(cluster="local") == run_file(cluster={"engine": "local"})


def test_an_automatic_layout_is_none() -> None:
    assert run_file(layout="auto").layout is None


@pytest.mark.parametrize("work", [{}, {"run": "true", "workload": WORKLOAD}])
def test_a_run_is_a_workload_or_a_command(work: dict[str, Any]) -> None:
    with pytest.raises(ValidationError, match="exactly one of `workload`"):
        RunFile.model_validate({"name": "demo"} | work)


@pytest.mark.parametrize("extra", [{"layout": {"dp_shard": 2}}, {"setup": "true", "run": None, "workload": WORKLOAD}])
def test_keys_of_the_other_kind_of_run_are_refused(extra: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        RunFile.model_validate({"name": "demo", "run": "true"} | extra)


@pytest.mark.parametrize("text", ["64x H100-SXM", "4 nodes of 8x A100-SXM-80GB over 8x HDR", "4x p4d.24xlarge"])
def test_any_other_text_describes_a_cluster(text: str) -> None:
    cluster = run_file(cluster=text).cluster
    assert (cluster.engine, cluster.of) == ("described", text)


def test_a_described_cluster_may_have_a_price() -> None:
    cluster = run_file(cluster={"of": "64x H100", "usd_per_accelerator_hour": 2.5}).cluster
    assert (cluster.engine, cluster.of, cluster.usd_per_accelerator_hour) == ("described", "64x H100", 2.5)


@pytest.mark.parametrize("price", [0, -1, "free"])
def test_a_price_is_positive(price: Any) -> None:
    with pytest.raises(ValidationError, match="usd_per_accelerator_hour"):
        run_file(cluster={"of": "64x H100", "usd_per_accelerator_hour": price})


@pytest.mark.parametrize("budget", [2000, "2000", "2000 EUR", "-5 USD", "0 USD", "many USD"])
def test_a_budget_is_a_positive_amount_of_dollars(budget: Any) -> None:
    with pytest.raises(ValidationError, match="budget"):
        run_file(goal={"budget": budget})


@pytest.mark.parametrize(
    ("text", "money"), [("500万元", Money(5e6, "CNY")), ("¥3", Money(3.0, "CNY")), ("2000 USD", Money(2000.0, "USD"))]
)
def test_a_budget_keeps_its_currency_through_the_record(text: str, money: Money) -> None:
    read = run_file(goal={"budget": text}).goal.budget
    assert read == money
    written = run_file(goal={"budget": text}).model_dump_json()
    assert RunFile.model_validate_json(written).goal.budget == money


def test_an_hour_has_one_price() -> None:
    assert run_file(cluster={"price": "¥20/GPU/h"}).cluster.hour_price == Money(20.0, "CNY")
    assert run_file(cluster={"usd_per_accelerator_hour": 2.5}).cluster.hour_price == Money(2.5, "USD")
    with pytest.raises(ValidationError, match="`price` and `usd_per_accelerator_hour` are one price"):
        run_file(cluster={"price": "¥20/GPU/h", "usd_per_accelerator_hour": 2.5})


def test_a_model_may_be_a_preset() -> None:
    workload = run_file(workload=WORKLOAD | {"model": {"preset": "llama3-70b"}}).workload
    assert workload is not None
    assert workload.model.preset == "llama3-70b"


@pytest.mark.parametrize(
    "model",
    [
        {"preset": "llama3-70b", "hf": "gpt2"},
        {"preset": "llama3-70b", "layers": 2},
        {"preset": "llama3-70b", "weights": "pretrained"},
        {},
    ],
)
def test_a_model_is_one_of_preset_checkpoint_and_dimensions(model: dict[str, Any]) -> None:
    with pytest.raises(ValidationError, match="model"):
        run_file(workload=WORKLOAD | {"model": model})


@pytest.mark.parametrize("precision", ["fp32", "tf32", "bf16", "fp16", "fp8", "fp4"])
def test_a_plan_may_be_in_any_precision(precision: str) -> None:
    workload = run_file(workload=WORKLOAD | {"precision": precision}).workload
    assert workload is not None
    assert workload.precision == precision


def test_data_to_plan_with_need_no_source() -> None:
    workload = run_file(workload=WORKLOAD | {"data": {"sequence_length": 8192}}).workload
    assert workload is not None
    assert workload.data.source == ""


@pytest.mark.parametrize("data", [{}, {"sequence_length": 1}, {"sequence_length": 64, "image_size": 224}])
def test_text_has_a_sequence_length_and_no_image_size(data: dict[str, Any]) -> None:
    with pytest.raises(ValidationError, match="sequence_length"):
        run_file(workload=WORKLOAD | {"data": data})


def test_images_have_a_size() -> None:
    with pytest.raises(ValidationError, match="image_size"):
        run_file(workload=WORKLOAD | {"task": "image-classification"})


@pytest.mark.parametrize(("written", "read"), [("auto", "auto"), ("60s", 60.0), ("1h30m", 5400.0)])
def test_a_hang_timeout_is_automatic_or_a_duration(written, read):
    assert run_file(recover={"hang_timeout": written}).recover.hang_timeout == read


def test_a_hang_timeout_of_nothing_is_refused():
    with pytest.raises(ValidationError, match="is not a duration above 0"):
        run_file(recover={"hang_timeout": "0s"})


def test_a_command_has_no_hang_timeout():
    with pytest.raises(ValidationError, match="has no heartbeat"):
        RunFile.model_validate({"name": "a", "run": "true", "recover": {"hang_timeout": "60s"}})


@pytest.mark.parametrize(
    "extra", [{"guard": {"nonfinite": "stop"}}, {"profile": "20:25"}, {"checkpoint": {"memory_every": 1}}]
)
def test_what_needs_the_steps_of_a_workload_is_refused_beside_a_command(extra: dict[str, Any]) -> None:
    with pytest.raises(ValidationError, match="needs `workload`"):
        RunFile.model_validate({"name": "a", "run": "true", **extra})


def test_a_profile_beyond_the_last_step_is_refused() -> None:
    with pytest.raises(ValidationError, match=r"profile \(20:25\) is beyond the last step \(24\)"):
        RunFile.model_validate({"name": "a", "workload": WORKLOAD | {"train_for": "24 steps"}, "profile": "20:25"})


def test_a_deterministic_run_is_not_compiled() -> None:
    with pytest.raises(ValidationError, match="`deterministic` needs `compile: false`"):
        RunFile.model_validate({"name": "a", "workload": WORKLOAD | {"deterministic": True, "compile": True}})


@pytest.mark.parametrize(("text", "steps"), [("20:25", (20, 25)), ("7", (7, 7)), (" 1 : 50 ", (1, 50))])
def test_a_window_of_steps_includes_both_ends(text: str, steps: tuple[int, int]) -> None:
    window = StepWindow.parse(text)
    assert (window.first, window.last) == steps


@pytest.mark.parametrize("text", ["", "a:b", "0:3", "5:4", "1:51", "-1:4", "1:2:3"])
def test_what_is_no_window_of_steps_is_refused(text: str) -> None:
    with pytest.raises(QuantityError):
        StepWindow.parse(text)


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ({"architecture": "llama", "experts": 4}, "`experts` needs `architecture: mixtral`"),
        ({"architecture": "mixtral", "experts": 2, "experts_per_token": 3}, "is more than the 2 experts"),
        ({"architecture": "mixtral", "experts_per_token": 9}, "is more than the 8 experts"),
        ({"architecture": "mixtral", "experts": 1}, "greater than or equal to 2"),
    ],
)
def test_experts_that_cannot_be_are_refused(model: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        RunFile.model_validate({"name": "x", "workload": WORKLOAD | {"model": WORKLOAD["model"] | model}})


@pytest.mark.parametrize(
    ("text", "engine", "partition"),
    [
        ("local", "local", None),
        ("slurm", "slurm", None),
        ("slurm:train", "slurm", "train"),
        ("kubernetes", "kubernetes", None),
        ("skypilot", "skypilot", None),
        ("ray", "ray", None),
    ],
)
def test_one_word_changes_the_engine(text: str, engine: str, partition: str | None) -> None:
    cluster = RunFile.model_validate({"name": "a", "run": "true", "cluster": text}).cluster
    assert (cluster.engine, cluster.slurm.partition) == (engine, partition)


def test_the_word_described_is_no_engine_but_a_description() -> None:
    cluster = RunFile.model_validate({"name": "a", "run": "true", "cluster": "described"}).cluster
    assert (cluster.engine, cluster.of) == ("described", "described")


def test_the_block_of_a_plugin_is_data_and_survives_a_round_trip() -> None:
    block = {"address": "http://head:8265", "anything": [1, {"a": None}]}
    cluster = RunFile.model_validate({"name": "a", "run": "true", "cluster": {"engine": "ray", "ray": block}}).cluster
    assert cluster.plugins == {"ray": block}
    assert type(cluster).model_validate_json(cluster.model_dump_json()) == cluster


def test_a_block_that_no_plugin_provides_is_refused() -> None:
    with pytest.raises(ValidationError, match="extra_forbidden"):
        RunFile.model_validate({"name": "a", "run": "true", "cluster": {"engine": "local", "rya": {}}})


HOSTILE = ["a b", "a;b", "$(reboot)", "`id`", "a\nb", "'", '"', "-rf", "a&b", ""]


@pytest.mark.parametrize("word", HOSTILE)
@pytest.mark.parametrize("key", ["partition", "account", "qos", "reservation", "login"])
def test_a_name_of_slurm_holds_nothing_that_a_shell_reads(key: str, word: str) -> None:
    with pytest.raises(ValidationError):
        RunFile.model_validate({"name": "a", "run": "true", "cluster": {"engine": "slurm", "slurm": {key: word}}})


@pytest.mark.parametrize("word", HOSTILE)
def test_a_secret_of_kubernetes_is_a_name(word: str) -> None:
    with pytest.raises(ValidationError):
        RunFile.model_validate({"name": "a", "run": "true", "cluster": {"kubernetes": {"pull_secrets": [word]}}})


def test_a_secret_that_is_no_variable_is_refused() -> None:
    """It would stand beside the variable that was meant, which is then no secret."""
    task = {"name": "a", "run": "true", "cluster": {"skypilot": {"secrets": ["HF_TOKN"]}}}
    with pytest.raises(ValidationError, match=r"`HF_TOKN` in `cluster\.skypilot\.secrets` is not among"):
        RunFile.model_validate(task | {"envs": {"HF_TOKEN": "x"}})


@pytest.mark.parametrize("option", ["reservation", "--a b", "--x=1\n#SBATCH --wrap", "-x", "--UP=1"])
def test_an_option_of_sbatch_is_one_option(option: str) -> None:
    with pytest.raises(ValidationError):
        RunFile.model_validate(
            {"name": "a", "run": "true", "cluster": {"engine": "slurm", "slurm": {"options": [option]}}}
        )


@pytest.mark.parametrize(("work", "restarts"), [({"workload": workload()}, 3), ({"run": "true"}, 0)])
def test_a_workload_restarts_automatically_and_a_command_does_not(work: dict[str, Any], restarts: int) -> None:
    assert RunFile.model_validate({"name": "demo"} | work).max_restarts == restarts


@pytest.mark.parametrize("work", [{"workload": workload()}, {"run": "true"}])
@pytest.mark.parametrize("limit", [0, 7])
def test_the_run_file_sets_the_number_of_restarts(work: dict[str, Any], limit: int) -> None:
    run_file = RunFile.model_validate({"name": "demo", "recover": {"max_restarts": limit}} | work)
    assert run_file.max_restarts == limit


def test_a_framework_alone_is_short_for_the_block() -> None:
    short, full = (
        RunFile.model_validate({"name": "a", "workload": workload(), "software": text})
        for text in ("MaxText 2025", {"framework": "MaxText 2025"})
    )
    assert short == full == RunFile.model_validate_json(short.model_dump_json())


@pytest.mark.parametrize(
    ("block", "message"),
    [
        ("framework: soup", "unknown framework `soup`"),
        ("fp8_recipe: rowise", "did you mean `rowwise`"),
        ("atention: cudnn", "did you mean `attention`"),
        ("compiled: perhaps", "software.compiled"),
    ],
)
def test_a_bad_value_of_the_software_is_one_error_with_its_place(tmp_path: Path, block: str, message: str) -> None:
    file = tmp_path / "run.yaml"
    job = "task: causal-lm, model: {preset: llama3-8b}, data: {sequence_length: 64}, global_batch: 8"
    file.write_text(f"name: a\nworkload: {{{job}, train_for: 9 steps}}\nsoftware:\n  {block}\n")
    with pytest.raises(UsageError) as refused:
        load_tasks(file)[0]
    error = refused.value
    assert message in f"{error.message} {error.hint} {error.place}"
    assert f"{file}:4" in (error.place or "")


def test_a_command_has_no_software_to_plan_for() -> None:
    with pytest.raises(ValidationError, match="`software` needs `workload`"):
        RunFile.model_validate({"name": "a", "run": "true", "software": "MaxText"})


@pytest.mark.parametrize("nothing", [{}, [], ""])
def test_accelerators_without_any_are_refused(nothing: object) -> None:
    with pytest.raises(ValidationError, match="accelerator"):
        run_file(resources={"accelerators": nothing})


def _refused_name(name: str) -> Any:
    with pytest.raises(ValidationError) as found:
        run_file(name=name)
    return found.value.errors()[0]["ctx"]["error"]


@pytest.mark.parametrize("name", ["微调", "обучение", "entraîné", "訓練-7b", "हिन्दी", "ไทย", "训" * 63, "a" * 63])
def test_a_run_has_a_name_in_any_script(name: str) -> None:
    assert run_file(name=name).name == name


def test_two_encodings_of_a_name_are_one_run() -> None:
    composed, decomposed = (unicodedata.normalize(form, "entraîné") for form in ("NFC", "NFD"))
    assert composed != decomposed
    assert run_file(name=decomposed).name == run_file(name=composed).name == composed


@pytest.mark.parametrize("name", ["a b", "-a", "_a", "a/b", "..", "", "a\0", "a\n", "a" * 64, "训" * 64, "\u0301a"])
def test_a_name_that_is_refused_says_which_characters_are_accepted(name: str) -> None:
    error = _refused_name(name)
    assert "invalid run name" in error.message and "letters and digits of any script" in error.hint


@pytest.mark.parametrize(
    ("name", "character"),
    [
        ("a\u202eb", "U+202E RIGHT-TO-LEFT OVERRIDE"),
        ("a\u2066b", "U+2066 LEFT-TO-RIGHT ISOLATE"),
        ("a\u200bb", "U+200B ZERO WIDTH SPACE"),
        ("a\u200db", "U+200D ZERO WIDTH JOINER"),
        ("a\ufeffb", "U+FEFF ZERO WIDTH NO-BREAK SPACE"),
        ("训练🚀", "U+1F680 ROCKET"),
        ("训练　7b", "U+3000 IDEOGRAPHIC SPACE"),
        ("a" + 8 * "\u0301", "U+0301 COMBINING ACUTE ACCENT"),
        ("a\ud800", "U+D800"),
    ],
)
def test_a_character_that_hides_or_stacks_is_named_and_not_printed(name: str, character: str) -> None:
    error = _refused_name(name)
    assert f"{character} is not a letter or digit" in error.message
    assert not set(error.message) & set("\u202e\u2066\u200b\u200d\ufeff\ud800")


def test_a_name_fits_into_a_file_name_with_its_number() -> None:
    assert "has 252 bytes in UTF-8, more than 200" in _refused_name("\U00020000" * 63).message


@given(st.text(max_size=80))
def test_a_run_name_is_found_in_any_text(text: str) -> None:
    name = name_from(text)
    assert run_file(name=name).name == name


TRAINER, SERVER = {"run": "train"}, {"run": "serve", "decides": False}


def test_a_role_reads_as_a_run_file_of_its_own() -> None:
    rollout = SERVER | {"nodes": 2, "envs": {"B": "own"}, "resources": {"cpus": 2}}
    written = {"name": "demo", "envs": {"A": "all", "B": "all"}, "roles": {"trainer": TRAINER, "rollout": rollout}}
    whole = RunFile.model_validate(written)
    one = whole.of_role("rollout")
    assert (whole.nodes, one.nodes, one.run, one.starts, one.roles) == (3, 2, "serve", "per_node", {})
    assert (one.envs, one.resources.cpus if one.resources else None) == ({"A": "all", "B": "own"}, 2.0)
    assert RunFile.model_validate_json(whole.model_dump_json(exclude_unset=True)) == whole
    ranks = RunFile.model_validate({"name": "demo", "roles": {"t": TRAINER | {"processes_per_node": 4}}})
    assert ranks.of_role("t").starts == "per_rank"


@pytest.mark.parametrize(
    ("keys", "problem"),
    [
        ({"roles": {"a": SERVER}}, "no role decides when the job has succeeded"),
        ({"roles": {"a": TRAINER}, "run": "x"}, "exactly one of"),
        ({"roles": {"a": TRAINER}, "num_nodes": 2}, "`num_nodes` is not for a job with `roles`"),
        ({"roles": {"a": TRAINER}, "job": {"min_nodes": 1}}, "`job.min_nodes` is not for a job with `roles`"),
        ({"roles": {"a": TRAINER | {"may_end": True}}}, "`may_end` is for roles that do not"),
        ({"roles": {"a": TRAINER | {"framework": "mpi"}}}, "cannot have `framework: mpi`"),
        ({"roles": {"a": TRAINER | {"depends_on": ["b"]}}}, "depends on an unknown role `b`"),
        ({"roles": {"a": TRAINER | {"depends_on": ["b"]}, "b": SERVER}}, "would wait forever: `b` runs until"),
        (
            {"roles": {"a": TRAINER | {"depends_on": ["b"]}, "b": TRAINER | {"depends_on": ["a"]}}},
            "roles wait for each other: a, b",
        ),
        ({"roles": {"A_b": TRAINER}}, "string_pattern_mismatch"),
    ],
)
def test_roles_that_cannot_run_together_are_refused(keys: dict[str, Any], problem: str) -> None:
    with pytest.raises(ValidationError, match=problem):
        RunFile.model_validate({"name": "demo"} | keys)


def test_the_nodes_of_roles_are_not_an_option() -> None:
    with pytest.raises(UsageError, match="each role has its own number"):
        RunFile.model_validate({"name": "demo", "roles": {"a": TRAINER}}).with_ranks(2, None)
