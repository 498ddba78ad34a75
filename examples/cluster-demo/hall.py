"""Machines in a hall (`hall.sh`), and commands on them: what the demonstration and the shapes share."""

from __future__ import annotations

import json
import os
import queue
import re
import shutil
import subprocess  # noqa: TID251  # an example, and no part of the package
import sys
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

from trainworks.config.stack import Stack, load_stack
from trainworks.deploy.fabric.switches import SwitchPorts, switches
from trainworks.deploy.hardware import hardware_of

HERE = Path(__file__).parent
HALL = Path(os.environ.get("HALL", "/run/hall"))
TRAINWORKS = Path(sys.executable).with_name("trainworks")
BOOT_S, PAGE_S = 300, 600
PAGER = ("10.77.0.1", 9999)
"""Webhook of the stack files; it also starts and stops machines, as the controllers of their boards would."""
DEPLOY = "stack.yaml --into project"


class Hall:
    """The machines of a stack file, in the namespaces of this process.

    Args:
        file: stack file, whose key and Trainworks are replaced by those of the hall.
        replace: further texts to replace in it, each by another.
    """

    def __init__(self, file: Path, replace: dict[str, str] | None = None) -> None:
        _, source = load_stack(file)
        key = (HALL / "key.pub").read_text().strip()
        text = re.sub(r"ssh-ed25519 \S+ replaced-by-make-cluster-demo", key, source.text)
        text = text.replace("trainworks: /opt/trainworks", f"trainworks: {TRAINWORKS.parents[1]}")
        for old, new in (replace or {}).items():
            text = text.replace(old, new)
        (HALL / "stack.yaml").write_text(text)
        shutil.copy(HERE / "ldap.sh", HALL)
        guides = sorted((HERE.parents[1] / "docs" / "guides").glob("*.md"))
        (HALL / "guides.txt").write_text("\n".join(guide.read_text() for guide in guides))
        self.stack: Stack = load_stack(HALL / "stack.yaml")[0]
        self.addresses = {name: address for group in self.stack.nodes for name, address in group.addresses.items()}
        self._machines: dict[str, subprocess.Popen[bytes]] = {}
        Pager.hall = self
        threading.Thread(target=HTTPServer(PAGER, Pager).serve_forever, daemon=True).start()

    def boot(self) -> None:
        """Start every machine, and wait until all answer over ssh."""
        started = time.monotonic()
        hosts = "".join(f"Host {name}\n  HostName {address}\n" for name, address in self.addresses.items())
        (HALL / "ssh" / "hosts.conf").write_text(hosts)
        for name in self.addresses:
            (HALL / "disks" / name / "export").mkdir(parents=True)
            self.start(name)
        if self.stack.fabric is not None and self.stack.fabric.link == "roce":
            subprocess.run(["bash", "-ec", "\n".join(cabling(self.stack))], check=True)
        for name in self.addresses:
            self.wait_for(name)
        print(f"# {len(self.addresses)} machines booted: {time.monotonic() - started:.0f} s\n", flush=True)

    def start(self, name: str) -> None:
        """Boot a machine; one that was stopped has the files that it had."""
        group = next(group for group in self.stack.nodes if name in group.names)
        accelerators = hardware_of(group).accelerators if "compute" in group.roles else None
        count = str(accelerators.count) if accelerators else "0"
        environment = os.environ | {"ADMIN": self.stack.admin, "SHARED_SOFTWARE": " ".join(software())}
        environment["TRAINWORKS"] = str(TRAINWORKS)
        fabric = self.stack.fabric
        is_checked = fabric is not None and fabric.link == "roce" and "compute" in group.roles
        environment["RDMA_DEVICES"] = " ".join(fabric.devices) if fabric and is_checked else ""
        with (HALL / f"{name}.log").open("ab") as log:
            self._machines[name] = subprocess.Popen(
                [HERE / "node.sh", name, f"{self.addresses[name]}/{self.stack.network.prefixlen}", count],
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def stop(self, name: str) -> None:
        """Take the power from a machine, and wait until it is gone."""
        run(f"ssh {self.stack.admin}@{name} 'sudo systemctl poweroff --force --force'", lambda code, printed: True)
        self._machines[name].wait(timeout=60)

    def wait_for(self, name: str, *, new: bool = False) -> None:
        """Wait until a machine answers over ssh; a new one has another key than the one that is known of its name."""
        deadline = time.monotonic() + BOOT_S
        known = ["-o", "UserKnownHostsFile=/dev/null"] if new else []
        while subprocess.run(
            ["ssh", *known, f"{self.stack.admin}@{name}", "true"], capture_output=True, check=False
        ).returncode:
            if time.monotonic() > deadline:
                raise SystemExit(f"{name} did not boot within {BOOT_S} s: {(HALL / f'{name}.log').read_text()}")
            subprocess.run(["sleep", "0.5"], check=True)


class Pager(BaseHTTPRequestHandler):
    """The webhook of the stack file, and the boards of the machines."""

    pages: queue.Queue[str] = queue.Queue()
    hall: Hall

    def do_POST(self) -> None:
        """One message of Alertmanager."""
        message = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        for one in message["alerts"]:
            labels = one["labels"]
            page = f"{one['status']} {labels['alertname']} {labels.get('node') or labels.get('run')}"
            print(f"# at {time.strftime('%X')} Alertmanager says: {page}", flush=True)
            self.pages.put(page)
        self.send_response(200)
        self.end_headers()

    def do_GET(self) -> None:
        """`/start/gpu1` and `/stop/gpu1`: the power of a machine."""
        _, word, name = self.path.split("/")
        if word == "start":
            self.hall.start(name)
        else:
            subprocess.run(["ssh", f"{self.hall.stack.admin}@{name}", "sudo systemctl poweroff"], check=False)
        self.send_response(200)
        self.end_headers()

    def log_message(self, *args: object) -> None:
        """Nothing."""


def cabling(stack: Stack) -> list[str]:
    """Commands for the switches of the fabric, each a namespace that routes, and for their cables.

    Routes are static where those of the rendered text come by BGP. A switch answers for every address that it has a
    route to (proxy ARP), so that the cables between switches need no addresses.
    """
    found = switches(stack)
    lines = [line for switch in found for line in _ports(switch)]
    ends = {(switch.name, link[1]): f"to-{link[1]}" for switch in found for link in switch.links}
    cables = [(name, other) for name, other in ends if name < other]
    for name, other in cables:
        lines.append(f"ip link add to-{other} netns {name} type veth peer name to-{name} netns {other}")
        lines += [f"ip -n {one} link set to-{far} mtu 9216 up" for one, far in ((name, other), (other, name))]
    for leaf in found:
        for _, rail in leaf.rails:  # a spine sends to the leaf of an address, and another leaf to a spine
            towards = [
                (name, end)
                for (name, other), end in ends.items()
                if other == leaf.name or (name != leaf.name and "leaf" in name)
            ]
            lines += [f"ip -n {name} route replace {rail.address} dev {end}" for name, end in towards]
    return lines


def _ports(switch: SwitchPorts) -> list[str]:
    lines = [f"ip netns add {switch.name}", f"ip -n {switch.name} link set lo up"]
    for key in ("ip_forward=1", "conf.all.proxy_arp=1", "conf.default.proxy_arp=1", "conf.all.rp_filter=0"):
        lines.append(f"ip netns exec {switch.name} sysctl -qw net.ipv4.{key}")
    for port, rail in switch.rails:
        far = f"name {rail.interface} netns {rail.host}"
        lines.append(f"ip link add swp{port} netns {switch.name} type veth peer {far}")
        lines.append(f"ip -n {switch.name} link set swp{port} mtu 9216 up")
        lines.append(f"ip -n {switch.name} address add {rail.gateway}/31 dev swp{port}")
    return lines


def software() -> list[str]:
    """Folders of this Python and of Trainworks, which every machine sees under the same path."""
    entries = [Path(entry).resolve() for entry in sys.path if entry]
    kept: list[Path] = []
    for folder in [Path(sys.base_prefix), Path(sys.prefix), *entries]:
        if folder.is_dir() and folder != HERE and not any(folder.is_relative_to(each) for each in kept):
            kept.append(folder)
    return [str(folder) for folder in kept]


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


def build() -> float:
    """From machines with ssh alone to a cluster that is as the stack says; seconds of the first `apply`."""
    run("trainworks deploy check stack.yaml")
    started = time.monotonic()
    run(f"trainworks deploy apply {DEPLOY}")
    seconds = time.monotonic() - started
    run(f"trainworks deploy verify {DEPLOY}")
    run(f"trainworks deploy apply {DEPLOY}", unchanged)
    return seconds
