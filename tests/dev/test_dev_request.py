"""What `trainworks dev` submits and prints, without starting it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fakes import resolved_command
from trainworks.agent.development.serving import Place, find_program
from trainworks.agent.development.ssh import sshd_config
from trainworks.api.developing.access import access_of, ssh_config
from trainworks.api.developing.dev import prepare_dev, public_keys
from trainworks.api.run_handle import Run
from trainworks.config.run_file import RunFile
from trainworks.errors import ArgumentError, EnvironmentProblem, UsageError
from trainworks.record.dev_environment import DevServer
from trainworks.record.run_dir import RunDir

KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIKqD3dhm0A8q53IWoS8xaW ada@laptop"
SERVER = DevServer(kind="ssh", host="n1", address="10.0.0.1", port=2201, user="ada", host_key="ssh-ed25519 AAAA")
RUN_FILE = """\
name: big
run: python train.py
num_nodes: 2
resources: {accelerators: h100:8, memory: 64}
envs: {HF_HOME: /data/hf}
cluster: {engine: slurm, slurm: {partition: gpu, login: ada@login1}}
job: {idle: {stop_after: 2h}}
"""


def prepared(folder: Path, **options: object) -> RunFile:
    return prepare_dev(folder=folder, **({"keys": [KEY]} | options)).resolved.run_file


def test_a_run_file_gives_all_but_what_it_runs(tmp_path: Path) -> None:
    path = tmp_path / "big.yaml"
    path.write_text(RUN_FILE)
    found = prepared(tmp_path, run_file=path, gpus="2", time_limit="8h")
    assert (found.name, found.nodes, found.cluster.slurm.partition) == ("dev", 2, "gpu")
    assert str(found.resources.accelerators[0]) == "gpu:2" and found.resources.memory == 64
    assert (found.job.time_limit, found.job.idle.stop_after) == (8 * 3600, 2 * 3600)
    assert found.envs == {"HF_HOME": "/data/hf", "TRAINWORKS_DEV_KEYS": KEY}
    assert found.starts == "per_node"


def test_without_a_run_file_it_is_one_core_for_thirty_idle_minutes(tmp_path: Path) -> None:
    found = prepared(tmp_path)
    assert (found.resources.cpus, found.resources.accelerators, found.job.idle.stop_after) == (1, None, 1800)


def test_the_command_is_that_of_the_node(tmp_path: Path) -> None:
    cluster = tmp_path / "pods.yaml"
    cluster.write_text("name: p\nrun: 'true'\ncluster: {engine: kubernetes, kubernetes: {image: a/b, volume: runs}}\n")
    request = prepare_dev(cluster=str(cluster), keys=[KEY], folder=tmp_path).request
    assert request.command == ["python", "-P", "-m", "trainworks.agent.development.node", "ssh"]


@pytest.mark.parametrize(
    ("options", "option", "message"),
    [
        ({"gpus": "none at all"}, "--gpus", "does not name an accelerator"),
        ({"memory": "much"}, "--memory", "is not a number"),
        ({"idle": "soon"}, "--idle", "soon"),
        ({"time_limit": "-1h"}, "--time-limit", "-1h"),
        ({"name": "a/b"}, "--name", "invalid run name"),
        ({"keys": []}, "--key", "no public key may log in"),
    ],
)
def test_a_wrong_value_names_its_option(tmp_path: Path, options: dict, option: str, message: str) -> None:
    with pytest.raises(ArgumentError, match=message) as caught:
        prepared(tmp_path, **options)
    assert caught.value.option == option


def test_nodes_without_trainworks_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="needs Trainworks on the nodes"):
        prepared(tmp_path, cluster="skypilot")


def test_public_keys_are_those_of_the_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert public_keys() == ([], None)
    (tmp_path / ".ssh").mkdir()
    (tmp_path / ".ssh" / "id_ed25519.pub").write_text(KEY + "\n")
    (tmp_path / ".ssh" / "id_old.pub").write_text("command=evil\nssh-rsa A")
    assert public_keys() == ([KEY], None)
    (tmp_path / "mine").write_text("private")
    (tmp_path / "mine.pub").write_text(KEY)
    assert public_keys(tmp_path / "mine") == public_keys(tmp_path / "mine.pub") == ([KEY], tmp_path / "mine")
    with pytest.raises(ArgumentError, match="is not a public key"):
        public_keys(tmp_path / ".ssh" / "id_old.pub")


def test_sessions_get_the_variables_of_the_job_in_one_line(tmp_path: Path) -> None:
    env = {"CUDA_VISIBLE_DEVICES": "0,1", "A": 'a "b" \\c', "LINES": "a\nb", "HOME": "/h", "BASH_FUNC_x%%": "() {"}
    place = Place(RunDir(tmp_path), "127.0.0.1", 2201, "ada", tmp_path)
    lines = sshd_config(place, env).splitlines()
    assert [line for line in lines if line.startswith("SetEnv")] == [
        'SetEnv "A=a \\"b\\" \\\\c" "CUDA_VISIBLE_DEVICES=0,1"'
    ]
    assert {"AllowUsers ada", "PasswordAuthentication no", "ListenAddress 127.0.0.1"} <= set(lines)


def test_an_address_that_would_begin_another_line_is_no_address() -> None:
    with pytest.raises(ValueError, match="address"):
        DevServer.model_validate(SERVER.model_dump() | {"address": "h\n    ProxyCommand evil"})


def test_a_cluster_behind_a_login_node_is_reached_through_it() -> None:
    block = ssh_config("dev-1", SERVER, Path("/r/100% mine/known_hosts"), jump="ada@login1")
    assert "    ProxyJump ada@login1\n" in block and '"/r/100%% mine/known_hosts"' in block
    assert "# from a machine outside of the cluster: ProxyJump" in ssh_config("dev-1", SERVER, Path("/r/known_hosts"))


class PodRun(Run):
    """A run in pods, whose files are not here."""

    printed: tuple[str, ...] = ()

    @property
    def has_remote_output(self) -> bool:
        return True

    def output(self, **_: object):
        return iter(self.printed)


def on_pods(run_dir: RunDir, server: DevServer) -> PodRun:
    kubernetes = {"image": "a/b", "namespace": "ml", "context": "prod"}
    run_file = {"name": "dev", "run": "x", "cluster": {"engine": "kubernetes", "kubernetes": kubernetes}}
    run_dir.write_resolved(resolved_command(run_dir.run_id, run_file=RunFile.model_validate(run_file)))
    run = PodRun(run_dir)
    run.printed = ("setup", "trainworks-dev {torn", f"[rank 0] trainworks-dev {server.model_dump_json()}")
    return run


def test_pods_are_reached_by_port_forward(run_dir: RunDir) -> None:
    server = SERVER.model_copy(update={"host": "dev-1-ab-node-0-0", "address": "127.0.0.1"})
    run = on_pods(run_dir, server)
    access = access_of(run)
    kubectl = "kubectl --context prod --namespace ml"
    assert access.forward == f"{kubectl} port-forward job/dev-1-ab-node-0 2201"
    assert "HostName 127.0.0.1" in access.ssh_config
    assert access.ssh_config_file.read_text() == access.ssh_config
    run.printed = ()
    assert access_of(run) is None


def test_the_token_of_a_pod_stays_there(run_dir: RunDir) -> None:
    update = {"kind": "jupyter", "host": "d-0-0", "address": "127.0.0.1", "host_key": None, "token_file": "/runs/d/t"}
    access = access_of(on_pods(run_dir, SERVER.model_copy(update=update)))
    assert access.url == "http://127.0.0.1:2201/lab"
    assert access.token_command == "kubectl --context prod --namespace ml exec job/d-0 -- cat /runs/d/t"


def test_a_missing_sshd_is_named_with_its_package() -> None:
    with pytest.raises(EnvironmentProblem, match=r"`sshd-x` is not installed on .*; install openssh-server there"):
        find_program("sshd-x", "openssh-server")
