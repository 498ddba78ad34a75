"""Clusters of different shapes, each built from nothing, trained on, broken and repaired: `make shapes`.

`shapes.py` builds each shape of `shapes/` in a hall of its own (`hall.sh`), and prints a table; with names, only those.
Each is applied twice, the second time without a change, and verified; it trains a model, does what is special about it,
and a node of it is broken in three ways, which `verify` names, an alarm tells, and `apply` repairs.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess  # noqa: TID251  # an example, and no part of the package
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from hall import DEPLOY, HALL, HERE, PAGE_S, PAGER, Hall, Pager, build, run


def submit(login: str, *, nodes: int = 2, folder: str = "/shared", further: str = "") -> None:
    """Alice trains a model over some nodes; `further` are keys of `cluster.slurm`."""
    text = (HERE / "run.yaml").read_text().replace("/shared/", f"{folder}/").replace("nodes: 2", f"nodes: {nodes}")
    text = text.replace("global_batch: 8", f"global_batch: {4 * nodes}")
    text = text.replace("account: vision", f"account: vision{further}")
    (HALL / "run.yaml").write_text(text)
    run(f"scp -q run.yaml guides.txt alice@{login}:{folder}/")
    job = f"mkdir -p {folder}/alice && cd {folder}/alice && trainworks submit ../run.yaml --yes"
    run(f"ssh alice@{login} '{job}; trainworks wait || tail -n 30 runs/*/logs/*.log; trainworks ps --all'", succeeded)


def succeeded(code: int, printed: str) -> bool:
    """The run has ended well."""
    return code == 0 and "SUCCEEDED" in printed


def one_node(hall: Hall) -> None:
    """It trains on itself."""
    submit("box1", nodes=1, folder="/home/alice")


def debian_13(hall: Hall) -> None:
    """What lies in `debian-13.d` is on the machine, beside what the roles render."""
    run("ssh alice@box1 'grep VERSION_ID= /etc/os-release; sinfo --version'", lambda code, printed: '"13"' in printed)
    looks = "tree --version && cat /proc/sys/net/core/somaxconn && cat /etc/motd && bash -lc 'printenv SITE'"
    run(
        f'ssh alice@box1 "{looks}; sinfo --noheader --format=%P"',
        lambda code, printed: (
            [printed.count(word) for word in ("8192\n", "of the hall", "hall\n", "long\n")] == [1, 1, 1, 1]
        ),
    )
    submit("box1", nodes=1, folder="/home/alice")


def two_racks(hall: Hall) -> None:
    """Each partition has its nodes, and a user without a job is refused by them."""
    run(
        "ssh alice@login2 \"sinfo --noheader --format='%P %N %G'\"",
        lambda code, printed: "train* gpu[1-2] gpu:h100:2" in printed and "prepare cpu[1-2] (null)" in printed,
    )
    run("ssh alice@login1 srun --partition=prepare --nodes=2 hostname", lambda code, printed: "cpu2" in printed)
    run("scp -q key alice@login1:.ssh/id_ed25519")
    there = "ssh -o StrictHostKeyChecking=no -o LogLevel=ERROR gpu1 hostname"
    run(f"ssh alice@login1 '{there}'", lambda code, printed: code == 255)
    run(
        "ssh deploy@gpu1 'sudo journalctl --no-pager --identifier=sshd | grep alice | tail -n 3'",
        lambda code, printed: "Access denied" in printed,
    )
    run(
        f"ssh alice@login1 'salloc --quiet --nodelist=gpu1 --nodes=1 {there}'",
        lambda code, printed: code == 0 and "gpu1" in printed,
    )
    refused = "timeout 3 bash -c '< /dev/tcp/gpu1/22' && ! timeout 3 bash -c '< /dev/tcp/store1/6818'"
    run(f'ssh deploy@store2 "{refused}"')
    submit("login1")
    day_two(hall)


def day_two(hall: Hall) -> None:
    """A secret changes, a database comes back, and a node leaves, joins again, and is replaced by a new machine."""
    run("trainworks deploy rotate stack.yaml munge --into project")
    run("trainworks deploy backup stack.yaml --into project")
    run("trainworks deploy restore stack.yaml project/backups/database-*.sql.gz --into project")
    run("sed -i 's/cpu\\[1-2\\]/cpu1/' stack.yaml && trainworks deploy remove stack.yaml cpu2 --into project")
    run("ssh alice@login1 sinfo --noheader --format=%N", lambda code, printed: code == 0 and "cpu2" not in printed)
    if "firing NodeDown cpu2" in Pager.pages.queue:
        raise SystemExit("there was a page about a node that was removed on purpose")
    run("sed -i 's/cpu1/cpu[1-2]/' stack.yaml && trainworks deploy add stack.yaml cpu2 --into project")
    hall.stop("cpu2")
    shutil.rmtree(HALL / "cpu2" / "upper")
    hall.start("cpu2")
    hall.wait_for("cpu2", new=True)
    run(f"ssh-keygen -q -f known_hosts -R {hall.addresses['cpu2']}")  # of the hall: `replace` asks the machine itself
    run("trainworks deploy replace stack.yaml cpu2 --into project")
    run("ssh alice@login1 srun --partition=prepare --nodes=2 hostname", lambda code, printed: "cpu2" in printed)
    run(f"trainworks deploy verify {DEPLOY}")


def rails(hall: Hall) -> None:
    """Packets between the nodes leave by the rail of their address, whole, and the adapters agree with the switches."""
    for rail in ("rail0", "rail1"):
        there = f"ip -4 -brief address show dev {rail} | grep -o '[0-9.]*/31' | cut -d/ -f1"
        address = run(f'ssh deploy@gpu2 "{there}"').strip()
        own = run(f'ssh deploy@gpu1 "{there}"').strip()
        run(
            f"ssh deploy@gpu1 'ip route get {address} from {own}; ping -q -c 2 -M do -s 8900 -I {own} {address}'",
            lambda code, printed, rail=rail: code == 0 and f"dev {rail}" in printed and " 0% packet loss" in printed,
        )
    run("ssh deploy@gpu1 'sudo roce-check.sh && cat /etc/nccl.conf'")
    submit("login1")


def two_controllers(hall: Hall) -> None:
    """The first controller loses its power: the second one takes over, runs jobs, and gives them back."""
    hall.stop("ctl1")
    run(_answers("login1", "backup"), lambda code, printed: "gpu2" in printed)
    submit("login1")
    hall.start("ctl1")
    hall.wait_for("ctl1")
    run(_answers("login1", "primary"), lambda code, printed: "gpu2" in printed)


def _answers(login: str, which: str) -> str:
    """A command that waits until a controller answers, and runs a job."""
    answers = f"scontrol ping | grep {which} | grep UP && srun --nodes=2 hostname"
    return f"ssh alice@{login} 'for try in {{1..60}}; do {answers} && break; sleep 5; done'"


def power_saving(hall: Hall) -> None:
    """Idle nodes stop, and boot again for a job."""
    stopped = 'test "$(sinfo --noheader --Node --format=%T | grep -c "~")" = 2'
    states = 'sinfo --Node --format="%N %T"'
    run(
        f"ssh alice@login1 'for try in {{1..150}}; do {stopped} && break; sleep 5; done; {states}'",
        lambda code, printed: printed.count("idle~") == 2,
    )
    submit("login1", nodes=3)


def containers(hall: Hall) -> None:
    """The ranks see the rails of their node, and of the shared file system what the run needs, and nothing else."""
    run("ssh alice@login1 cat /shared/images/pytorch.sif", lambda code, printed: "nvcr.io/nvidia/pytorch" in printed)
    there = "apptainer exec /shared/images/pytorch.sif cat /etc/nccl.conf"
    run(
        f"ssh alice@login1 srun --nodes=2 {there}",
        lambda code, printed: code == 0 and printed.count("NCCL_IB_HCA==mlx5_0,mlx5_1") == 2,
    )
    image = "image: /shared/images/pytorch.sif, runtime: apptainer, mounts: [/shared/guides.txt]"
    submit("login1", further=f", container: {{{image}}}")


def kubernetes(hall: Hall) -> None:
    """An API server takes the bundle; no kubelet runs on the nodes, whose jobs Slurm starts."""
    test = "tests/backends/kubernetes/test_bundle.py"
    run(
        f"cd {HERE.parents[1]} && {sys.executable} -m pytest -q -n 0 --lane test-all {test}",
        lambda code, printed: code == 0 and "1 passed" in printed,
    )
    submit("login1")


def serve_users(hall: Hall) -> None:
    """Make a machine the LDAP server, before the others ask it; the stack gets its certificate."""
    run("scp -q key.pub deploy@dir1:; scp -q ldap.sh deploy@dir1:")
    run("ssh deploy@dir1 'sudo hostname dir1 && sudo bash ldap.sh dir1 \"$(cat key.pub)\"' > ldap.log 2>&1")
    certificate = run("ssh deploy@dir1 cat /etc/ldap/server.pem").strip()
    lines = "\n".join(f"    {line}" for line in certificate.splitlines())
    stack = HALL / "stack.yaml"
    text = re.sub("  # ca: .*", f"  ca: |\n{lines}", stack.read_text())
    stack.write_text(text)
    (HALL / "project" / "secrets").mkdir(parents=True, mode=0o700)
    (HALL / "project" / "secrets" / "directory.password").write_text("asked\n")


def directory(hall: Hall) -> None:
    """Alice logs in by the key of the directory; a machine remembers her while the server is away."""
    run("ssh alice@login1 id", lambda code, printed: "uid=70001(alice)" in printed and "train" in printed)
    submit("login1")
    run(
        "ssh deploy@dir1 sudo systemctl stop slapd && ssh alice@login1 id && ssh deploy@dir1 sudo systemctl start slapd"
    )


def two_boxes(hall: Hall) -> None:
    """No scheduler: a machine trains alone, and both over ssh, while the queue is on one of them."""
    text = (HERE / "run.yaml").read_text().replace("/shared/", "/export/shared/")
    alone = re.sub(r"  slurm: .*\n", "", text.replace("  engine: slurm\n  nodes: 2\n", "  engine: local\n"))
    (HALL / "alone.yaml").write_text(alone)
    (HALL / "run.yaml").write_text(alone.replace("engine: local", "engine: ssh\n  hosts: [box1, box2]"))
    run("scp -q run.yaml alone.yaml guides.txt alice@box2:/export/shared/ && scp -q key alice@box2:.ssh/id_ed25519")
    run(
        "ssh alice@box2 'mkdir -p /export/shared/alice && cd /export/shared/alice && trainworks run ../alone.yaml'",
        succeeded,
    )
    knows = "for box in box1 box2; do ssh -o StrictHostKeyChecking=accept-new $box true; done"
    job = "cd /export/shared/alice && trainworks nodes --cluster ../run.yaml && trainworks submit ../run.yaml --yes"
    run(
        f"ssh alice@box2 '{knows}; {job}; trainworks wait || tail -n 30 runs/*/logs/*.log; trainworks ps --all'",
        succeeded,
    )


@dataclass(frozen=True, slots=True)
class Shape:
    """A file of `shapes/`, and what is special about it."""

    special: Callable[[Hall], None]
    breaks: str = "gpu1"
    """Node that is broken."""
    before: Callable[[Hall], None] = lambda hall: None
    """What is done before the first apply."""
    suite: str = "bookworm"
    """Debian that its machines have."""


SHAPES = {
    "one-node": Shape(one_node, breaks="box1"),
    "debian-13": Shape(debian_13, breaks="box1", suite="trixie"),
    "two-boxes": Shape(two_boxes, breaks="box2"),
    "two-racks": Shape(two_racks, breaks="gpu2"),
    "roce": Shape(rails),
    "routed-rails": Shape(rails),
    "two-controllers": Shape(two_controllers),
    "power-saving": Shape(power_saving, suite="trixie"),
    "containers": Shape(containers),
    "directory": Shape(directory, before=serve_users),
    "kubernetes": Shape(kubernetes),
}


def page(word: str, name: str) -> float:
    """Wait for a message of an alarm about a node; seconds that it took."""
    started = time.monotonic()
    while (found := Pager.pages.get(timeout=PAGE_S)) != f"{word} NodeDown {name}":
        print(f"page: {found}", flush=True)
    print(f"page: {found}\n# {time.monotonic() - started:.0f} s\n", flush=True)
    return time.monotonic() - started


def end_alarms(name: str) -> None:
    """Forget the messages so far, such as those of a node that was removed; wait for the end of its alarm."""
    last = ""
    while not Pager.pages.empty():
        found = Pager.pages.get()
        last = found if found.endswith(f" NodeDown {name}") else last
    if last.startswith("firing"):
        page("resolved", name)


def break_and_repair(hall: Hall, name: str) -> float:
    """A file, a service and a permission of a node are changed by hand; seconds until the alarm."""
    end_alarms(name)
    changes = {
        "/etc/slurm/slurm.conf": "sudo sed -i s/^KillWait=.*/KillWait=5/ /etc/slurm/slurm.conf",
        "/etc/munge/munge.key": "sudo chmod 644 /etc/munge/munge.key",
    }
    if hall.stack.slurm is None:
        unit = "/etc/systemd/system/export-shared.mount"
        changes = {
            unit: f"echo Options=soft | sudo tee -a {unit}",
            "/etc/trainworks/exporter.token": "sudo chmod 644 /etc/trainworks/exporter.token",
        }
    changes["prometheus-node-exporter"] = "sudo systemctl stop trainworks-exporter prometheus-node-exporter"
    run(f"ssh deploy@{name} '{'; '.join(changes.values())}'")
    run(
        f"trainworks deploy verify {DEPLOY} --limit {name}",
        lambda code, printed: code == 1 and all(word in printed for word in changes),
    )
    seconds = page("firing", name)
    run(f"trainworks deploy apply {DEPLOY} --limit {name}")
    run(f"trainworks deploy verify {DEPLOY}")
    page("resolved", name)
    return seconds


def prove(name: str) -> None:
    """Everything of one shape, within a hall; the last line has its figures."""
    shape = SHAPES[name]
    if (layers := HERE / "shapes" / f"{name}.d").is_dir():
        shutil.copytree(layers, HALL / "stack.d")
    hall = Hall(HERE / "shapes" / f"{name}.yaml")
    hall.boot()
    started = time.monotonic()
    shape.before(hall)
    first = build()
    shape.special(hall)
    alarm = break_and_repair(hall, shape.breaks)
    figures = {"machines": len(hall.addresses), "apply": first, "alarm": alarm, "all": time.monotonic() - started}
    print(json.dumps(figures))


def main() -> None:
    """Prove one shape within a hall, or each in a hall of its own."""
    if os.environ.get("IN_HALL") == "yes":
        prove(sys.argv[1])
        return
    names = sys.argv[1:] or list(SHAPES)
    if unknown := [name for name in names if name not in SHAPES]:
        raise SystemExit(f"no shape `{unknown[0]}`: {', '.join(SHAPES)}")
    logs = Path(tempfile.mkdtemp(prefix="trainworks-shapes-"))
    print(f"what is printed meanwhile: {logs}\n\n{'shape':<18}machines  first apply  alarm after   all", flush=True)
    failed = 0
    for name in names:
        log = logs / f"{name}.log"
        with log.open("wb") as output:
            base = subprocess.run(
                [HERE / "base.sh", SHAPES[name].suite], stdout=subprocess.PIPE, stderr=output, check=True
            )
            environment = os.environ | {"BASE": base.stdout.decode().strip(), "GATEWAY": f"{PAGER[0]}/24"}
            command = [HERE / "hall.sh", sys.executable, __file__, name]
            code = subprocess.run(command, env=environment, stdout=output, stderr=output, check=False).returncode
        last = (log.read_text(errors="replace").strip().splitlines() or [""])[-1]
        if code == 0:
            found = json.loads(last)
            figures = f"{found['apply']:>9.0f} s  {found['alarm']:>9.0f} s  {found['all']:>4.0f} s"
            print(f"{name:<18}{found['machines']:>8}  {figures}", flush=True)
        else:
            failed += 1
            print(f"{name:<18}FAILED: {last}", flush=True)
    raise SystemExit(1 if failed else 0)


if __name__ == "__main__":
    main()
