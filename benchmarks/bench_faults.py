"""Planted faults that `trainworks bench` has to name first: slow links and nodes, slow memory, slow disks.

    python benchmarks/bench_faults.py --trials 10      # needs root: network namespaces, tc; cc for the slow disk

- link: five nodes, each in a network namespace on one bridge; tc limits the traffic between two of them.
- node: likewise, tc limits everything that one node sends.
- memory: of six nodes that measure the triad in turn one shares cores and memory with another program.
- disk: of six folders, one is written and read through a library that sleeps after every call.

A trial counts if the first outlier of the report is what was planted.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from itertools import combinations
from pathlib import Path

from trainworks.measure.bench.host_programs import compiled, measure_triad
from trainworks.measure.bench.measurement import Measurement
from trainworks.measure.bench.node_record import PART
from trainworks.measure.bench.outliers import find_outliers
from trainworks.measure.bench.storage import measure_storage

NODES, PEERS = 5, 6
RATE, SLOW_RATE = "400mbit", "100mbit"
"""Every node has the first one, so that the shared processors do not limit the links."""
SLOW_DISK = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <unistd.h>
#define SLOW(name) \
    ssize_t name(int f, const void *b, size_t n, off_t o) { \
        static ssize_t (*real)(int, const void *, size_t, off_t); \
        if (!real) real = dlsym(RTLD_NEXT, #name); \
        usleep(n / 200); /* 200 MB/s */ \
        return real(f, b, n, o); \
    }
SLOW(pwrite)
SLOW(pwrite64)
"""


def sh(text: str) -> None:
    subprocess.run(text, shell=True, check=True)


class Network:
    """Nodes in namespaces on one bridge, as long as the block lasts."""

    def __enter__(self) -> Network:
        sh("ip link add twbr type bridge; ip link set twbr up")
        for node in range(NODES):
            sh(f"ip netns add tw{node}; ip link add twv{node} type veth peer name eth0 netns tw{node}")
            sh(f"ip link set twv{node} master twbr up; ip -n tw{node} link set lo up; ip -n tw{node} link set eth0 up")
            sh(f"ip -n tw{node} address add 10.77.0.{node + 1}/24 dev eth0")
            tc(node, "qdisc add dev eth0 root handle 1: htb default 10")
            tc(node, f"class add dev eth0 parent 1: classid 1:10 htb rate {RATE} burst 64k quantum 60000")
        return self

    def __exit__(self, *_: object) -> None:
        for node in range(NODES):
            subprocess.run(["ip", "netns", "delete", f"tw{node}"], check=False)
        subprocess.run(["ip", "link", "delete", "twbr"], check=False)

    def slow_link(self, first: int, second: int) -> None:
        for one, other in ((first, second), (second, first)):
            tc(one, f"class add dev eth0 parent 1: classid 1:20 htb rate {SLOW_RATE} burst 64k quantum 60000")
            match = f"u32 match ip dst 10.77.0.{other + 1}/32 flowid 1:20"
            tc(one, f"filter add dev eth0 protocol ip parent 1: prio 1 {match}")

    def slow_node(self, node: int) -> None:
        tc(node, f"class change dev eth0 parent 1: classid 1:10 htb rate {SLOW_RATE} burst 64k quantum 60000")

    def measure(self) -> list[Measurement]:
        """The figures of the ranks' program, one process per namespace."""
        addresses = "\n".join(f"10.77.0.{node + 1}" for node in range(NODES))
        env = os.environ | {"SKYPILOT_NODE_IPS": addresses, "GLOO_SOCKET_IFNAME": "eth0", "OMP_NUM_THREADS": "1"}
        request = json.dumps({"kinds": ["network"]})
        module = [sys.executable, "-m", "trainworks.worker.bench.ranks", request]
        started = [
            subprocess.Popen(
                [
                    "ip",
                    "netns",
                    "exec",
                    f"tw{node}",
                    *module,
                    str(node),
                    str(NODES),
                    f"node{node + 1}",
                    "10.77.0.1",
                    "29700",
                ],
                env=env,
                stdout=subprocess.PIPE,
                text=True,
            )
            for node in range(NODES)
        ]
        outputs = [process.communicate()[0] for process in started]
        parts = [json.loads(line) for line in outputs[0].splitlines()]
        return [figure for part in parts if part.pop("part", None) for figure in PART.validate_python(part).figures]


