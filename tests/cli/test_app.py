"""The program from outside: its exit codes, its help, and what it does not import."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import trainworks
from tests.program import trainworks_process, trainworks_program
from trainworks.cli import app as app_module
from trainworks.cli.commands import COMMANDS, PARTS, command_of
from trainworks.cli.examples import EXAMPLES
from trainworks.jobs.job_spec import JobSpec, NodeResources
from trainworks.jobs.store import open_store

IMPORT_ALL_WITHOUT_TORCH = """
import importlib, importlib.abc, pkgutil, sys

BLOCKED = {"torch", "transformers", "tokenizers", "safetensors"}

class Absent(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in BLOCKED:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Absent())
import trainworks
names = [found.name for found in pkgutil.walk_packages(trainworks.__path__, "trainworks.")]
control = [name for name in names if not name.startswith("trainworks.worker") and not name.endswith("__main__")]
for name in control:
    importlib.import_module(name)
print(*sorted({name.split(".")[1] for name in control}))
"""


def imported(module: str) -> set[str]:
    """Top-level modules that importing `module` brings in."""
    program = f"import sys, {module}; print(*{{name.split('.')[0] for name in sys.modules}})"
    return set(
        subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout.split()
    )


def test_help_lists_every_command(golden) -> None:
    told = trainworks_process("--help").stdout.replace("python -m trainworks", "trainworks")
    golden("cli_help.txt", told)
    assert trainworks_program("--help").stdout == told


def test_without_a_command_it_prints_its_help_as_a_usage_error() -> None:
    done = trainworks_program()
    assert (done.returncode, done.stdout, done.stderr) == (2, "", trainworks_program("--help").stdout)


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_words_about_it_and_its_module_names_it(name: str) -> None:
    function = command_of(name)
    assert function.__doc__
    assert re.search(rf"`(trainworks )?{name}`", sys.modules[function.__module__].__doc__ or "")


@pytest.mark.parametrize("name", COMMANDS)
def test_the_help_of_a_command_begins_with_its_summary(name: str) -> None:
    done = trainworks_program(name, "--help")
    assert done.returncode == 0
    assert COMMANDS[name] in " ".join(done.stdout.split())


def test_every_file_of_a_command_is_a_command_or_shared_by_some() -> None:
    folder = Path(trainworks.__file__).parent / "cli"
    text = "\n".join(path.read_text() for path in folder.parent.rglob("*.py"))
    commands = {command_of(name).__module__.rpartition(".")[2] for name in COMMANDS}
    files = {path.stem for path in folder.rglob("*.py")} - {"__init__", "__main__", "app"} - commands
    named = r"trainworks\.cli\.(\w+\.)?{0} import|trainworks\.cli\.\w+ import {0}\b"
    assert {stem for stem in files if not re.search(named.format(stem), text)} == set()


def test_version_prints_the_version() -> None:
    done = trainworks_process("--version")
    assert (done.returncode, done.stdout) == (0, f"trainworks {trainworks.__version__}\n")


def test_an_unknown_command_names_the_nearest() -> None:
    assert re.search("did you mean .run.", trainworks_program("rnu").stderr, re.IGNORECASE)


def test_an_unknown_command_is_a_usage_error() -> None:
    done = trainworks_process("rnu")
    assert (done.returncode, done.stdout) == (2, "")
    assert "rnu" in done.stderr
    assert trainworks_program("rnu").stderr == done.stderr


def test_an_unknown_option_names_the_nearest() -> None:
    done = trainworks_program("stop", "--nwo")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "error: `trainworks stop` has no option `--nwo`\n\nhint: did you mean `--now`?\n"


@pytest.mark.parametrize(
    ("arguments", "message", "place"),
    [
        (["plan"], "missing argument 'RUN_FILE'", "trainworks plan"),
        (["ps", "a"], "got unexpected extra argument(s) (a)", "trainworks ps"),
        (["nodes", "--cluster"], "option '--cluster' requires an argument", "trainworks nodes"),
        (["plan", "a.yaml", "--nodes", "x"], "invalid value for '--nodes'", "trainworks plan"),
    ],
)
def test_a_command_line_that_cannot_be_read_is_an_error_as_all_others(
    arguments: list[str], message: str, place: str
) -> None:
    done = trainworks_program(*arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"error: {message}") and f"  --> {place}\n" in done.stderr
    assert done.stderr.endswith(f"hint: {place} --help\n")


def test_errors_are_data_where_a_result_would_be(tmp_path: Path) -> None:
    (tmp_path / "bad.yaml").write_text("name: a b\nrun: 'true'\nchekpoint: {keep: 3}\nnum_nodes: 0\n")
    done = trainworks_program("plan", "bad.yaml", "--json", folder=tmp_path)
    facts = json.loads(done.stdout)
    assert done.returncode == 2 and (facts["schema"], facts["exit_code"]) == ("trainworks.error/1", 2)
    assert len(facts["errors"]) > 1 and all(one["message"] in done.stderr for one in facts["errors"])
    assert "bad.yaml:3  chekpoint" in [one["place"] for one in facts["errors"]]
    (unknown,) = json.loads(trainworks_program("ps", "--json", "--jsn").stdout)["errors"]
    assert unknown["hint"] == "did you mean `--json`?"
    assert trainworks_program("run", "--nodes", "x", "--", "true", "--json").stdout == ""


@pytest.mark.parametrize("name", COMMANDS)
def test_the_examples_of_a_command_can_be_typed(name: str) -> None:
    assert EXAMPLES[name]
    for example in EXAMPLES[name]:
        words = shlex.split(example.partition(" && ")[0].partition(" > ")[0])
        app_module._imported(words[0]).make_context(words[0], words[1:])


def test_every_command_is_in_one_part_of_the_help() -> None:
    assert [name for names in PARTS.values() for name in names] == list(COMMANDS)


def test_the_schema_has_every_key_of_a_run_file(golden) -> None:
    schema = json.loads(trainworks_program("schema").stdout)
    lines = [f"{key}" for key in schema["properties"]]
    lines += [f"{name}.{key}" for name, section in sorted(schema["$defs"].items()) for key in section["properties"]]
    golden("schema_keys.txt", "\n".join(lines) + "\n")


def test_the_schema_refuses_unknown_keys() -> None:
    schema = json.loads(trainworks_program("schema").stdout)
    assert all(section["additionalProperties"] is False for section in [schema, *schema["$defs"].values()])


@pytest.mark.parametrize("command", ["run", "submit", "plan"])
def test_a_bad_run_file_is_a_usage_error_and_leaves_stdout_to_data(tmp_path: Path, command: str) -> None:
    (tmp_path / "bad.yaml").write_text("name: demo\nrun: 'true'\nchekpoint: {keep: 3}\n")
    done = trainworks_program(command, "bad.yaml", folder=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert (
        done.stderr
        == "error: unknown key `chekpoint`\n  --> bad.yaml:3  chekpoint\n\nhint: did you mean `checkpoint`?\n"
    )


def test_a_bad_run_file_leaves_no_run_directory(tmp_path: Path) -> None:
    (tmp_path / "bad.yaml").write_text("name: demo\n")
    trainworks_program("run", "bad.yaml", folder=tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["bad.yaml"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("run", "nope.yaml"), "run file `nope.yaml` not found"),
        (
            ("run", "no-such-program"),
            "`no-such-program` is neither a run file (*.yaml), nor a batch script (*.sbatch), nor a program",
        ),
        (("run", "run.yaml", "lr=1"), "a run file is the only argument, and `lr=1` follows `run.yaml`"),
        (("status",), "no runs in `runs`"),
        (("logs", "demo-9"), "no run `demo-9` in `runs`"),
    ],
)
def test_a_target_that_cannot_be_meant_is_a_usage_error(
    tmp_path: Path, arguments: tuple[str, ...], message: str
) -> None:
    (tmp_path / "run.yaml").write_text("{name: demo, run: 'true'}")
    done = trainworks_program(*arguments, folder=tmp_path)
    assert (done.returncode, done.stderr.splitlines()[0]) == (2, f"error: {message}")


def test_a_dry_run_prints_what_would_be_started_and_starts_nothing(tmp_path: Path) -> None:
    done = trainworks_process("run", "--dry-run", "--nproc", "2", "--", "true", folder=tmp_path)
    assert done.stdout.splitlines()[0] == "python -m trainworks.agent.supervisor runs/true-N"
    assert list(tmp_path.iterdir()) == []


def test_the_list_of_no_runs_is_an_empty_list(tmp_path: Path) -> None:
    assert json.loads(trainworks_process("ls", "--json", folder=tmp_path).stdout) == []


def test_importing_the_program_is_light() -> None:
    assert not imported("trainworks.cli.app") & {"torch", "pydantic", "rich", "numpy", "yaml", "psutil"}


def test_listing_jobs_imports_neither_models_nor_a_library_for_databases_or_processes(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/jobs.db"
    spec = JobSpec(run_id="a-1", name="a", min_nodes=1, max_nodes=1, node=NodeResources(cores=1.0))
    open_store(url).add(spec, run_dir="/runs/a-1", owner="ada", engine="local", now=1.0, uid=os.getuid() + 1)
    program = "import atexit, sys; atexit.register(lambda: print(*sys.modules)); import trainworks.cli.app as app"
    command = [sys.executable, "-c", f"{program}; app.main()", "ps"]
    env = os.environ | {"TRAINWORKS_STORE": url}
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=env, cwd=tmp_path)
    assert "a-1" in done.stdout
    heavy = {"alembic", "asyncio", "numpy", "psutil", "pydantic", "sqlalchemy", "yaml", "trainworks.config.run_file"}
    assert not heavy & set(done.stdout.split())


def test_an_option_that_is_given_is_checked_and_one_that_is_not_keeps_its_default() -> None:
    done = trainworks_program("ps", "--limit", "0")
    assert (done.returncode, "--limit" in done.stderr) == (2, True)
    assert trainworks_program("ps", "--limit", "3").returncode == trainworks_program("ps").returncode == 0


def test_the_control_plane_imports_without_torch() -> None:
    done = subprocess.run([sys.executable, "-c", IMPORT_ALL_WITHOUT_TORCH], capture_output=True, text=True, check=False)
    assert done.stderr == ""
    assert {"api", "backends", "cli", "config", "host", "jobs", "measure", "plan", "record", "report"} <= set(
        done.stdout.split()
    )


@pytest.mark.parametrize(("to", "exit_code", "told"), [(">&-", 0, ""), (">/dev/full", 3, "error: no space left")])
def test_an_output_that_cannot_be_written_is_no_crash(to: str, exit_code: int, told: str) -> None:
    command = f'"{sys.executable}" -m trainworks cost --on "DGX H100" {to}'
    done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr.partition("for")[0].strip()) == (exit_code, told)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_command_that_is_asked_to_end_tidies_up_first(number: signal.Signals) -> None:
    source = (
        "import signal, time, trainworks.cli.app as program\n"
        "signal.signal(signal.SIGHUP, signal.SIG_DFL)\n"  # the tests may run under `nohup`
        "def app(**_):\n"
        "    try: print('begun', flush=True); time.sleep(60)\n"
        "    finally: print('tidy')\n"
        "program.app = app; program.main()"
    )
    with subprocess.Popen([sys.executable, "-c", source], stdout=subprocess.PIPE, text=True) as command:
        assert command.stdout is not None
        assert command.stdout.readline() == "begun\n"
        command.send_signal(number)
        assert command.stdout.read() == "tidy\n"
    assert command.returncode == 128 + number
