"""Six throw-away Debian machines, the stack of `stack.yaml` on them, and a training over it: `make cluster-demo`.

Runs inside `hall.sh`. Each command is printed as a user would type it, with its output and time; one that ends
differently than the demonstration says ends all with 1. `demo.py shell` gives a shell after the machines have booted.
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
        alerts = (f"{one['status']} {one['labels']['alertname']} {one['labels']['node']}" for one in message["alerts"])
        self.pages.put("; ".join(alerts))
        self.send_response(200)
        self.end_headers()

    def log_message(self, *args: object) -> None:
        """Nothing."""


def alarm() -> None:
    """A node that loses its power pages."""
    started = time.monotonic()
    run("ssh deploy@gpu4 'sudo systemctl poweroff --force --force'", lambda code, printed: True)
    page = Pager.pages.get(timeout=PAGE_S)
    print(f"page: {page}\n# {time.monotonic() - started:.0f} s\n", flush=True)
    if page != "firing NodeDown gpu4":
        raise SystemExit("not as the demonstration says: `firing NodeDown gpu4` is paged")


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
    (HALL / "run.yaml").write_text((HERE / "run.yaml").read_text())
    text = source.text.replace(stack.admin_keys[0], (HALL / "key.pub").read_text().strip())
    (HALL / "stack.yaml").write_text(
        text.replace("trainworks: /opt/trainworks", f"trainworks: {TRAINWORKS.parents[1]}")
    )
    threading.Thread(target=HTTPServer(PAGER, Pager).serve_forever, daemon=True).start()
    started = time.monotonic()
    boot(stack)
    print(f"# {sum(len(group.names) for group in stack.nodes)} machines booted: {time.monotonic() - started:.0f} s\n")
    if sys.argv[1:] == ["shell"]:
        subprocess.run(["bash"], cwd=HALL, check=False)
        return
    build()
    train()
    drift()
    alarm()
    print(f"# the whole demonstration: {time.monotonic() - started:.0f} s")


if __name__ == "__main__":
    main()
