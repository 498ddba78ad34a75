"""Upgrades: the order of the hosts, jumps that Slurm does not survive, the way back, and an upgrade that was killed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from tests.deploy.test_upkeep import FakeCluster, cluster, keeping
from trainworks.cli.app import app
from trainworks.config.stack import Stack
from trainworks.deploy.layers import operating_system
from trainworks.deploy.playbook import Answer, HostCounts, PlaybookRun
from trainworks.deploy.upgrade import Facts, UpgradeRecord, UpgradeStep, check_slurm, plan_upgrade
from trainworks.errors import UsageError

__all__ = ["cluster"]

EXAMPLE = Path("examples/cluster/stack.yaml")
GROUPS = Path("examples/cluster/stack-groups.yaml")
FABRIC = "fabric: {link: infiniband, devices: [mlx5_0], kernel: 6.8.0-60-generic}\n"
HOSTS = ["login1", "store1", "gpu01", "gpu02", "gpu03", "gpu04"]
PACKAGES = {
    "slurm-smd": "25.05.3-1",
    "slurm-smd-slurmd": "25.05.3-1",
    "nvidia-utils-570-server": "570.1-0",
    "munge": "1",
}


def stack_of(more: str = "", old: str = "", new: str = "") -> Stack:
    return Stack.model_validate(yaml.safe_load(EXAMPLE.read_text().replace(old, new) + more))


def runs(slurm: str = "26.05.1", driver: str = "580.126.18", kernel: str = "6.8.0-60-generic") -> Facts:
    """What a host said that runs this."""
    return {
        "slurm": {"": f"slurm {slurm}"},
        "driver": {"nvidia": driver},
        "kernel": {"": kernel},
        "package": PACKAGES,
    }


def planned(
    found: dict[str, Facts], stack: Stack | None = None, size: int | None = None
) -> list[tuple[str, list[str]]]:
    """Hosts and parts of each step."""
    plan = plan_upgrade(stack or stack_of(FABRIC), {host: runs() for host in HOSTS} | found, size)
    return [(",".join(step.batch.hosts), list(step.parts)) for step in plan.steps]


def test_a_cluster_that_runs_its_stack_has_nothing_to_upgrade() -> None:
    assert planned({}) == []


def test_the_database_goes_before_the_controller_the_other_servers_and_the_nodes() -> None:
    text = EXAMPLE.read_text().replace("roles: [login, controller, database, monitoring]", "roles: [login]")
    text = text.replace(
        "  - {hosts: store1",
        "  - {hosts: ctl1, address: 10.10.0.11, roles: [controller]}\n"
        "  - {hosts: db1, address: 10.10.0.12, roles: [database, monitoring]}\n  - {hosts: store1",
    )
    stack = Stack.model_validate(yaml.safe_load(text))
    found = {host: runs(slurm="25.05.3") for host in [*HOSTS, "ctl1", "db1"]}
    steps = planned(found, stack, size=2)
    assert [hosts for hosts, _ in steps] == ["db1", "ctl1", "login1", "gpu01,gpu02", "gpu03,gpu04"]


def test_controllers_of_one_state_go_together_and_each_group_to_its_own_driver() -> None:
    stack = Stack.model_validate(yaml.safe_load(GROUPS.read_text()))
    hosts = [name for group in stack.nodes for name in group.names]
    found = {host: runs(slurm="25.05.3", driver="580.126.18", kernel="6.8.0") for host in hosts}
    steps = {
        step.batch.hosts: {part: wanted for part, (_, wanted) in step.parts.items()}
        for step in plan_upgrade(stack, found, 1).steps
    }
    assert list(steps)[:2] == [("db1",), ("ctl1", "ctl2")]
    assert "driver" not in steps["cpu1",] and "driver" not in steps["mi1",]
    found |= {host: runs(driver="570.1") for host in ("gpu1", "old1")}
    drivers = {step.batch.hosts: step.parts.get("driver") for step in plan_upgrade(stack, found, 1).steps}
    assert (drivers["gpu1",], drivers["old1",]) == (("570.1", "580"), ("570.1", "580.126.18"))


def test_all_parts_of_a_node_change_in_one_step_and_only_where_they_differ() -> None:
    old = runs(slurm="25.11.0", driver="570.1", kernel="6.8.0-50-generic")
    assert planned({"gpu02": old, "gpu03": runs(driver="570.1")}, size=2) == [
        ("gpu02", ["Slurm", "driver", "kernel"]),
        ("gpu03", ["driver"]),
    ]


@pytest.mark.parametrize(
    ("old", "new"),
    [("22.05.8", "23.11"), ("24.05.1", "25.11"), ("23.02", "24.11"), ("25.05", "26.05"), ("26.05.1", "26.05.2")],
)
def test_slurm_goes_over_as_many_releases_as_it_reads(old: str, new: str) -> None:
    check_slurm(old, new, "login1")


@pytest.mark.parametrize(
    ("old", "new", "message", "hint"),
    [
        ("22.05.8", "24.05", "Slurm 24.05 does not read the jobs and the database of 22.05.8", '"23.11"'),
        ("23.11.4", "25.11", "does not read", '"25.05"'),
        ("23.02", "26.05", "does not read", '"24.11"'),
        ("25.11.1", "25.05", "has converted the database and the jobs: 25.05 cannot read them", "a dump of its time"),
    ],
)
def test_slurm_does_not_go_further_or_back(old: str, new: str, message: str, hint: str) -> None:
    with pytest.raises(UsageError, match=message) as refused:
        check_slurm(old, new, "login1")
    assert hint in str(refused.value.hint)


@pytest.mark.parametrize(
    ("kernel", "message"),
    [('"6.14"', "`6.14` names no package"), ("6.8.0-40-generic", "newer than 6.8.0-40-generic")],
)
def test_a_kernel_that_no_package_or_no_boot_loader_gives_is_refused(kernel: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        planned({}, stack_of(FABRIC.replace("6.8.0-60-generic", kernel)))


def test_a_host_that_does_not_answer_ends_it_before_it_began() -> None:
    with pytest.raises(UsageError, match="gpu03 did not answer"):
        planned({"gpu03": {}})


class Roll:
    """Takes the steps of an upgrade, and fails where it is told to."""

    def __init__(self, **failing: PlaybookRun) -> None:
        self.failing, self.taken = failing, list[str]()

    def __call__(self, step: UpgradeStep, back: bool) -> PlaybookRun:
        hosts = ",".join(step.batch.hosts)
        self.taken.append(f"{'back' if back else 'on'} {hosts}")
        good = PlaybookRun((), (HostCounts(hosts, 1, 1, 0, 0),))
        return good if back and f"{hosts}_back" not in self.failing else self.failing.get(hosts, good)


SICK = PlaybookRun((), (HostCounts("gpu01", 1, 1, 0, 0),), "gpu01: gpu lost")
BUSY = PlaybookRun((), (), "gpu01: jobs were still running after 60 s")


def upgraded(project: Path, roll: Roll, driver: str = "570.1", more: str = "") -> tuple[PlaybookRun, dict[str, str]]:
    """The run of an upgrade of two nodes, and the states that it recorded."""
    stack = stack_of(more)
    old = runs(driver=driver, kernel="6.8.0-50-generic")
    facts = {host: runs(kernel="6.8.0-50-generic") for host in HOSTS} | {"gpu01": old, "gpu02": old}
    if more:
        facts |= {host: runs() for host in HOSTS if host not in ("gpu01", "gpu02")}
    record = UpgradeRecord.read(project, stack, facts, "upgrade-1")
    done = record.run(plan_upgrade(stack, facts, 1, record.unfinished), project, roll)
    return done, json.loads((project / "upgrade.json").read_text())["steps"]


def test_a_step_that_fails_goes_back_and_ends_the_upgrade(tmp_path: Path) -> None:
    roll = Roll(gpu01=SICK)
    done, states = upgraded(tmp_path, roll)
    assert roll.taken == ["on gpu01", "back gpu01"]
    assert done.stopped == "gpu01: gpu lost; gpu01 went back to packages of before"
    assert states == {"gpu01": "back"}


def test_a_node_whose_jobs_did_not_end_has_nothing_to_go_back_from(tmp_path: Path) -> None:
    roll = Roll(gpu01=BUSY)
    done, states = upgraded(tmp_path, roll)
    assert (roll.taken, done.stopped, states) == (["on gpu01"], BUSY.stopped, {"gpu01": "back"})


def test_a_kernel_has_no_way_back_and_that_is_said(tmp_path: Path) -> None:
    roll = Roll(gpu01=SICK)
    done, states = upgraded(tmp_path, roll, more=FABRIC)
    assert roll.taken == ["on gpu01"]
    assert done.stopped.endswith("way back of gpu01: none: choose the older kernel at the console")
    assert states == {"gpu01": "started"}


def test_a_step_that_cannot_go_back_says_so(tmp_path: Path) -> None:
    done, states = upgraded(tmp_path, Roll(gpu01=SICK, gpu01_back=SICK))
    assert done.stopped == "gpu01: gpu lost; gpu01 could not go back: gpu01: gpu lost"
    assert states == {"gpu01": "started"}


def test_an_upgrade_that_was_killed_takes_its_step_again_and_knows_what_was_there(tmp_path: Path) -> None:
    class Killed(Roll):
        def __call__(self, step: UpgradeStep, back: bool) -> PlaybookRun:
            super().__call__(step, back)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        upgraded(tmp_path, Killed())
    roll = Roll()
    # its packages are there, its daemon or its module may be the old one
    done, states = upgraded(tmp_path, roll, driver="580.126.18")
    assert not done.failed
    assert (roll.taken, states) == (["on gpu01"], {"gpu01": "done"})


def test_an_upgrade_to_other_releases_waits_for_the_end_of_the_first(tmp_path: Path) -> None:
    facts = {host: runs() for host in HOSTS}
    record = UpgradeRecord("upgrade-1", {"Slurm": "25.11", "driver": "580"}, {}, {"gpu01": "started"})
    (tmp_path / "upgrade.json").write_text(json.dumps({name: getattr(record, name) for name in record.__slots__}))
    with pytest.raises(UsageError, match="driver 580 has not ended on gpu01"):
        UpgradeRecord.read(tmp_path, stack_of(), facts, "upgrade-2")


def test_the_way_back_has_exactly_the_packages_of_before() -> None:
    stack = stack_of()
    facts = {host: runs() for host in HOSTS} | {"gpu01": runs(slurm="25.05.3")}
    record = UpgradeRecord("upgrade-1", {}, dict.fromkeys(HOSTS, PACKAGES))
    (step,) = plan_upgrade(stack, facts, None).steps
    values = record.playbook(step, operating_system(stack), back=True, wait_s=60).variables["upgrade"]
    assert isinstance(values, dict)
    assert values["packages"] == {"gpu01": ["slurm-smd=25.05.3-1", "slurm-smd-slurmd=25.05.3-1"]}
    assert values["pins"] == {"gpu01": "25.05.3-1"}
    dnf = record.playbook(
        step, operating_system(stack.model_copy(update={"os": "Rocky 9"})), back=True, wait_s=60
    ).variables["upgrade"]
    assert isinstance(dnf, dict)
    assert dnf["packages"]["gpu01"][0] == "slurm-smd-25.05.3-1"


def test_the_command_shows_the_steps_and_takes_them(
    golden, cluster: FakeCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer = cluster.answer

    def said(into: Path, hosts: list[str], command: str, inventories: object) -> dict[str, Answer]:
        if "say os" not in command:
            return dict(answer(into, hosts, command))
        lines = "slurm\t\tslurm 25.05.3\ndriver\tnvidia\t580.1\nkernel\t\t6.8.0\npackage\tslurm-smd\t25.05.3-1\n"
        return {host: Answer(0, lines) for host in hosts}

    monkeypatch.setattr("trainworks.api.deploying.run_command", said)
    kept = keeping(tmp_path)
    command = ["deploy", "upgrade", str(kept.path), "--into", str(kept.into), "--batch", "2"]
    shown = CliRunner().invoke(app, [*command, "--dry-run"])
    assert shown.exit_code == 0, shown.output
    golden("deploy_upgrade.txt", shown.stdout)
    assert cluster.asked == []
    done = CliRunner().invoke(app, command)
    assert done.exit_code == 0, done.output
    assert cluster.asked == [
        "upgrade.yaml on login1",
        "upgrade.yaml on gpu01,gpu02",
        "scontrol update NodeName=gpu01,gpu02 State=DRAIN Reason='trainworks deploy'",
        "wait for jobs",
        "upgrade.yaml on gpu01,gpu02",
        "health gpu01,gpu02",
        "scontrol update NodeName=gpu01,gpu02 State=RESUME",
        "upgrade.yaml on gpu03,gpu04",
        "scontrol update NodeName=gpu03,gpu04 State=DRAIN Reason='trainworks deploy'",
        "wait for jobs",
        "upgrade.yaml on gpu03,gpu04",
        "health gpu03,gpu04",
        "scontrol update NodeName=gpu03,gpu04 State=RESUME",
    ]
    assert set(json.loads((kept.into / "upgrade.json").read_text())["steps"].values()) == {"done"}


@pytest.mark.parametrize("more", [["--dry-run"], ["gpu01"]])
def test_an_apply_refuses_what_would_be_ignored(cluster: FakeCluster, tmp_path: Path, more: list[str]) -> None:
    kept = keeping(tmp_path)
    done = CliRunner().invoke(app, ["deploy", "apply", str(kept.path), *more, "--into", str(kept.into)])
    assert isinstance(done.exception, UsageError)
    assert cluster.asked == []
