"""A process of an exported job finds the variables that it finds here; what ends one ends all."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import yaml
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.jobs.formats.jobs import HOSTILE, expanded, pods, run_container
from tests.lanes import examples
from trainworks.errors import UsageError
from trainworks.jobs.formats import jobset, skypilot
from trainworks.jobs.formats.manifest import dns_name, literal, to_yaml
from trainworks.jobs.frameworks import Rendezvous, command_environment
from trainworks.record.processes import Processes

DUMP = 'env -0 > "env-$RANK"'


def container(**keys: Any) -> dict[str, Any]:
    """Of a job as a JobSet."""
    document = yaml.safe_load(jobset.render(pods(**keys)))
    template = document["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]
    return template["spec"]["containers"][0]


def dumped(folder: Path, rank: int) -> dict[str, str]:
    """The environment of a process that ran `DUMP`."""
    lines = (folder / f"env-{rank}").read_text().split("\0")
    return dict(line.split("=", 1) for line in lines if line)


def by_frameworks(framework: str | None, nodes: int, per_node: int, gpus: int, rank: int) -> dict[str, str]:
    """The variables that such a process gets here."""
    processes = Processes(
        nodes=nodes,
        processes_per_node=per_node,
        threads_per_process=1,
        device="cuda" if gpus else "cpu",
        accelerators_per_node=gpus,
    )
    ports = tuple(range(29500, 29500 + nodes * per_node))
    rendezvous = Rendezvous(address="demo-node-0-0.demo", ports=ports, hostfile="/tmp/trainworks-hostfile")
    node, local_rank = divmod(rank, per_node)
    return command_environment(framework, processes, rendezvous, node=node, local_rank=local_rank)  # type: ignore[arg-type]


@given(
    st.sampled_from([None, "torch", "jax", "deepspeed"]),
    st.integers(1, 3),
    st.integers(1, 3),
    st.sampled_from([0, 1, 2]),
)
@settings(max_examples=examples(12))
@example("jax", 2, 2, 2)
def test_a_process_finds_what_it_finds_here(framework: str | None, nodes: int, per_node: int, each: int) -> None:
    resources = {"accelerators": f"H100:{each * per_node}", "cpus": per_node} if each else {"cpus": per_node}
    keys: dict[str, Any] = {"resources": resources, "num_nodes": nodes, "framework": framework, "run": DUMP}
    keys |= {"cluster": {"processes_per_node": per_node}}
    with TemporaryDirectory() as folder:
        done = run_container(container(**keys), Path(folder), node=nodes - 1)
        assert (done.returncode, done.stderr) == (0, "")
        for rank in range((nodes - 1) * per_node, nodes * per_node):
            expected = by_frameworks(framework, nodes, per_node, each * per_node, rank)
            expected["SKYPILOT_NODE_IPS"] = "\n".join(f"demo-node-0-{node}.demo" for node in range(nodes))
            assert expected.items() <= dumped(Path(folder), rank).items()


def test_the_workers_of_tensorflow_listen_on_their_own_nodes(tmp_path: Path) -> None:
    keys = {"framework": "tensorflow", "num_nodes": 2, "cluster": {"processes_per_node": 2}, "run": 'echo "$TF_CONFIG"'}
    said = run_container(container(**keys), tmp_path, node=1).stdout
    workers = [f"demo-node-0-{node}.demo:{port}" for node in (0, 1) for port in (29500, 29501)]
    configs = [yaml.safe_load(line) for line in said.splitlines()]
    assert all(config["cluster"]["worker"] == workers for config in configs)
    assert sorted(config["task"]["index"] for config in configs) == [2, 3]


def test_variables_of_the_run_file_win(tmp_path: Path) -> None:
    run_container(container(run=DUMP, envs={"OMP_NUM_THREADS": "7", "WORLD_SIZE": "$(id)"}), tmp_path)
    env = dumped(tmp_path, 0)
    assert (env["OMP_NUM_THREADS"], env["WORLD_SIZE"]) == ("7", "$(id)")


@given(HOSTILE)
@settings(max_examples=examples(30))
def test_any_text_reaches_a_process_as_it_was(text: str) -> None:
    script = f"""printf '%s/%s' {shlex.quote(text)} "$HOSTILE" """
    with TemporaryDirectory() as folder:
        said = run_container(container(run=script, envs={"HOSTILE": text}), Path(folder))
        assert (said.stdout, said.returncode) == (f"{text}/{text}", 0)


@pytest.mark.parametrize("text", ["-n", "$(id)", "a\nb'", ""])
def test_a_command_without_a_shell_gets_its_arguments_as_they_were(tmp_path: Path, text: str) -> None:
    assert run_container(container(command=("printf", "%s", text)), tmp_path).stdout == text


@given(HOSTILE)
def test_a_kubelet_makes_the_text_of_its_spelling(text: str) -> None:
    assert expanded(literal(text), {"HOME": "/root", "id": "0"}) == text


@given(HOSTILE)
def test_yaml_gives_every_text_back(text: str) -> None:
    assert yaml.safe_load(to_yaml({"a": [text], "b": {"c": text}})) == {"a": [text], "b": {"c": text}}


@given(st.text(max_size=80))
def test_any_name_becomes_one_of_dns(text: str) -> None:
    name = dns_name(text)
    assert len(name) <= 40
    assert name.strip("-") == name
    assert name[0].isalpha()
    assert set(name) <= set("abcdefghijklmnopqrstuvwxyz0123456789-")


def test_setup_runs_once_per_node_and_before_everything(tmp_path: Path) -> None:
    keys = {"setup": "echo setup $SKYPILOT_SETUP_NODE_RANK", "run": "echo run", "cluster": {"processes_per_node": 2}}
    assert run_container(container(num_nodes=3, **keys), tmp_path, node=2).stdout == "setup 2\nrun\nrun\n"


def test_a_setup_that_fails_ends_the_node(tmp_path: Path) -> None:
    done = run_container(container(setup="exit 7", run="echo run"), tmp_path)
    assert (done.returncode, done.stdout) == (7, "")


def test_the_first_process_that_fails_ends_the_others(tmp_path: Path) -> None:
    script = '[ "$RANK" = 1 ] && exit 9; sleep 600; echo never'  # for longer than the container may take
    done = run_container(container(run=script, cluster={"processes_per_node": 3}), tmp_path)
    assert (done.returncode, done.stdout) == (9, "")


@pytest.mark.parametrize("framework", ["mpi", "slurm"])
def test_a_launcher_of_another_engine_cannot_leave(framework: str) -> None:
    with pytest.raises(UsageError, match=f"cannot write `framework: {framework}` as a JobSet"):
        jobset.render(pods(framework=framework))


def test_a_stop_reaches_every_process_and_leaves_it_the_grace_of_the_job(tmp_path: Path) -> None:
    script = 'trap "sleep 0.5; echo saved $RANK; exit 0" TERM; touch ready-$RANK; while :; do sleep 0.1; done'
    text = container(run=script, cluster={"processes_per_node": 2})["command"]
    env = {"PATH": os.environ["PATH"], "JOB_COMPLETION_INDEX": "0", "RESTARTS": "0"}
    argv = [expanded(word, env) for word in text]
    with subprocess.Popen(argv, cwd=tmp_path, env=env, stdout=subprocess.PIPE, text=True) as child:
        while len(list(tmp_path.glob("ready-*"))) < 2:
            assert child.poll() is None
            time.sleep(0.02)
        child.terminate()
        said, _ = child.communicate()
    assert (sorted(said.splitlines()), child.returncode) == (["saved 0", "saved 1"], 143)


def test_names_in_another_script_are_different_stable_names_of_dns() -> None:
    names = [dns_name(text) for text in ("训练-7b", "评测-7b", "训练", "模型", "обучение")]
    assert len(set(names)) == len(names)
    assert names[0] == dns_name("训练-7b") and names[0].startswith("j-7b-")
    assert all(len(dns_name("训" * 63 + "a" * 60, longest)) <= longest for longest in (24, 40))
    assert dns_name("训" + "a" * 60, 24) != dns_name("评" + "a" * 60, 24)


@pytest.mark.parametrize("name", ["训练-7b", "обучение", "训" * 63])
def test_a_name_in_another_script_is_ascii_where_kubernetes_and_skypilot_read_it(name: str) -> None:
    job = pods(name=name)
    document = yaml.safe_load(jobset.render(job))
    labels = document["metadata"]["labels"]
    assert re.fullmatch("[a-z]([a-z0-9-]{0,38}[a-z0-9])?", document["metadata"]["name"])
    assert all(re.fullmatch("([A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?)?", value) for value in labels.values())
    assert json.loads(document["metadata"]["annotations"]["trainworks/job"])["name"] == name
    assert yaml.safe_load(skypilot.render(job.spec, job.program))["name"] == document["metadata"]["name"]
