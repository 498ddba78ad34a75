"""Job groups of SkyPilot: files of tasks that run at the same time, read as the roles of one run file."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from trainworks.api.run_request import job_in_format, read_run_file
from trainworks.config.run_description import parse_tasks
from trainworks.config.run_file import RunFile
from trainworks.config.source import Source
from trainworks.errors import RunFileError

# Shapes of published groups: their keys and values, with other commands.
GROUPS = {
    "a server and its client": """
name: server-client
execution: parallel
---
name: server
resources: {cpus: 2, infra: kubernetes}
run: |
  python3 -m http.server 8080 &
  wait
---
name: client
resources: {cpus: 2, infra: kubernetes}
run: curl "server-0.${SKYPILOT_JOBGROUP_NAME}:8080"
""",
    "a trainer that decides": """
name: rlhf
execution: parallel
primary_tasks: [ppo-trainer]
termination_delay: {default: 10s, replay-buffer: 1m}
inter_connection: true
---
name: rollout-server
num_nodes: 2
resources: {accelerators: H100:1, memory: 32+, infra: kubernetes, image_id: "docker:lmsysorg/sglang:v0.5.9"}
envs: {MODEL: Qwen/Qwen2.5-0.5B-Instruct}
volumes: {/shared/policy: policy}
setup: python -c 'import sglang'
run: serve
---
name: replay-buffer
resources: {cpus: 4, memory: 16+, infra: kubernetes, use_spot: true, any_of: [{disk_tier: best}, {}]}
file_mounts: {/code: ./code, /data: {name: bucket, store: s3}}
run: buffer
---
name: ppo-trainer
num_nodes: 2
resources:
  accelerators: [H100:1, H200:1]
  infra: kubernetes
  job_recovery: {strategy: FAILOVER, max_restarts_on_errors: 2}
envs: {EPOCHS: 3, STEPS: 100}
secrets: {HF_TOKEN: null}
volumes: {/shared/policy: policy}
file_mounts: {/code: ./code}
run: train
""",
    "the same for all": """
