"""Six throw-away Debian machines, the stack of `stack.yaml` on them, and a training over it: `make cluster-demo`.

Runs inside `hall.sh`. Each command is printed as a user would type it, with its output and time; one that ends
differently than the demonstration says ends all with 1. `demo.py chain`, of `make chain`, goes from a goal to the bill,
over a slow node and one that dies. `demo.py shell` gives a shell after the machines have booted.
"""

from __future__ import annotations

import json
import os
import queue
import re
import subprocess  # noqa: TID251  # an example, and no part of the package
import sys
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

from trainworks.config.stack import Stack, load_stack
from trainworks.deploy.hardware import hardware_of

HERE = Path(__file__).parent
HALL = Path(os.environ.get("HALL", "/run/hall"))
TRAINWORKS = Path(sys.executable).with_name("trainworks")
BOOT_S, PAGE_S = 300, 600
PAGER = ("10.77.0.1", 9999)
SLOW = "gpu3"
"""Node with a bad cable."""


def software() -> list[str]:
    """Folders of this Python and of Trainworks, which every machine sees under the same path."""
    entries = [Path(entry).resolve() for entry in sys.path if entry]
    kept: list[Path] = []
    for folder in [Path(sys.base_prefix), Path(sys.prefix), *entries]:
        if folder.is_dir() and folder != HERE and not any(folder.is_relative_to(each) for each in kept):
            kept.append(folder)
    return [str(folder) for folder in kept]


def boot(stack: Stack) -> None:
    """Start every machine of the stack, and wait until all answer over ssh."""
    environment = os.environ | {"ADMIN": stack.admin, "SHARED_SOFTWARE": " ".join(software())}
    environment["TRAINWORKS"] = str(TRAINWORKS)
    addresses: dict[str, str] = {}
    for group in stack.nodes:
        accelerators = hardware_of(group).accelerators if "compute" in group.roles else None
        gpus = str(accelerators.count) if accelerators else "0"
        for name, address in group.addresses.items():
            addresses[name] = address
            (HALL / "disks" / name / "export").mkdir(parents=True)
            command = [HERE / "node.sh", name, f"{address}/{stack.network.prefixlen}", gpus]
            with (HALL / f"{name}.log").open("wb") as log:
                subprocess.Popen(
                    command, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
                )
    hosts = "".join(f"Host {name}\n  HostName {address}\n" for name, address in addresses.items())
    (HALL / "ssh" / "hosts.conf").write_text(hosts)
    deadline = time.monotonic() + BOOT_S
    for name in addresses:
        while subprocess.run(["ssh", f"{stack.admin}@{name}", "true"], capture_output=True, check=False).returncode:
            if time.monotonic() > deadline:
                raise SystemExit(f"{name} did not boot within {BOOT_S} s: {(HALL / f'{name}.log').read_text()}")
            subprocess.run(["sleep", "0.5"], check=True)


