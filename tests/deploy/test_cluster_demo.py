"""The hall of `make cluster-demo`: it leaves nothing behind; and a small cluster that is built in it for real."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from trainworks.config.stack import load_stack
from trainworks.deploy.layers import packages_of

DEMO = Path("examples/cluster-demo").resolve()
CGROUPS = Path("/sys/fs/cgroup")
NAMESPACES = os.geteuid() == 0 and all(map(shutil.which, ("unshare", "ip", "setpriv")))

pytestmark = [
    pytest.mark.root,
    pytest.mark.skipif(not NAMESPACES, reason="needs root, unshare, ip and setpriv"),
]


def hall(*command: str, **variables: str) -> subprocess.Popen[str]:
    """A command in a hall, in a process group of its own."""
    environment = os.environ | {"GATEWAY": "10.77.0.1/24", "BASE": "/none"} | variables
    return subprocess.Popen(
        [DEMO / "hall.sh", *command], env=environment, stdout=subprocess.PIPE, text=True, process_group=0
    )


def processes_with(word: str) -> list[int]:
    """Processes whose environment has a word."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if word.encode() in (folder / "environ").read_bytes():
                found.append(int(folder.name))
        except OSError:
            continue
    return found


def mounts() -> list[str]:
    """Those of this machine, without the small disks of tests that run meanwhile."""
    lines = Path("/proc/mounts").read_text().splitlines()
    return [line for line in lines if "/trainworks-small-disk-" not in line]


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, None])
def test_nothing_is_left_after_the_end_of_a_hall_however_it_ends(number: signal.Signals | None) -> None:
    """A machine of it is a process in a cgroup and a network namespace of their own."""
    machine = """
        for each in $CONTROLLERS; do mkdir -p "/sys/fs/cgroup/$each/$CGROUP/gpu1"; done
        ip netns add gpu1; ip link add gpu1-h type veth peer name eth0 netns gpu1
        setsid ip netns exec gpu1 unshare --mount --pid --fork --kill-child sleep 1000 > /dev/null &
        echo "$CGROUP"; read -r -t "${WAITS}"
    """
    before = mounts()
    started = hall("bash", "-c", machine, WAITS="0.1" if number is None else "1000")
    assert started.stdout is not None
    cgroup = started.stdout.readline().strip()
    assert cgroup.startswith("trainworks-demo-")
    assert number is None or processes_with(f"CGROUP={cgroup}")
    if number is not None:
        started.send_signal(number)
    started.wait(timeout=60)
    started.stdout.close()
    deadline = time.monotonic() + 240
    while processes_with(f"CGROUP={cgroup}") or list(CGROUPS.glob(f"*/{cgroup}")):
        assert time.monotonic() < deadline, (processes_with(f"CGROUP={cgroup}"), list(CGROUPS.glob(f"*/{cgroup}")))
        time.sleep(0.1)
    assert mounts() == before
    assert not Path("/run/hall").exists()
    links = subprocess.run(["ip", "-brief", "link"], capture_output=True, text=True, check=True).stdout
    assert "gpu1-h" not in links


@pytest.mark.slow
@pytest.mark.slurm
@pytest.mark.skipif(
    shutil.which("debootstrap") is None, reason="needs debootstrap, and fifteen minutes: make cluster-demo"
)
@pytest.mark.skipif(
    "TRAINWORKS_CLUSTER_DEMO" not in os.environ, reason="fifteen minutes: set TRAINWORKS_CLUSTER_DEMO=1"
)
def test_the_whole_demonstration() -> None:
    base = subprocess.run([DEMO / "base.sh"], stdout=subprocess.PIPE, text=True, check=True).stdout.strip()
    demo = hall(sys.executable, str(DEMO / "demo.py"), BASE=base)
    printed, _ = demo.communicate(timeout=3600)
    assert demo.returncode == 0, printed[-8000:]
    assert "the whole demonstration" in printed


@pytest.mark.parametrize(
    "file", [DEMO / "stack.yaml", *sorted((DEMO / "shapes").glob("*.yaml"))], ids=lambda file: file.stem
)
def test_the_mirror_has_what_the_roles_install(file: Path) -> None:
    """A package that is missing there ends the first apply on a machine that reaches no other archive."""
    needed = packages_of(load_stack(file)[0])
    by_part = [*needed.values(), *dict(needed["slurm_packages"]).values()]  # type: ignore[call-overload]
    names = {name for part in by_part if isinstance(part, list) for name in part}
    assert len(names) > 10
    assert sorted(names - set((DEMO / "packages").read_text().splitlines())) == []