name: train-eval
execution: parallel
primary_tasks: []
---
name: trainer
workdir: ./code
resources: {accelerators: "H100:1", infra: kubernetes, job_recovery: {max_restarts_on_errors: 1}}
volumes: {/checkpoints: ckpts}
run: train
---
name: evaluator
workdir: ./code
resources: {accelerators: "L4:1", infra: kubernetes}
volumes: {/checkpoints: ckpts}
run: evaluate
""",
}
OURS = ("TRAINWORKS_ROLE", "TRAINWORKS_PORT", "TRAINWORKS_ADDRESSES_")


def read(text: str) -> tuple[RunFile, Source]:
    [one] = parse_tasks(text, name="t.yaml")
    return one


def facts(text: str) -> list[dict[str, Any]]:
    """What SkyPilot takes from each document: numbers of amounts as text, and nothing that is the default."""
    documents = []
    for one in yaml.safe_load_all(text):
        resources = {
            key: str(value) if key in ("cpus", "memory") else value for key, value in one.get("resources", {}).items()
        }
        envs = {name: str(value) for name, value in one.get("envs", {}).items() if not name.startswith(OURS)}
        nodes = {"num_nodes": one.get("num_nodes", 1)} if "run" in one else {}
        if "run" in one:
            one["run"] = one["run"].removeprefix("export TRAINWORKS_ROLE_INDEX=$SKYPILOT_NODE_RANK\n").rstrip("\n")
        found = {**one, "resources": resources, "envs": envs, **nodes}
        documents.append({key: value for key, value in found.items() if value not in ({}, [], None)})
    return documents


@pytest.mark.parametrize("text", GROUPS.values(), ids=GROUPS)
@pytest.mark.parametrize("through", ["", "run-file", "skypilot"])
def test_a_group_comes_out_as_it_went_in(text: str, through: str) -> None:
    request = read_run_file(text)
    again = read_run_file(job_in_format(request, through)) if through else request
    assert facts(job_in_format(again, "skypilot")) == facts(text)


def test_the_tasks_are_roles_and_the_primary_ones_decide() -> None:
    run_file, _ = read(GROUPS["a trainer that decides"])
    rollout, buffer, trainer = run_file.roles.values()
    assert list(run_file.roles) == ["rollout-server", "replay-buffer", "ppo-trainer"] and run_file.nodes == 5
    assert [(role.decides, role.may_end) for role in (rollout, trainer)] == [(False, True), (True, False)]
    assert (trainer.restarts, trainer.envs["HF_TOKEN"], trainer.nodes) == (2, None, 2)
    assert run_file.cluster.skypilot.infra == ("kubernetes",), "which all have alike"
    assert buffer.skypilot is not None and buffer.skypilot.use_spot and not run_file.cluster.skypilot.use_spot
    assert run_file.of_role("replay-buffer").cluster.skypilot.infra == ("kubernetes",)
    assert run_file.of_role("replay-buffer").cluster.skypilot.use_spot


def test_what_has_no_effect_here_is_named_with_its_line() -> None:
    _, source = read(GROUPS["a server and its client"])
    assert [note.partition(" ")[0] for note in source.unused] == ["t.yaml:13", "t.yaml:6", "t.yaml:12"]
    assert source.unused[0].startswith(
        "t.yaml:13  roles.client.run: `$SKYPILOT_JOBGROUP_NAME` is set by SkyPilot alone"
    )
    of_skypilot = GROUPS["a server and its client"].replace("parallel", "parallel\ncluster: skypilot")
    run_file, there = read(of_skypilot)
    assert run_file.cluster.engine == "skypilot"
    [both_decide] = there.unused
    assert "after a failure of one of `server`, `client` SkyPilot lets the others end" in both_decide


@pytest.mark.parametrize(
    ("text", "message", "place"),
    [
        (
            "name: g\nexecution: parallel\n---\nname: a\nrun: a\n---\nrun: b\n",
            "every task of a job group has",
            "t.yaml:7",
        ),
        ("name: g\nexecution: parallel\n---\nname: B_1\nrun: a\n", "`B_1` cannot be the name of a role", "t.yaml:4"),
        ("name: g\nexecution: parallel\n---\nname: a\nrun: a\n---\nname: a\nrun: b\n", "of two tasks", "t.yaml:7"),
        ("execution: parallel\n---\nname: a\nrun: a\n", "a job group has a `name`", "t.yaml:1"),
        ("name: g\nexecution: parallel\nprimary_tasks: [b]\n---\nname: a\nrun: a\n", "unknown task `b`", "t.yaml:3"),
        ("name: g\nexecution: parallel\nprimary_tasks: a\n---\nname: a\nrun: a\n", "is a list of names", "t.yaml:3"),
        (
            "name: g\nexecution: parallel\nprimary_task: [a]\n---\nname: a\nrun: a\n",
            "`primary_task` of a job",
            "t.yaml:3",
        ),
        ("name: g\nexecution: parallel\n---\nname: a\nrun: a\nservice: {}\n", "unknown key `service`", "t.yaml:6"),
        ("name: g\nexecution: parallel\n---\nname: a\nrun: a\ncluster: local\n", "unknown key `cluster`", "t.yaml:6"),
        ("name: g\nexecution: parallel\n---\nname: a\nsetup: a\n", "`run` is missing", "t.yaml:4"),
        (
            "name: g\nexecution: parallel\n---\nname: a\nworkdir: x\nrun: a\n---\nname: b\nrun: b\n",
            "`workdir` of `a` and `b` differ",
            "t.yaml",
        ),
    ],
)
def test_what_is_no_group_is_refused_at_its_line(text: str, message: str, place: str) -> None:
    with pytest.raises(RunFileError, match=message) as refused:
        read(text)
    [problem] = refused.value.problems
    assert problem.place is not None and problem.place.split()[0] == place