def run(command: str, expect: Callable[[int, str], bool] = lambda code, printed: code == 0) -> str:
    """Run a command line of bash in the hall, print it and its output, and check how it ended."""
    print(f"$ {command}", flush=True)
    started = time.monotonic()
    path = f"{TRAINWORKS.parent}:{os.environ['PATH']}"
    with subprocess.Popen(
        ["bash", "-c", command],
        cwd=HALL,
        env=os.environ | {"PATH": path, "COLUMNS": "110"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as process:
        assert process.stdout is not None
        lines = []
        for line in process.stdout:
            if "Permanently added" not in line:
                print(line, end="", flush=True)
                lines.append(line)
    print(f"# {time.monotonic() - started:.0f} s, exit code {process.returncode}\n", flush=True)
    printed = "".join(lines)
    if not expect(process.returncode, printed):
        raise SystemExit(f"not as the demonstration says: `{command}`")
    return printed


def unchanged(code: int, printed: str) -> bool:
    """Nothing changed, on no host."""
    counts = re.findall(r"changed (\d+)  unreachable", printed)
    return code == 0 and bool(counts) and set(counts) == {"0"}


DEPLOY = "stack.yaml --into project"


def build() -> None:
    """From machines with ssh alone to a cluster that is as the stack says."""
    run("trainworks deploy check stack.yaml")
    run(f"trainworks deploy apply {DEPLOY}")
    run(f"trainworks deploy verify {DEPLOY}")
    run(f"trainworks deploy apply {DEPLOY}", unchanged)


def train() -> None:
    """Two nodes of it train a model."""
    run(
        "ssh alice@login1 \"srun --nodes=2 --gres=gpu:1 bash -c 'hostname; echo GPU \\$CUDA_VISIBLE_DEVICES; "
        "head -c 1 /dev/nvidia0 /dev/nvidia1'\"",
        lambda code, printed: len(re.findall(r"^gpu\d$", printed, re.M)) == 2 and "Operation not permitted" in printed,
    )
    run("scp -q run.yaml guides.txt alice@login1:/shared/")
    run("ssh alice@login1 'mkdir -p /shared/alice && cd /shared/alice && trainworks submit ../run.yaml --yes'")
    run("ssh alice@login1 'cd /shared/alice && trainworks logs --follow | tail -n 15'")
    run(
        "ssh alice@login1 'cd /shared/alice && trainworks ps --all'",
        lambda code, printed: code == 0 and "SUCCEEDED" in printed,
    )
    run("ssh alice@login1 'cd /shared/alice && trainworks report'")
    query = "ssh deploy@login1 \"promtool query instant http://localhost:9090 'trainworks_run_goodput_ratio'\""
    run(
        f"for try in {{1..20}}; do {query} | grep run= && break; sleep 5; done",  # the exporter looks, then Prometheus
        lambda code, printed: code == 0 and 'run="guides-lm-1"' in printed,
    )
    run("ssh alice@login1 'sacct --allocations --format=JobID,JobName,Account,AllocNodes,State,Elapsed'")


class Pager(BaseHTTPRequestHandler):
    """The webhook of the stack file."""

    pages: queue.Queue[str] = queue.Queue()

    def do_POST(self) -> None:
        """One message of Alertmanager."""
        message = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        for one in message["alerts"]:
            labels = one["labels"]
            self.pages.put(f"{one['status']} {labels['alertname']} {labels.get('node') or labels.get('run')}")
        self.send_response(200)
        self.end_headers()

    def log_message(self, *args: object) -> None:
        """Nothing."""


def order() -> None:
    """From three lines to the order, the stack file, and the job, on paper: these machines have no GPUs."""
    run("cat goal.yaml")
    run(
        "trainworks size goal.yaml --contract own --engine slurm --only H100"
        " --write sized.yaml --write-stack bought.yaml --bill order.csv | grep -A 3 '^verdict'"
    )
    run("sed -i 's/ *# fill in.*//' bought.yaml  # its owner knows these lines: key, adapters, users")
    run("head -n 4 order.csv | cut -d, -f 1-5; tail -n 1 order.csv | cut -d, -f 1-5")
    run("trainworks deploy check bought.yaml && trainworks deploy render bought.yaml --into bought | tail -n 3")
    run("trainworks bench collectives --cluster bought.yaml --nodes 4 --dry-run | grep SBATCH")
    run("trainworks submit sized.yaml --dry-run | grep -E 'nodes|gres|time='")
    run("trainworks cost sized.yaml | head -n 6")


def accept() -> None:
    """A node with a slow link is found, taken out, repaired and given back; then the cluster is accepted, or not."""
    run("scp -q key deploy@login1:.ssh/id_ed25519; scp -q repair.yaml deploy@login1:")
    run("ssh deploy@login1 'printf \"StrictHostKeyChecking accept-new\\nLogLevel ERROR\\n\" > .ssh/config'")
    run(f"ssh deploy@{SLOW} 'sudo tc qdisc add dev eth0 root tbf rate 100mbit burst 64kb latency 50ms'  # a bad cable")
    bench = "cd /shared/alice && trainworks bench network --cluster slurm --nodes 4"
    run(
        f"ssh alice@login1 'mkdir -p /shared/alice .ssh && {bench} --json > bench.json'",
        lambda code, printed: code == 1,
    )
    is_slow = re.compile(rf"^{SLOW}  ", re.M)  # the node, and not one of its links
    run(
        "ssh alice@login1 'cd /shared/alice && trainworks bench --resume bench-network-1 | sed -n 1,/^Links/p'",
        lambda code, printed: is_slow.search(printed) is not None,
    )
    repair = "sudo trainworks repair slurm --policy repair.yaml --from /shared/alice/bench.json"
    run(
        f"ssh deploy@login1 '{repair} --yes'",
        lambda code, printed: code == 0 and re.search(rf"{SLOW} +back", printed) is not None,
    )
    run("scp -q key alice@login1:.ssh/id_ed25519")
    run("ssh alice@login1 'printf \"StrictHostKeyChecking accept-new\\nLogLevel ERROR\\n\" > .ssh/config'")
    run("scp -q chain.yaml guides.txt alice@login1:/shared/; scp -q -r stack.yaml project alice@login1:/shared/alice/")
    verify = "trainworks deploy verify stack.yaml --into project --bench ../chain.yaml > acceptance.txt"
    shown = "sed -n 1,/^Checks/p acceptance.txt; grep -A 3 ^Training acceptance.txt"
    run(
        f"ssh alice@login1 'cd /shared/alice && {verify}; {shown}'",
        lambda code, printed: re.search(r"^verdict +\S", printed, re.M) is not None,
    )


def lose_a_node() -> None:
    """A node of a run loses its power: it pages once and is taken out, and the run continues on another node."""
    run("ssh alice@login1 'cd /shared/alice && trainworks submit ../chain.yaml --yes'")
    there = "runs/guides-lm-1/checkpoints/step-*"
    run(f"ssh alice@login1 'cd /shared/alice && until ls -d {there} > /dev/null 2>&1; do sleep 1; done; trainworks ps'")
    nodes = run("ssh alice@login1 'squeue --noheader --format=%N'")
    dies = re.findall(r"\d", nodes)[-1]
    started = time.monotonic()
    run(f"ssh deploy@gpu{dies} 'sudo systemctl poweroff --force --force'", lambda code, printed: True)
    page = Pager.pages.get(timeout=PAGE_S)
    print(f"page: {page}\n# {time.monotonic() - started:.0f} s\n", flush=True)
    if page != f"firing NodeDown gpu{dies}":
        raise SystemExit(f"not as the demonstration says: `firing NodeDown gpu{dies}` is paged")
    run("ssh alice@login1 'cd /shared/alice && trainworks ps'")
    alerts = "amtool alert query --alertmanager.url=http://localhost:9093 -o json > alerts.json"
    run(
        f"ssh deploy@login1 '{alerts}; sudo trainworks repair slurm --policy repair.yaml --from alerts.json --yes'",
        lambda code, printed: re.search(rf"gpu{dies} +out", printed) is not None,
    )
    on_others = 'until trainworks ps | grep -E "STARTING|RUNNING"; do sleep 1; done'
    run(
        f"ssh alice@login1 'cd /shared/alice && {on_others}'",
        lambda code, printed: code == 0 and f"gpu{dies}" not in printed,
    )
    run("ssh alice@login1 'cd /shared/alice && trainworks wait; trainworks ps --all'")
    if not Pager.pages.empty():
        raise SystemExit(f"not as the demonstration says: it pages once, and then came `{Pager.pages.get()}`")


def bill() -> None:
    """What was planned, what it took, and who pays."""
    run(
        "ssh alice@login1 'cd /shared/alice && trainworks report'",
        lambda code, printed: "SUCCEEDED" in printed and re.search(r"^failures .* 1 ", printed, re.M) is not None,
    )
    run("ssh alice@login1 'cd /shared/alice && trainworks usage'")
    run("ssh alice@login1 'sacct --allocations --duplicates --format=JobID,JobName,Account,NodeList,State,Elapsed'")
    run("ssh deploy@login1 'sudo trainworks repair slurm --history'")


def drift() -> None:
    """A node that was changed by hand is found, and repaired."""
    run("ssh deploy@gpu3 'sudo sed -i s/KillWait=60/KillWait=5/ /etc/slurm/slurm.conf; sudo systemctl stop chrony'")
    run(f"trainworks deploy verify {DEPLOY} --limit gpu3", lambda code, printed: code == 1)
    run(
        f"trainworks deploy diff {DEPLOY} --limit gpu3",
        lambda code, printed: code == 1 and "/etc/slurm/slurm.conf" in printed and "chrony" in printed,
    )
    run(f"trainworks deploy apply {DEPLOY} --limit gpu3", lambda code, printed: code == 0 and "resumed" in printed)
    run(f"trainworks deploy verify {DEPLOY}")


def main() -> None:
    """Boot, and demonstrate unless a shell was asked for."""
    stack, source = load_stack(HERE / "stack.yaml")
    guides = sorted((HERE.parents[1] / "docs" / "guides").glob("*.md"))
    (HALL / "guides.txt").write_text("\n".join(guide.read_text() for guide in guides))
    for name in ("run.yaml", "goal.yaml", "chain.yaml", "repair.yaml"):
        (HALL / name).write_text((HERE / name).read_text())
    text = source.text.replace(stack.admin_keys[0], (HALL / "key.pub").read_text().strip())
    text = text.replace("trainworks: /opt/trainworks", f"trainworks: {TRAINWORKS.parents[1]}")
    if sys.argv[1:] == ["chain"]:  # an acceptance asks for the accelerators of the stack, and there are none
        text = text.replace(', accelerators: "h100:2"', "")
    (HALL / "stack.yaml").write_text(text)
    stack, _ = load_stack(HALL / "stack.yaml")
    threading.Thread(target=HTTPServer(PAGER, Pager).serve_forever, daemon=True).start()
    started = time.monotonic()
    boot(stack)
    print(f"# {sum(len(group.names) for group in stack.nodes)} machines booted: {time.monotonic() - started:.0f} s\n")
    if sys.argv[1:] == ["shell"]:
        subprocess.run(["bash"], cwd=HALL, check=False)
        return
    if sys.argv[1:] == ["chain"]:
        for link in (order, build, accept, lose_a_node, bill):
            link()
    else:
        for part in (build, train, drift):
            part()
    print(f"# the whole demonstration: {time.monotonic() - started:.0f} s")


if __name__ == "__main__":
    main()
