"""Groups of nodes: each gets the driver, the rails, the checks and the partitions of its own hardware."""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest
import yaml

from tests.deploy.test_project import ANSIBLE, NO_SLURM, on_this_machine, slurmctld_says
from trainworks.api.deploying import check_stack, render_stack
from trainworks.catalog.stack_cluster import read_cluster
from trainworks.config.stack import load_stack
from trainworks.deploy.delivered import delivered_files
from trainworks.deploy.playbook import Answer
from trainworks.deploy.project import exporters
from trainworks.deploy.slurm_hooks import NodeCheck, prolog
from trainworks.deploy.verification import facts_of, probe, services_of, verify
from trainworks.errors import RunFileError

EXAMPLE = Path("examples/cluster/stack-groups.yaml")
SLURM, FABRIC = "roles/scheduler/files", "roles/fabric/files"
STACK, _ = load_stack(EXAMPLE)


@pytest.fixture(scope="module")
def files() -> Mapping[str, str]:
    return render_stack(EXAMPLE)


@pytest.fixture(scope="module")
def variables(files) -> dict[str, dict[str, object]]:
    """Variables of each group, those of all hosts below them."""
    every = yaml.safe_load(files["group_vars/all.yaml"])
    names = ("cpu", "h100", "a100", "mi")
    return {name: every | yaml.safe_load(files[f"group_vars/nodes_{name}.yaml"]) for name in names}


def changed(tmp_path: Path, *changes: tuple[str, str]) -> Path:
    text = EXAMPLE.read_text()
    for old, new in changes:
        assert old in text
        text = text.replace(old, new, 1)
    (tmp_path / "stack.yaml").write_text(text)
    return tmp_path / "stack.yaml"


def lines_of(text: str, start: str) -> dict[str, dict[str, str]]:
    """Words of the lines that begin so, by the value of the first."""
    found = [line.split() for line in text.splitlines() if line.startswith(start)]
    return {words[0].partition("=")[2]: dict(word.split("=", 1) for word in words[1:]) for words in found}


def test_a_group_gets_the_driver_of_its_own_gpus_and_one_without_gpus_none(variables) -> None:
    packages = {name: each["gpu_driver_packages"] for name, each in variables.items()}
    assert packages["cpu"] == []
    assert "nvidia-driver-580-server-open" in packages["h100"]
    assert "nvidia-driver-580-server-open=580.126.18-*" in packages["a100"]
    assert packages["mi"] == ["amdgpu-dkms", "rocm-core=6.4.*", "rocm-smi-lib"]
    assert variables["h100"]["gpu_fabric_manager"] is True
    assert variables["mi"]["gpu_fabric_manager"] is False


def test_rails_have_the_names_and_the_number_of_their_group(files, variables) -> None:
    adapters = {name: each.get("fabric_rails", 0) for name, each in variables.items()}
    assert adapters == {"cpu": 0, "h100": 8, "a100": 4, "mi": 8}
    assert variables["cpu"]["fabric_link"] == ""
    assert "NCCL_IB_HCA==mlx5_0,mlx5_1,mlx5_2,mlx5_3\n" in files[f"{FABRIC}/nodes_a100/nccl.conf"]
    assert (variables["h100"]["nccl_settings"], variables["mi"]["nccl_settings"]) == (
        "/etc/nccl.conf",
        "/etc/rccl.conf",
    )
    rails = [name for name in files if name.endswith(".network")]
    assert len(rails) == 2 * (8 + 4 + 8)
    assert not any("/cpu" in name for name in rails)
    addresses = [re.search("Address=(.+)", files[name])[1] for name in rails]
    assert len(set(addresses)) == len(rails)


def test_each_group_is_checked_for_its_own_gpus(files) -> None:
    scripts = {name: files[f"{SLURM}/nodes_{name}/prolog.sh"] for name in ("cpu", "h100", "a100", "mi")}
    assert "nvidia-smi" in scripts["h100"] and "-eq 8 ]" in scripts["h100"]
    assert "accelerators" not in scripts["cpu"]
    assert "nvidia-smi" not in scripts["mi"] and "not 8 accelerators" in scripts["mi"]
    assert all("mountpoint -q /shared" in script for script in scripts.values())
    epilogs = {name: files[f"{SLURM}/nodes_{name}/epilog.sh"] for name in ("cpu", "h100")}
    assert ["nvidia-smi" in epilogs[name] for name in ("cpu", "h100")] == [False, True]


