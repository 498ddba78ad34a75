"""Tasks of SkyPilot as run files: what is kept for SkyPilot, and what is said to have no effect elsewhere."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from trainworks.api.run_request import RunRequest, job_in_format, not_kept, read_run_file
from trainworks.config.load import parse_run_file
from trainworks.config.skypilot_task import HANDED_ON, RENTED, TASK_KEYS
from trainworks.errors import RunFileError

# Shapes of published tasks: their keys and values, with other commands.
TASKS = {
    "spot with a bucket": """
        name: finetune
        resources: {accelerators: {A100: 8, H100: 8}, use_spot: true, cloud: gcp, region: us-central1, disk_size: 1024,
                    disk_tier: best, ports: [8080], image_id: "docker:nvcr.io/nvidia/pytorch:26.09-py3"}
        num_nodes: 2
        envs: {EPOCHS: 3}
        secrets: {HF_TOKEN: null}
        file_mounts:
          /checkpoints: {name: my-bucket, store: gcs, mode: MOUNT_CACHED}
          /data: s3://bucket/data
        run: torchrun train.py
        """,
    "one of several": """
        resources:
          cpus: 4+
          any_of:
            - {infra: aws/us-east-1, accelerators: A10G:4}
            - {infra: k8s/lab, accelerators: L4:4}
          job_recovery: {strategy: EAGER_NEXT_REGION, max_restarts_on_errors: 3}
        volumes: {/mnt/data: team-volume}
        config: {kubernetes: {pod_config: {spec: {hostNetwork: true}}}}
        run: python run.py
        """,
    "network of a cloud": """
        resources: {infra: gcp, accelerators: [H200:8, H100:8], network_tier: best, instance_type: a3-ultragpu-8g,
                    labels: {team: vision}, autostop: {idle_minutes: 10, down: true}, local_disk: nvme:1000+}
        experimental: {config_overrides: {docker: {run_options: [--privileged]}}}
        workdir: .
        setup: pip install torch
        run: ./nccl.sh
        """,
}


def exported(text: str) -> dict[str, Any]:
    return exported_request(read_run_file(text))


def exported_request(request: RunRequest) -> dict[str, Any]:
    task: dict[str, Any] = yaml.safe_load(job_in_format(request, "skypilot"))
    return task


@pytest.mark.parametrize("text", TASKS.values(), ids=TASKS)
def test_a_task_comes_out_with_every_key_that_went_in(text: str) -> None:
    written, out = yaml.safe_load(text), exported(text)
    places = {"cloud", "region", "zone", "infra"}
    resources = {key: value for key, value in written["resources"].items() if key not in places | {"accelerators"}}
    if "cpus" in resources:
        assert out["resources"].pop("cpus") == resources.pop("cpus")
    assert resources.items() <= out["resources"].items()
    for key in ("file_mounts", *TASK_KEYS):
        assert out.get(key) == written.get(key)


# Facts of tasks as published ones have them; a set is any of its members, and a list is in this order.
FACTS = [
    "accelerators: {'H100:8', 'H200:8'}",
    "accelerators: {A100: 8, H100: 4}",
    "accelerators: {A100-80GB}",
    "accelerators: ['H100:8', 'H200:8']",
    "accelerators: T4:0.5",
    "accelerators: {T4: 0.25, A10G: 1}",
    "cpus: 4",
    "cpus: 4+",
    "cpus: 0.5+",
    "memory: 32",
    "memory: 32+",
    "cpus: 2, memory: 8.5+, accelerators: L4",
    "disk_tier: best, ports: [8080, 10020-10040], disk_size: 300",
    "any_of: [{infra: aws, accelerators: {A10G: 4}}, {use_spot: true}]",
    "ordered: [{infra: gcp, accelerators: L4}, {infra: aws, cpus: 4}]",
]


def facts(task: dict[str, Any]) -> dict[str, Any]:
    """What SkyPilot takes from a task: in `resources`, sets as sets, counts as numbers, and amounts as text."""
    resources = dict(task.get("resources") or {})
    if (wanted := resources.get("accelerators")) is not None:
        pairs = wanted.items() if isinstance(wanted, dict) else ((text, None) for text in _listed(wanted))
        named = [_kind_and_count(name, count) for name, count in pairs]
        resources["accelerators"] = frozenset(named) if isinstance(wanted, dict) or len(named) == 1 else named
    amounts = {key: str(resources[key]) for key in ("cpus", "memory") if key in resources}
    return {key: task.get(key) for key in ("envs", "secrets", "num_nodes", "file_mounts")} | {
        "resources": resources | amounts or None
    }


def _listed(wanted: Any) -> list[str]:
    return wanted if isinstance(wanted, list) else [wanted]


def _kind_and_count(name: str, count: Any) -> tuple[str, float]:
    kind, _, written = name.partition(":")
    return kind, float(count or written or 1)


@pytest.mark.parametrize("resources", FACTS)
@pytest.mark.parametrize("engine", ["", "cluster: skypilot\n"])
def test_resources_keep_their_meaning_through_a_run_file(resources: str, engine: str) -> None:
    text = f"name: a\nnum_nodes: 1\nrun: a\nresources: {{{resources}}}\n"
    request = read_run_file(text + engine)
    again = read_run_file(job_in_format(request, "run-file"))
    assert facts(exported_request(request)) == facts(exported_request(again)) == facts(yaml.safe_load(text))


@pytest.mark.parametrize(
    "variables",
    [
        "secrets: {HF_TOKEN: null, WANDB_API_KEY: '', MODE: fast}",
        "secrets: {HF_TOKEN: null}\nenvs: {EPOCHS: '3', USER_NAME: null}",
        "envs: {HF_TOKEN: null}",
        "secrets: {_X: a}\nfile_mounts: {/data: 's3://a', /b: {name: c, store: gcs}}",
    ],
)
def test_secrets_stay_secrets_with_and_without_a_value(variables: str) -> None:
    text = f"name: a\nnum_nodes: 1\nrun: a\n{variables}\n"
    request = read_run_file(text)
    again = read_run_file(job_in_format(request, "run-file"))
    assert facts(exported_request(request)) == facts(exported_request(again)) == facts(yaml.safe_load(text))


def test_secrets_of_the_task_and_of_its_options_are_all_secrets() -> None:
    task = exported("run: a\nsecrets: {A: x, B: y}\nenvs: {C: z}\ncluster: {skypilot: {secrets: [B, C]}}")
    assert (task["secrets"], task.get("envs")) == ({"B": "y", "C": "z", "A": "x"}, None)


def test_a_task_without_cores_leaves_them_to_skypilot() -> None:
    assert "resources" not in exported("num_nodes: 2\nrun: a")
    assert exported("run: a\ncluster: {processes_per_node: 8}")["resources"] == {"cpus": "8+"}


@pytest.mark.parametrize("name", ["jobset", "trainjob", "lsf", "skypilot"])
def test_a_job_says_what_another_format_does_not_keep(name: str) -> None:
    """On stderr, and in the text."""
    text = """
        name: a
        run: a
        resources: {accelerators: {H100: 8, 'A100:0.5'}, use_spot: true}
        file_mounts: {/data: 's3://a'}
        cluster: {slurm: {partition: big}, kubernetes: {image: i, queue: q}}
        """
    request = read_run_file(text)
    options = {
        "slurm": ["partition"],
        "kubernetes": ["queue", "image"] if name in ("lsf", "skypilot") else [],
        "skypilot": ["use_spot", "file_mounts"] if name != "skypilot" else [],
    }
    lost = {f"`cluster.{engine}.{option}` is not kept" for engine, those in options.items() for option in those}
    if name != "skypilot":
        lost |= {
            "`resources.accelerators`: `A100:0.5` becomes a whole",
            "`resources.accelerators`: of `H100:8, A100:0.5`",
        }
    remarks = not_kept(request.run_file, name)
    assert len(remarks) == len(lost) and all(any(one.startswith(begin) for one in remarks) for begin in lost)
    written = job_in_format(request, name)
    assert all(f"# {remark}\n" in written for remark in remarks)
    assert written.startswith("#!/bin/bash\n") or name != "lsf"


def test_a_secret_with_a_value_is_not_written_into_a_manifest() -> None:
    request = read_run_file("run: a\nsecrets: {WORD: abc}\ncluster: {engine: kubernetes, kubernetes: {image: i}}")
    assert "abc" not in job_in_format(request, "jobset")
    assert "secretKeyRef" in job_in_format(request, "jobset")


def test_cloud_and_region_are_one_place() -> None:
    assert exported(TASKS["spot with a bucket"])["resources"]["infra"] == "gcp/us-central1"
    assert exported("run: a\nresources: {region: eu-west-1}")["resources"]["infra"] == "*/eu-west-1"


def test_a_secret_is_a_variable_that_is_not_recorded() -> None:
    run_file, _ = parse_run_file("run: a\nsecrets: {HF_TOKEN: null, MODE: fast}\nenvs: {MODE: slow}", name="t.yaml")
    assert run_file.envs == {"HF_TOKEN": None, "MODE": "slow"}


@pytest.mark.parametrize("key", [*HANDED_ON, *RENTED, "cloud", "image_id"])
def test_every_key_of_resources_is_named_where_it_has_no_effect(key: str) -> None:
    value = {"use_spot": "true", "disk_size": "100", "max_hourly_cost": "3.5"}.get(key, "aws")
    text = f"run: a\nresources:\n  cpus: 1\n  {key}: {value}\n"
    here, there = (parse_run_file(text + where, name="t.yaml")[1].unused for where in ("", "cluster: skypilot\n"))
    assert [note.split(" has no effect")[0] for note in here] == [f"t.yaml:4  resources.{key}"]
    assert there == []


@pytest.mark.parametrize("key", [*TASK_KEYS, "file_mounts"])
def test_every_key_of_a_task_is_named_where_it_has_no_effect(key: str) -> None:
    _, source = parse_run_file(f"run: a\n{key}: {{/data: s3://a}}\n", name="t.yaml")
    assert [note.split(" has no effect on `local`")[0] for note in source.unused] == [f"t.yaml:2  {key}"]


# Keys that published tasks have, each with what becomes of it in the exported task.
@pytest.mark.parametrize(
    ("key", "exported_as"),
    [
        ("gpus: H100:8", {"accelerators": "H100:8"}),
        ("disk_size: 1024GB", {"disk_size": 1024}),
        ("disk_size: 2tb", {"disk_size": 2048}),
        ("spot_recovery: FAILOVER", {"job_recovery": "FAILOVER"}),
        ("instance_type: VM.Standard.E4.Flex$_2_16", {"instance_type": "VM.Standard.E4.Flex$_2_16"}),
        ("priority: 700", {"priority": 700}),
        ("volumes: [{path: /a, disk_size: 9}]", {"volumes": [{"path": "/a", "disk_size": 9}]}),
    ],
)
def test_a_value_is_handed_on_as_skypilot_understands_it(key: str, exported_as: dict[str, Any]) -> None:
    assert exported(f"run: a\nresources:\n  {key}\n")["resources"].items() >= exported_as.items()


@pytest.mark.parametrize(
    ("text", "note"),
    [
        ("resources: {accelerators: T4:0.5}", "t.yaml:2  resources.accelerators: `T4:0.5` becomes a whole accelerator"),
        (
            "resources: {accelerators: [H100:8, A100:8]}\ncluster: {engine: kubernetes, kubernetes: {image: i}}",
            "t.yaml:2  resources.accelerators: of `H100:8, A100:8` the first is requested",
        ),
        ("resources: {spot_recovery: none}", "t.yaml:2  resources.spot_recovery has no effect on `local`"),
        ("workdir: {url: https://a/b.git, ref: main}", "t.yaml:2  workdir has no effect on `local`: Trainworks clones"),
        (
            "resources: {ordered: [{infra: aws, accelerators: A10G}, {infra: gcp, accelerators: L4}]}",
            "t.yaml:2  resources.ordered has no effect on `local`: SkyPilot alone chooses among its entries; what one",
        ),
        ("managed_secrets: [token]", "t.yaml:2  managed_secrets has no effect on `local`"),
    ],
)
def test_a_change_or_a_key_without_effect_is_named(text: str, note: str) -> None:
    _, source = parse_run_file(f"run: a\n{text}\n", name="t.yaml")
    assert len(source.unused) == 1 and source.unused[0].startswith(note)


@pytest.mark.parametrize("key", ["file_mounts: {/a: s3://b}", "secrets: {A: null}", "volumes: {/a: b}", "num_nodes: 1"])
def test_a_task_starts_once_per_node_by_any_key_that_it_alone_has(key: str) -> None:
    assert exported(f"run: a\n{key}")["run"] == "a"
    assert exported("run: a")["run"] != "a"


def test_a_repository_as_the_working_folder_is_cloned_by_skypilot() -> None:
    assert exported("run: a\nworkdir: {url: https://a/b.git}")["workdir"] == {"url": "https://a/b.git"}


def test_what_the_run_file_says_in_cluster_skypilot_counts() -> None:
    text = "run: a\nresources: {use_spot: true, infra: aws}\ncluster: {engine: skypilot, skypilot: {infra: [gcp]}}"
    run_file, _ = parse_run_file(text, name="t.yaml")
    assert (run_file.cluster.skypilot.infra, run_file.cluster.skypilot.use_spot) == (("gcp",), True)


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("run: a\nresources:\n  disk_size: huge\n", "t.yaml:3"),
        ("run: a\nresources:\n  infra: 'aws; rm'\n", "t.yaml:3"),
        ("run: a\nresources:\n  disk_teir: best\n", "t.yaml:3"),
        ("run: a\nresources:\n  gpus: A100\n  accelerators: A100\n", "t.yaml:3"),
        ("run: a\nresources:\n  accelerators: A100:1.5\n", "t.yaml:3"),
        ("run: a\nresources:\n  instance_type: a;b\n", "t.yaml:3"),
        ("run: a\nworkdir: {ref: main}\n", "t.yaml:2"),
        ("setup: pip install x\nresources: {cpus: 1}\n", "t.yaml:1"),
        ("run: a\nfile_mounts: 3\n", "t.yaml:2"),
        ("run: a\nfile_mounts:\n  /data: 3\n", None),
        ("run: a\nsecrets: 3\n", "t.yaml:2"),
        ("run: a\nservice:\n  replicas: 2\n", "t.yaml:2"),
    ],
)
def test_a_wrong_value_is_refused_at_its_line(text: str, place: str | None) -> None:
    if place is None:  # a mount with options is SkyPilot's to judge
        assert parse_run_file(text, name="t.yaml")[0].cluster.skypilot.mounts == {"/data": 3}
        return
    with pytest.raises(RunFileError) as refused:
        parse_run_file(text, name="t.yaml")
    assert [problem.place.split()[0] for problem in refused.value.problems if problem.place] == [place]


def test_a_workload_has_no_keys_of_a_task() -> None:
    goal = "data: {source: python-stdlib, sequence_length: 64}, global_batch: 8, train_for: 1 epochs"
    workload = f"workload: {{task: causal-lm, model: {{hf: gpt2}}, {goal}}}"
    with pytest.raises(RunFileError, match="file_mounts"):
        parse_run_file(f"name: a\n{workload}\nfile_mounts: {{/a: s3://b}}\n", name="t.yaml")
