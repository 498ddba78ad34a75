"""The rendered project: the real programs accept its files, and so do our own rules."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from tests.ports import free_port
from trainworks.api.deploying import render_stack
from trainworks.api.proving.review import review
from trainworks.cli.app import app
from trainworks.deploy.project import _static
from trainworks.errors import RunFileError, UsageError

EXAMPLE = Path("examples/cluster/stack.yaml")
ROCE = Path("examples/cluster/stack-roce.yaml")
STORAGE = "roles/storage/files"
SLURM = "roles/scheduler/files"
NO_SLURM = shutil.which("slurmctld") is None or os.geteuid() != 0
ANSIBLE = Path(sys.executable).with_name("ansible-playbook")


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The project of the example, written by the command."""
    folder = tmp_path_factory.mktemp("project")
    done = CliRunner().invoke(app, ["deploy", "render", str(EXAMPLE), "--into", str(folder)])
    assert done.exit_code == 0, done.output
    return folder


def changed(tmp_path: Path, example: Path = EXAMPLE, **changes: str) -> Mapping[str, str]:
    """The project of an example with other texts."""
    text = example.read_text()
    for old, new in changes.items():
        assert old in text
        text = text.replace(old, new)
    (tmp_path / "stack.yaml").write_text(text)
    return render_stack(tmp_path / "stack.yaml")


def test_slurm_and_storage_have_a_reason_for_each_line_that_is_not_obvious(project: Path, golden) -> None:
    names = [
        f"{SLURM}/{name}"
        for name in (
            "slurm.conf",
            "gres.conf",
            "cgroup.conf",
            "topology.conf",
            "nodes_gpu/prolog.sh",
            "nodes_gpu/epilog.sh",
        )
    ]
    names += [f"{STORAGE}/{name}" for name in ("store1/exports", "shared.mount", "scratch.mount")]
    names += ["roles/scheduler/templates/slurmdbd.conf.j2", "cloud-init/user-data.yaml"]
    golden("deploy_files.txt", "\n".join(f"# --- {name}\n{(project / name).read_text()}" for name in names))