def tc(node: int, command: str) -> None:
    sh(f"tc -n tw{node} {command}")


def link(chance: random.Random) -> tuple[str, str]:
    first, second = chance.choice(list(combinations(range(NODES), 2)))
    with Network() as network:
        network.slow_link(first, second)
        return f"node{first + 1} <-> node{second + 1}", first_outlier(network.measure())


def node(chance: random.Random) -> tuple[str, str]:
    slow = chance.randrange(NODES)
    with Network() as network:
        network.slow_node(slow)
        return f"node{slow + 1}", first_outlier(network.measure())


def half_memory(chance: random.Random) -> tuple[str, str]:
    """The same triad runs beside the slow node's, so that each has half of the cores and of the memory's rate."""
    slow = chance.randrange(PEERS)
    program = compiled("stream_triad", flags=("-fopenmp",))
    cpus = ",".join(map(str, sorted(os.sched_getaffinity(0))))
    best: dict[int, Measurement] = {}
    for each in [*range(PEERS)] * 3:  # in turns, because the machine's own rate changes: of each the best
        beside = subprocess.Popen([program, "16000000", "1000000", cpus]) if each == slow else None
        time.sleep(0.5)  # until its arrays are made
        (found,) = measure_triad(full=False)
        best[each] = max(best.get(each, found), found, key=lambda figure: figure.value)
        if beside:
            beside.kill()
            beside.wait()
    figures = [named(figure, each) for each, figure in best.items()]
    return f"node{slow + 1} numa0", first_outlier(figures)


def disk(chance: random.Random) -> tuple[str, str]:
    slow, figures = chance.randrange(PEERS), []
    with tempfile.TemporaryDirectory(dir=".") as name:
        folder = Path(name)
        (folder / "slow.c").write_text(SLOW_DISK, encoding="utf-8")
        sh(f"cc -shared -fPIC -o {folder}/slow.so {folder}/slow.c -ldl")
        for each in range(PEERS):
            preload = {"LD_PRELOAD": str(folder.absolute() / "slow.so")} if each == slow else {}
            done = subprocess.run(
                [sys.executable, __file__, "--disk", str(folder)],
                env=os.environ | preload,
                capture_output=True,
                text=True,
                check=True,
            )
            figures += [named(one, each) for one in PART.validate_json(done.stdout).figures]
    writes = [each for each in figures if each.conditions["operation"] == "checkpoint"]
    return f"node{slow + 1}", first_outlier(writes).split()[0]


def named(figure: Measurement, index: int) -> Measurement:
    return Measurement(
        figure.quantity, figure.value, f"node{index + 1} {figure.subject}", figure.tool, figure.conditions
    )


def first_outlier(figures: list[Measurement]) -> str:
    found = find_outliers(figures)
    return found[0].subject if found else "nothing"


FAULTS: dict[str, Callable[[random.Random], tuple[str, str]]] = {
    "link": link,
    "node": node,
    "memory": half_memory,
    "disk": disk,
}


def main() -> int:
    """Print every trial, and how often the fault was named first; exit code 1 below nine of ten."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=10)
    parser.add_argument("--only", choices=FAULTS)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--disk", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.disk:
        figures = measure_storage(options.disk, full=False)
        sys.stdout.write(PART.dump_json({"figures": figures}, warnings=False).decode())
        return 0
    chance, right = random.Random(0), {}
    for name in [options.only] if options.only else FAULTS:
        trials = [FAULTS[name](chance) for _ in range(options.trials)]
        right[name] = sum(planted == found for planted, found in trials)
        print(
            f"{name:7} {right[name]} of {options.trials}", *(f"\n  {p}: {f}" for p, f in trials if p != f), flush=True
        )
    if options.json:
        options.json.write_text(
            json.dumps({"trials": options.trials, "right": right}, indent=1) + "\n", encoding="utf-8"
        )
    return int(any(10 * count < 9 * options.trials for count in right.values()))


if __name__ == "__main__":
    sys.exit(main())
