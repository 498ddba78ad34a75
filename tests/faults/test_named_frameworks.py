"""Examples of frameworks that are too large for CI: each runs where an environment variable names what it needs."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import psutil
import pytest

from tests.faults.launcher import Program, finished, output, wait_until

pytestmark = [pytest.mark.slow, pytest.mark.lane("test-all")]


def named(variable: str, what: str) -> str:
    """The value of an environment variable, or a skip that says what is not tested without it."""
    return os.environ.get(variable) or pytest.skip(f"NOT TESTED: {what}; set {variable}")


def use_python(program: Program, python: str) -> None:
    """Commands find this Python first."""
    program.env["PATH"] = f"{Path(python).parent}{os.pathsep}{program.env['PATH']}"


def rank(program: Program, script: str, variable: str, value: str) -> psutil.Process:
    """The process of a script that has this value in its environment."""
    return next(
        process
        for process in program.processes()
        if script in process.cmdline() and process.environ().get(variable) == value
    )


def test_a_killed_worker_of_tensorflow_takes_all_workers_back_to_the_last_epoch(examples: Program) -> None:
    use_python(examples, named("TRAINWORKS_TEST_TENSORFLOW", "TensorFlow with tf-keras, in the Python that it names"))
    running = examples.start("run", "examples/digits-tensorflow.yaml")
    wait_until(lambda: "Epoch 4/20" in output(examples))  # three epochs are saved
    rank(examples, "examples/digits_tensorflow.py", "RANK", "1").kill()
    code, _, stderr = finished(running)
    assert code == 0, stderr
    ends = [
        re.search(r"worker (\d) of 2: (\d+) epochs, final loss (.*)", output(examples, worker)) for worker in (0, 1)
    ]
    assert [end and end[1] for end in ends] == ["0", "1"]
    assert ends[0].groups()[1:] == ends[1].groups()[1:]
    assert int(ends[0][2]) <= 17 and float(ends[0][3]) < 0.2
    assert output(examples).count("Epoch 1/20") == 1


def clm_losses(program: Program) -> dict[int, float]:
    """Loss by step, as the Trainer has logged it over all its starts."""
    state = json.loads((program.run_dir.path / "out" / "trainer_state.json").read_text(encoding="utf-8"))
    return {row["step"]: row["loss"] for row in state["log_history"] if "loss" in row}


def test_a_killed_run_clm_goes_on_from_its_own_checkpoint_with_the_losses_of_one_that_was_not(
    examples: Program,
) -> None:
    examples.env["RUN_CLM"] = named("TRAINWORKS_TEST_RUN_CLM", "run_clm.py of transformers, at the path that it names")
    for package in ("datasets", "accelerate", "evaluate"):
        pytest.importorskip(package, reason=f"NOT TESTED: run_clm.py needs {package}")
    code, _, stderr = examples.run("run", "examples/run-clm.yaml")
    assert code == 0, stderr
    uninterrupted = clm_losses(examples)
    assert sorted(uninterrupted) == list(range(20, 201, 20)) and uninterrupted[200] < uninterrupted[20]

    running = examples.start("run", "examples/run-clm.yaml")
    wait_until(lambda: examples.run_dir.run_id == "run-clm-2")
    wait_until((examples.run_dir.path / "out" / "checkpoint-60" / "trainer_state.json").exists)
    rank(examples, examples.env["RUN_CLM"], "RANK", "1").kill()
    code, _, stderr = finished(running)
    assert code == 0, stderr
    assert "killed by SIGKILL" in stderr and output(examples).count("'epoch': '0.07782'") == 1
    assert clm_losses(examples) == uninterrupted


def test_a_federation_goes_on_from_its_last_round_after_a_client_was_killed(examples: Program) -> None:
    python = named("TRAINWORKS_TEST_FLOWER", "Flower with scikit-learn, in the Python that it names")
    use_python(examples, python)
    running = examples.start("run", "examples/flower-digits.yaml")
    wait_until(lambda: "round 2 of 6" in output(examples))
    rank(examples, str(Path(python).with_name("flower-supernode")), "RANK", "2").kill()
    code, _, stderr = finished(running)
    assert code == 0, stderr
    assert "rank 2 on node 0: the command exited with code 137" in stderr
    rounds = re.findall(r"^(continuing|round \d)(?= .*6)", output(examples), re.MULTILINE)
    assert sorted(set(rounds)) == ["continuing", *(f"round {number}" for number in range(1, 7))]
    assert len(rounds) == 7 and rounds.index("continuing") >= 2
    assert float(re.findall(r"accuracy (.*)", output(examples))[-1]) > 0.9
    examples.assert_nothing_left()