def test_gpus_of_amd_are_counted_as_their_driver_shows_them(tmp_path: Path) -> None:
    for number in (128, 129):
        shown = tmp_path / f"class/drm/renderD{number}/device/mem_info_vram_total"
        shown.parent.mkdir(parents=True)
        shown.write_text("206141652992\n")

    def code(count: int) -> int:
        script = prolog(NodeCheck(accelerators=count, vendor="amd")).replace("/sys/", f"{tmp_path}/")
        return subprocess.run(["bash", "-c", script], capture_output=True, check=False).returncode

    assert (code(2), code(8)) == (0, 1)


def test_a_partition_has_its_nodes_limits_and_the_share_of_a_gpu(files) -> None:
    found = lines_of(files[f"{SLURM}/slurm.conf"], "PartitionName=")
    assert {name: each["Nodes"] for name, each in found.items()} == {
        "train": "gpu[1-2],old[1-2]",
        "spare": "gpu[1-2],old[1-2]",
        "amd": "mi[1-2]",
        "prepare": "cpu1,cpu2",
    }
    train, spare, amd, prepare = (found[name] for name in ("train", "spare", "amd", "prepare"))
    assert (train["DefaultTime"], train["PriorityTier"], train["PreemptMode"]) == ("1-00:00:00", "2", "OFF")
    assert (spare["PreemptMode"], spare["GraceTime"]) == ("REQUEUE", "120")
    # of the nodes with the fewest: 2 sockets of 56 cores with two threads, and 1000 GiB, for 8 GPUs
    assert (train["DefCpuPerGPU"], train["DefMemPerGPU"]) == (str(2 * 56 * 2 // 8), str(1000 * 1024 // 8))
    assert (amd["AllowAccounts"], amd["AllowQos"], amd["MaxNodes"]) == ("research,vision", "normal", "2")
    assert "DefCpuPerGPU" not in prepare
    assert int(amd["DefMemPerCPU"]) > 500 * 1024 // 256
    assert "SchedulerParameters=bf_window=10080," in files[f"{SLURM}/slurm.conf"]


def test_a_group_without_drives_has_no_scratch_and_another_its_own(files, variables) -> None:
    assert {name: each["scratch_at"] for name, each in variables.items()} == {
        "cpu": "",
        "h100": "/scratch",
        "a100": "/scratch",
        "mi": "/scratch",
    }
    arrays = {each["group"]: (each["device"], each["options"]) for each in variables["cpu"]["storage_arrays"]}
    one = ("/dev/nvme1n1", [])
    assert arrays == {"nodes_h100": one, "nodes_a100": one, "nodes_mi": ("/dev/md/scratch", ["--level=0"])}
    mounted = {name: "mountpoint -q /scratch" in files[f"{SLURM}/nodes_{name}/prolog.sh"] for name in variables}
    assert mounted == {"cpu": False, "h100": True, "a100": True, "mi": True}
    delivered = delivered_files(STACK, files, {})
    units = {host: each.get("/etc/systemd/system/scratch.mount") for host, each in delivered.items()}
    sources = {host: re.search("What=(.+)", str(unit.text))[1] for host, unit in units.items() if unit is not None}
    assert sources == {
        **dict.fromkeys(("gpu1", "gpu2", "old1", "old2"), "/dev/nvme1n1"),
        **dict.fromkeys(("mi1", "mi2"), "/dev/md/scratch"),
    }
    for fact in variables["cpu"]["mounts"]:
        assert f"roles/storage/files/{fact['file']}" in files


def test_a_job_finds_the_scratch_of_the_node_that_it_is_on(tmp_path: Path) -> None:
    at = changed(tmp_path, ("devices: [/dev/nvme0n1, /dev/nvme1n1]", f"devices: [/dev/sdb], at: {tmp_path}/local"))
    script = render_stack(at)[f"{SLURM}/task_prolog.sh"]
    (tmp_path / "local/jobs/12").mkdir(parents=True)
    for job, printed in (("12", f"export TMPDIR={tmp_path}/local/jobs/12\n"), ("13", "")):
        command = ["bash", "-c", script]
        done = subprocess.run(command, env={"SLURM_JOB_ID": job}, capture_output=True, text=True, check=True)
        assert done.stdout == printed


def test_kernel_arguments_are_those_of_the_group_or_of_the_stack(tmp_path: Path, variables) -> None:
    assert {name: each["kernel_arguments"] for name, each in variables.items()} == {
        "cpu": [],
        "h100": [],
        "a100": [],
        "mi": ["iommu=pt"],
    }
    everywhere = ("monitoring: {}", "kernel_arguments: [amd_iommu=off]\nmonitoring: {}")
    found = render_stack(changed(tmp_path, everywhere, ("scratch: none ", "kernel_arguments: none ")))
    arguments = {
        name: yaml.safe_load(found[f"group_vars/nodes_{name}.yaml"])["kernel_arguments"]
        for name in ("cpu", "a100", "mi")
    }
    assert arguments == {"cpu": [], "a100": ["amd_iommu=off"], "mi": ["iommu=pt"]}


def test_jobs_take_nodes_without_gpus_first_and_leave_the_system_its_part(files, tmp_path: Path) -> None:
    nodes = lines_of(files[f"{SLURM}/slurm.conf"], "NodeName=")
    assert {name: each["Weight"] for name, each in nodes.items()} == {
        "cpu[1-2]": "1",
        "gpu[1-2]": "100",
        "old[1-2]": "100",
        "mi[1-2]": "100",
    }
    assert (nodes["mi[1-2]"]["CoreSpecCount"], nodes["mi[1-2]"]["MemSpecLimit"]) == ("4", str(32 * 1024))
    assert "CoreSpecCount" not in nodes["old[1-2]"]
    amd = lines_of(files[f"{SLURM}/slurm.conf"], "PartitionName=")["amd"]
    # 192 cores of two threads less 4, and 2200 GiB less 32, for 8 GPUs
    assert (amd["DefCpuPerGPU"], amd["DefMemPerGPU"]) == (str(188 * 2 // 8), str((2200 - 32) * 1024 // 8))
    own = changed(tmp_path, ("name: a100", "name: a100\n    weight: 50"))
    assert lines_of(render_stack(own)[f"{SLURM}/slurm.conf"], "NodeName=")["old[1-2]"]["Weight"] == "50"


def test_a_plan_fills_the_memory_that_jobs_get(tmp_path: Path) -> None:
    whole = read_cluster(f"{EXAMPLE}:h100").node
    own = read_cluster(
        f"{changed(tmp_path, ('machine: DGX H100', 'machine: DGX H100, reserved_memory: 100 GiB'))}:h100"
    )
    assert whole is not None and whole.host_memory_bytes is not None and own.node is not None
    assert own.node.host_memory_bytes == whole.host_memory_bytes - 100 * 2**30
    mi = read_cluster(f"{EXAMPLE}:mi").node
    assert mi is not None and mi.host_memory_bytes == (2200 - 32) * 2**30


def test_a_cluster_of_one_kind_has_no_weights() -> None:
    assert " Weight=" not in render_stack(EXAMPLE.with_name("stack.yaml"))[f"{SLURM}/slurm.conf"]


def test_gres_names_the_devices_of_each_vendor_and_the_cores_that_are_known(files) -> None:
    lines = [line for line in files[f"{SLURM}/gres.conf"].splitlines() if not line.startswith("#")]
    assert lines == [
        "NodeName=gpu[1-2] Name=gpu Type=h100 File=/dev/nvidia[0-7]",
        "NodeName=old[1-2] Name=gpu Type=a100 File=/dev/nvidia[0-3] Cores=0-63",
        "NodeName=old[1-2] Name=gpu Type=a100 File=/dev/nvidia[4-7] Cores=64-127",
        "NodeName=mi[1-2] Name=gpu Type=mi300x File=/dev/dri/renderD[128-135] Flags=amd_gpu_env",
    ]


def test_each_library_finds_the_gpus_of_its_vendor(tmp_path: Path) -> None:
    path = changed(
        tmp_path, ('{rocm: "6.4"}', '{rocm: "6.4", detect: rsmi}'), ('{driver: "580"}', '{driver: "580", detect: nvml}')
    )
    gres = render_stack(path)[f"{SLURM}/gres.conf"]
    assert "NodeName=mi[1-2] AutoDetect=rsmi\n" in gres
    assert "NodeName=gpu[1-2] AutoDetect=nvml\n" in gres


def test_controllers_follow_each_other_and_share_their_state(files, variables) -> None:
    conf = files[f"{SLURM}/slurm.conf"]
    hosts = [line for line in conf.splitlines() if line.startswith("SlurmctldHost=")]
    assert hosts == ["SlurmctldHost=ctl1(10.30.0.1)", "SlurmctldHost=ctl2(10.30.0.2)"]
    assert "StateSaveLocation=/shared/slurm\n" in conf
    assert variables["h100"]["slurm_state"] == "/shared/slurm"
    assert [name for name, options in exporters(STACK).items() if "queue" in options] == ["ctl1"]


def test_verify_knows_the_backup_controller_and_the_driver_of_each_group() -> None:
    answers = {}
    hosts = [name for group in STACK.nodes for name in group.names]
    for host in hosts:
        lines = ["os\t\tubuntu 24.04", "clock\t\t0.0,Normal", "slurm\t\tslurm 26.05.1", "munge\t\tSuccess", "key\t\tk"]
        lines += ["user\talice\t2001", "user\tcarol\t70001", "iommu\t\t", "acs\t\t"]
        lines += ["driver\tnvidia\t580.126.18", "driver\tamd\t6.3.1"]
        lines += [f"service\t{name}\tactive" for name in services_of(STACK, host)]
        lines += ["controller\tctl1\tprimary UP", "controller\tctl2\tbackup DOWN"]
        answers[host] = Answer(0, "\n".join(lines) + "\n")
    verdicts = verify(STACK, {host: {} for host in hosts}, answers).verdicts
    found = {(each.host, each.check): each.outcome for each in verdicts}
    assert (found["ctl1", "controller ctl1"], found["ctl1", "controller ctl2"]) == ("pass", "fail")
    drivers = {host: outcome for (host, check), outcome in found.items() if check == "driver"}
    assert drivers == {"gpu1": "pass", "gpu2": "pass", "old1": "pass", "old2": "pass", "mi1": "fail", "mi2": "fail"}
    mounts = {host: check for host, check in found if check == "mount /scratch"}
    assert [*mounts] == ["gpu1", "gpu2", "old1", "old2", "mi1", "mi2"]
    assert "nvidia-persistenced" not in services_of(STACK, "mi1") + services_of(STACK, "cpu1")


def test_the_probe_reads_what_slurm_says_of_its_controllers(tmp_path: Path) -> None:
    (tmp_path / "scontrol").write_text(
        "#!/bin/sh\necho 'Slurmctld(primary) at ctl1 is UP'\necho 'Slurmctld(backup1) at ctl2 is DOWN'\n"
    )
    (tmp_path / "systemctl").write_text("#!/bin/sh\n[ $3 = slurmctld ]\n")
    for name in ("scontrol", "systemctl"):
        (tmp_path / name).chmod(0o755)
    line = next(line for line in probe(STACK, []).splitlines() if "scontrol ping" in line)
    environment = os.environ | {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    done = subprocess.run(["bash", "-c", line], env=environment, capture_output=True, text=True, check=True)
    assert facts_of(done.stdout)["controller"] == {"ctl1": "primary UP", "ctl2": "backup DOWN"}


def test_each_file_server_exports_its_own_folders(files) -> None:
    exports = {name: files[f"roles/storage/files/{name}/exports"] for name in ("store1", "store2")}
    found = {name: re.findall(r"^/\S+", text, re.MULTILINE) for name, text in exports.items()}
    assert found == {"store1": ["/export/shared"], "store2": ["/export/datasets"]}
    every = yaml.safe_load(files["group_vars/all.yaml"])
    assert every["exported_folders"] == found


def test_the_inventory_has_a_group_for_each_of_the_nodes(files) -> None:
    groups = yaml.safe_load(files["inventory.yaml"])["all"]["children"]
    assert list(groups["nodes_a100"]["hosts"]) == ["old1", "old2"]
    assert list(groups["login"]["hosts"]) == ["login1", "login2"]
    assert len(groups["compute"]["hosts"]) == 8


def test_the_name_of_a_group_stands_for_its_nodes_in_a_plan() -> None:
    assert read_cluster(f"{EXAMPLE}:h100").name == "2 nodes of DGX H100 over 8x RoCE 400"
    a100 = read_cluster(f"{EXAMPLE}:a100")
    assert (a100.num_nodes, a100.accelerator.name, a100.nics) == (2, "A100-SXM-80GB", 4)
    assert read_cluster(f"{EXAMPLE}:mi").accelerator.vendor == "AMD"


def test_a_group_is_judged_by_its_own_driver(tmp_path: Path) -> None:
    path = changed(tmp_path, ('gpu: {driver: "580.126.18"}', 'gpu: {driver: "535"}'))
    (finding,) = [each for each in check_stack(path).findings if each.severity == "error"]
    lines = path.read_text().splitlines()
    assert finding.rule == "TW732"
    assert '"535"' in lines[finding.line - 1]
    assert check_stack(EXAMPLE).findings == []


def test_a_driver_that_does_not_know_one_group_is_no_fault_of_another(tmp_path: Path) -> None:
    blackwell = (
        "name: h100, address: 10.30.2.1, roles: [compute], machine: DGX H100",
        "address: 10.30.2.1, roles: [compute], machine: DGX B200",
    )
    partition = (
        ("nodes: [h100, a100], max_time: 7", "nodes: [gpu, a100], max_time: 7"),
        ("nodes: [h100, a100]", "nodes: [gpu, a100]"),
    )
    path = changed(tmp_path, blackwell, *partition, ('gpu: {driver: "580.126.18"}', 'gpu: {driver: "550"}'))
    assert "TW733" not in [each.rule for each in check_stack(path).findings]


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("nodes: [mi]", "nodes: [mi3]", "names `mi3`, and no compute node is called so"),
        ("state: /shared/slurm", "state: /var/spool/slurmctld", "2 controllers need one state"),
        ("state: /shared/slurm", "state: /datasets/slurm", "2 controllers need one state"),
        ("accounts: [research]", "accounts: [speech]", "for the account `speech`, which is not there"),
        ("tier: 2", "tier: 1", "no partition has a higher `tier` than `spare`"),
        ("grace: 2m", "default_time: 3-00:00:00", "is over its `max_time`"),
        ("preempt: requeue, ", "", "is for jobs that are preempted"),
        ("qos: [normal]", "qos: [urgent]", "no QOS `urgent`"),
        ("64-127]", "64-128]", "`gpu_cores` names core 128"),
        ("[0-63, 0-63, ", "[", "`gpu_cores` is for 6 GPUs"),
        ("interfaces: [rail0, rail1, rail2, rail3]}", "interfaces: [rail0]}", "4 devices of a group have 1 interfaces"),
        ('    gpu: {rocm: "6.4"}\n', "", "is made by AMD, and `gpu` is a driver for `nvidia`"),
        ('{rocm: "6.4"}', "{vendor: amd}", "GPUs of `amd` need `rocm`"),
        ('{rocm: "6.4"}', '{rocm: "6.4", driver: "580"}', "`driver` is not for `vendor: amd`"),
        ('{rocm: "6.4"}', '{rocm: "6.4", detect: nvml}', "`detect: nvml` is not for `amd`"),
        ("name: a100", "name: h100", "two groups of `nodes` have one name"),
        ("switches: none ", "switches: cumulus ", "the text of switches is for one number"),
        (
            "hosts: \"login[1-2]\", address: 10.30.0.10, roles: [login]",
            "hosts: \"login[1-2]\", address: 10.30.0.10, roles: [login], gpu: none",
            "`gpu` is for compute nodes",
        ),
        ("roles: [database, monitoring]", "roles: [database, monitoring], weight: 5", "`weight` is for compute nodes"),
        ("reserved_cores: 4 ", "reserved_cores: 192 ", "jobs get no core"),
        ("reserved_memory: 32 GiB", "reserved_memory: 2200 GiB", "jobs get no memory"),
        ("scratch: none ", "scratch: {devices: [/dev/sdb], at: /shared} ", "mount `/shared` is there twice"),
    ],
)  # fmt: skip
def test_a_group_or_a_partition_that_cannot_be_is_refused(tmp_path: Path, old: str, new: str, message: str) -> None:
    with pytest.raises(RunFileError) as raised:
        render_stack(changed(tmp_path, (old, new)))
    assert any(message in each.message and each.hint for each in raised.value.problems), raised.value.render()


@pytest.mark.parametrize(
    ("new", "message"), [("nothing", "`scratch` must be `none`, got `nothing`"), ("{devices: []}", "at least 1 item")]
)
def test_a_wrong_scratch_is_one_problem(tmp_path: Path, new: str, message: str) -> None:
    with pytest.raises(RunFileError) as raised:
        load_stack(changed(tmp_path, ("scratch: none ", f"scratch: {new} ")))
    (problem,) = raised.value.problems
    assert message in problem.message


def test_a_driver_of_the_image_is_left_alone(tmp_path: Path) -> None:
    files = render_stack(changed(tmp_path, ('gpu: {driver: "580.126.18"}', "gpu: none")))
    variables = yaml.safe_load(files["group_vars/nodes_a100.yaml"])
    assert "gpu_driver_packages" not in variables
    assert "nvidia-smi" in files[f"{SLURM}/nodes_a100/prolog.sh"]


@pytest.mark.parametrize("architectures", ["one", "two"])
def test_an_environment_is_for_nodes_of_one_architecture(tmp_path: Path, architectures: str) -> None:
    text = Path("examples/cluster/stack.yaml").read_text()
    grace = "  - {hosts: grace1, address: 10.10.9.1, roles: [compute], machine: GB200 NVL72 tray}\n"
    if architectures == "two":
        text = text.replace("machine: DGX H100}\n", f"machine: DGX H100}}\n{grace}")
    (tmp_path / "stack.yaml").write_text(text)
    if architectures == "one":
        variables = yaml.safe_load(render_stack(tmp_path / "stack.yaml")["group_vars/all.yaml"])
        assert variables["environment_architectures"] == ["x86_64"]
        return
    with pytest.raises(RunFileError, match="aarch64 and x86_64, and a virtual environment is for one"):
        render_stack(tmp_path / "stack.yaml")


def test_ansible_finds_the_variables_of_each_group(files, tmp_path: Path) -> None:
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    environment = os.environ | {"ANSIBLE_HOME": str(tmp_path / "home"), "ANSIBLE_NOCOLOR": "1"}

    def run(program: str, *options: str) -> str:
        command = [str(ANSIBLE.with_name(program)), *options]
        done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
        assert (done.returncode, "WARNING" in done.stderr) == (0, False), done.stderr
        return done.stdout

    run("ansible-playbook", "--syntax-check", "site.yaml")
    hosts = json.loads(run("ansible-inventory", "--list"))["_meta"]["hostvars"]
    links = {name: hosts[name]["fabric_link"] for name in ("login1", "cpu1", "gpu1", "mi1")}
    assert links == {"login1": "", "cpu1": "", "gpu1": "roce", "mi1": "roce"}
    assert [hosts[name]["fabric_rails"] for name in ("gpu1", "old1")] == [8, 4]
    assert hosts["ctl1"]["slurm_group_files"] == []


@pytest.mark.slurm
@pytest.mark.skipif(NO_SLURM, reason="needs root and Slurm's packages")
def test_slurmctld_and_slurmd_accept_the_files_of_all_groups(tmp_path: Path) -> None:
    text = EXAMPLE.read_text().replace("10.30.0.0/16", "127.0.0.0/8").replace("10.30.", "127.1.")
    (tmp_path / "stack.yaml").write_text(text)
    rendered = render_stack(tmp_path / "stack.yaml")
    for path in (path for path in rendered if path.startswith(SLURM)):
        conf = on_this_machine(rendered[path], tmp_path)
        conf = re.sub(r"SlurmctldHost=ctl1.*\nSlurmctldHost=ctl2.*\n", f"SlurmctldHost={os.uname().nodename}\n", conf)
        conf = conf.replace("/shared/slurm", f"{tmp_path}/slurmctld").replace("/dev/dri/renderD", "/dev/tty")
        conf = conf.replace("[128-135]", "[10-17]").replace("AllowQos=normal ", "")  # a QOS is in the database
        (tmp_path / Path(path).name).write_text(conf)
        (tmp_path / Path(path).name).chmod(0o755)
    said = [line for line in slurmctld_says(tmp_path) if "error" in line]
    assert [line for line in said if not any(word in line for word in ("MailProg", "state", "High latency"))] == []
    for node, found in (("gpu1", "Type=h100"), ("old1", "Type=a100"), ("old1", "Cores=64-127"), ("mi1", "Type=mi300x")):
        command = ["slurmd", "-G", "-f", tmp_path / "slurm.conf", "-N", node]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert found in done.stdout + done.stderr


def test_a_wrong_value_of_the_only_group_is_one_error(tmp_path: Path) -> None:
    one = Path("examples/cluster-demo/shapes/one-node.yaml").read_text(encoding="utf-8")
    (tmp_path / "stack.yaml").write_text(
        one.replace("    hardware:", "    weight: -1\n    hardware:"), encoding="utf-8"
    )
    with pytest.raises(RunFileError) as raised:
        load_stack(tmp_path / "stack.yaml")
    assert [str(each) for each in raised.value.problems] == ["`weight` must be at least 1, got `-1`"]