def test_ansible_accepts_the_playbooks_and_the_inventory(project: Path, tmp_path: Path) -> None:
    environment = os.environ | {"ANSIBLE_HOME": str(tmp_path), "ANSIBLE_NOCOLOR": "1"}
    playbooks = sorted({path.name for path in project.glob("*.yaml")} - {"inventory.yaml"})
    assert {"site.yaml", "backup.yaml", "restore.yaml", "rotate.yaml", "remove.yaml"} <= set(playbooks)
    command = [ANSIBLE, "--syntax-check", *playbooks]
    done = subprocess.run(command, cwd=project, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "WARNING" not in done.stderr
    groups = yaml.safe_load((project / "inventory.yaml").read_text())["all"]["children"]
    assert list(groups["compute"]["hosts"]) == ["gpu01", "gpu02", "gpu03", "gpu04"]


def test_accelerator_hours_of_an_account_are_minutes_of_slurm_that_begin_anew_each_month(tmp_path: Path) -> None:
    hours = "max_gpus: 48, accelerator_hours_per_month: 2000.5"
    files = changed(tmp_path, ROCE, **{"max_gpus: 48": hours})
    lines = files[f"{SLURM}/slurm.conf"].splitlines()
    assert {"PriorityDecayHalfLife=0", "PriorityUsageResetPeriod=MONTHLY"} <= set(lines)
    (script,) = [text for name, text in files.items() if name.endswith("accounts.sh")]
    assert "name=vision cluster=hall-b set GrpTRESMins=gres/gpu=120030" in script
    assert "MONTHLY" not in changed(tmp_path, ROCE)[f"{SLURM}/slurm.conf"]


@pytest.mark.parametrize(
    ("limits", "expected"),
    [
        (("7-00:00:00", "30:00"), (10080, 420)),
        (("1-00:00:00", "30:00"), None),
        (("UNLIMITED", "30:00"), (43200, 1800)),
        (("60-00:00:00", "30:00"), (43200, 1800)),
        (("30:00", "2-12"), (3600, 150)),
    ],
)
def test_backfill_sees_the_end_of_the_longest_jobs(
    tmp_path: Path, limits: tuple[str, str], expected: tuple[int, int] | None
) -> None:
    changes = {"max_time: 7-00:00:00": f"max_time: {limits[0]}", 'max_time: "30:00"': f'max_time: "{limits[1]}"'}
    lines = changed(tmp_path, EXAMPLE, **changes)[f"{SLURM}/slurm.conf"].splitlines()
    found = [line for line in lines if line.startswith("SchedulerParameters=")]
    wanted = [] if expected is None else [f"SchedulerParameters=bf_window={expected[0]},bf_resolution={expected[1]}"]
    assert found == wanted


@pytest.mark.parametrize(
    ("system", "driver", "packages", "pin"),
    [
        ("Ubuntu 24.04", "580", ["nvidia-driver-580-server-open", "nvidia-fabricmanager-580"], ""),
        ("Ubuntu 24.04", "580.126.18", ["nvidia-driver-580-server-open=580.126.18-*"], "580.126.18-*"),
        ("Ubuntu 24.04", "580.126", ["nvidia-fabricmanager-580=580.126.*"], "580.126.*"),
        ("Debian 12", "580.126.18", ["nvidia-open-580=580.126.18-*"], "580.126.18-*"),
        ("Rocky 9", "580.126.18", ["nvidia-driver-580.126.18-*", "nvidia-fabric-manager-580.126.18-*"], "580.126.18-*"),
        ("Rocky 9", "580", ["nvidia-driver-580.*"], ""),
    ],
)
def test_the_packages_have_the_version_of_the_driver(
    tmp_path: Path, system: str, driver: str, packages: list[str], pin: str
) -> None:
    changes = {"Ubuntu 24.04": system, 'driver: "580"': f'driver: "{driver}"'}
    if system == "Rocky 9":
        changes['monitoring: {page: "https://pager.example/hook"}\n'] = ""
        changes |= {", monitoring]": "]", '"2.14", cuda: "13.0"': '"2.8", cuda: "12.8"'}
    variables = yaml.safe_load(changed(tmp_path, EXAMPLE, **changes)["group_vars/nodes_gpu.yaml"])
    assert set(packages) <= set(variables["gpu_driver_packages"])
    assert variables["gpu_driver_version"] == pin


def test_an_apply_with_another_driver_replaces_the_one_that_was_held(project: Path) -> None:
    tasks = {task["name"]: task for task in yaml.safe_load((project / "roles/gpu/tasks/main.yaml").read_text())}
    install = tasks["Install the driver"]["ansible.builtin.package"]
    assert install["allow_downgrade"] and "apt" in install["allow_change_held_packages"]
    pin, no_pin = tasks["Prefer the version of the driver"], tasks["Follow the branch where no version is named"]
    assert pin["ansible.builtin.copy"]["dest"] == no_pin["ansible.builtin.file"]["path"]


def test_every_tag_looks_at_the_system_and_reads_the_lists_of_packages_first(project: Path) -> None:
    first = yaml.safe_load((project / "site.yaml").read_text())[0]
    assert (first["hosts"], [task["tags"] for task in first["pre_tasks"]]) == ("all", [["always"]] * 3)
    assert first["pre_tasks"][-1]["ansible.builtin.apt"] == {"update_cache": True}


def test_our_own_rules_find_nothing_in_the_project(project: Path) -> None:
    assert review(project).findings == []


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd-analyze")
def test_systemd_accepts_the_mounts(project: Path) -> None:
    units = sorted((project / STORAGE).glob("*.mount"))
    assert [unit.name for unit in units] == ["datasets.mount", "scratch.mount", "shared.mount"]
    done = subprocess.run(["systemd-analyze", "verify", *units], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.skipif(shutil.which("promtool") is None, reason="needs promtool of the package prometheus")
def test_prometheus_accepts_its_files(project: Path) -> None:
    files = project / "roles/monitoring/files"
    (files / "exporter.token").write_text("0" * 32)  # the role draws one
    done = subprocess.run(["promtool", "check", "config", files / "prometheus.yml"], capture_output=True, check=False)
    assert done.returncode == 0, done.stdout


@pytest.mark.skipif(shutil.which("cloud-init") is None, reason="needs the package cloud-init")
def test_cloud_init_accepts_its_user_data(project: Path) -> None:
    command = ["cloud-init", "schema", "--config-file", project / "cloud-init/user-data.yaml"]
    subprocess.run(command, check=True)


@pytest.mark.slurm
@pytest.mark.skipif(NO_SLURM, reason="needs root and Slurm's packages")
@pytest.mark.parametrize(("example", "kind"), [(EXAMPLE, "h100"), (ROCE, "h200")], ids=["first", "with power saving"])
def test_slurmctld_and_slurmd_accept_the_configuration(tmp_path: Path, example: Path, kind: str) -> None:
    network = "10.10" if example == EXAMPLE else "10.20"
    nodes = {
        f"{network}.0.0/16": "127.0.0.0/8",
        f"{network}.0.10": "127.0.0.1",
        f"{network}.0.20": "127.0.0.2",
        f"{network}.1.1": "127.1.1.1",
    }
    files = changed(tmp_path, example, **nodes)
    for path in (path for path in files if path.startswith(SLURM)):
        (tmp_path / Path(path).name).write_text(on_this_machine(files[path], tmp_path))
        (tmp_path / Path(path).name).chmod(0o755)
    gres = subprocess.run(
        ["slurmd", "-G", "-f", tmp_path / "slurm.conf", "-N", "gpu01"], capture_output=True, text=True, check=False
    )
    assert f"Name=gpu Type={kind} Count=8" in gres.stdout + gres.stderr
    said = slurmctld_says(tmp_path)
    # no mail is installed, no state was saved, and a busy machine is slow to tell the time
    expected = ("MailProg", "state", "High latency")
    errors = [line for line in said if "error" in line]
    assert [line for line in errors if not any(word in line for word in expected)] == []


def on_this_machine(text: str, folder: Path) -> str:
    """Files of Slurm without its user, its munge, its database, its folders and its GPUs."""
    replaced = {
        "SlurmctldHost=login1": f"SlurmctldHost={socket.gethostname().partition('.')[0]}",
        "SlurmUser=slurm": "SlurmUser=root",
        "auth/munge": "auth/none",
        "accounting_storage/slurmdbd": "accounting_storage/none",
        "AccountingStorageEnforce=": "# ",
        "AccountingStorageTRES=": "# ",
        "JobAcctGatherType=": "# ",
        "/var/spool": str(folder),
        "/var/log/slurm": str(folder),
        "/dev/nvidia": "/dev/tty",
        "/etc/slurm/": f"{folder}/",
        "SuspendExcStates=DRAIN\n": "",  # of Slurm 23.02
        "PreemptType=preempt/qos\nPreemptMode=REQUEUE\n": "",  # a QOS is in the database
    }
    for old, new in replaced.items():
        text = text.replace(old, new)
    return f"SlurmctldPort={free_port()}\nSlurmctldPidFile={folder}/pid\n{text}" if "ClusterName" in text else text


def slurmctld_says(folder: Path) -> list[str]:
    """What slurmctld prints until it runs, or ends."""
    (folder / "slurmctld").mkdir()
    command = ["slurmctld", "-D", "-c", "-v", "-f", folder / "slurm.conf"]
    said: list[str] = []
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as daemon:
        assert daemon.stderr is not None
        for line in daemon.stderr:
            said.append(line)
            if "Running as primary controller" in line:
                break
        daemon.terminate()
        daemon.stderr.read()
    assert "Running as primary controller" in said[-1], "".join(said)
    return said


def test_a_refused_stack_is_not_rendered(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"TW732.*R535") as raised:
        changed(tmp_path, **{'driver: "580"': 'driver: "535"', 'cuda: "13.0"': 'cuda: "12.6"'})
    assert raised.value.hint is not None
    assert "R580" in raised.value.hint


def test_what_pip_compiled_is_no_part_of_the_project(tmp_path: Path) -> None:
    (tmp_path / "plugins/__pycache__").mkdir(parents=True)
    (tmp_path / "plugins/__pycache__/lines.cpython-311.pyc").write_bytes(b"\xa7\x0d")
    (tmp_path / "plugins/lines.py").write_text("pass\n")
    assert dict(_static(tmp_path)) == {"plugins/lines.py": "pass\n"}


def test_rocky_has_other_packages_and_no_prometheus(tmp_path: Path) -> None:
    rocky = {"Ubuntu 24.04": "Rocky 9", '"2.14", cuda: "13.0"': '"2.8", cuda: "12.8"'}
    with pytest.raises(RunFileError, match="no packages of Prometheus"):
        changed(tmp_path, **rocky)
    files = changed(tmp_path, **rocky, **{'monitoring: {page: "https://pager.example/hook"}': "", ", monitoring]": "]"})
    variables = yaml.safe_load(files["group_vars/all.yaml"])
    assert variables["slurm_packages"]["controller"] == ["slurm-slurmctld"]
    assert "nvidia-fabric-manager-580.*" in files["group_vars/nodes_gpu.yaml"]


def test_nodes_of_a_large_network_are_grouped_by_its_leaves(tmp_path: Path) -> None:
    text = changed(tmp_path, **{"gpu[01-04]": "gpu[001-128]"})[f"{SLURM}/topology.conf"]
    switches = [line for line in text.splitlines() if "Nodes=" in line]
    assert len(switches) == 4
    assert switches[0].endswith("gpu032")
    assert "SwitchName=spine Switches=leaf[1-4]" in text


def test_secrets_are_drawn_where_ansible_runs_and_are_in_no_file(project: Path) -> None:
    assert "secrets/" in (project / ".gitignore").read_text()
    variables = yaml.safe_load((project / "group_vars/all.yaml").read_text())
    assert variables["slurm_database_password"].startswith("{{ lookup('ansible.builtin.password', 'secrets/")
