"""What many nodes cost: how long their agents take to meet over torch's own rendezvous, and one job of them.

    python benchmarks/many_nodes.py --meet 8,64,256
    python benchmarks/many_nodes.py --job 10,100,1000 --ranks 8

All nodes are processes of this machine, so what is measured is what they ask of the store, the supervisor and the
record; on machines of their own each has a core for it. A meeting is waited for up to `--longest` seconds, and what
needs longer is not asked again with more nodes. The ranks of the job are shells that print a loss every five seconds
for a minute, below agents as a local command has them.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from queue import Empty
from typing import Any

import torch.distributed as dist
from torch.distributed.elastic.rendezvous.c10d_rendezvous_backend import C10dRendezvousBackend
from torch.distributed.elastic.rendezvous.dynamic_rendezvous import DynamicRendezvousHandler, RendezvousTimeout

from trainworks.host.network import free_ports
from trainworks.worker.health.meeting import KnownNodes
from trainworks.worker.mesh import open_store

ADDRESS = "127.0.0.1"
PATIENCE = timedelta(minutes=10)
STEPS, EVERY_S = 12, 5
PROGRAM = f'for i in $(seq {STEPS}); do echo "step $i/{STEPS}: loss $((20 - i)).5"; sleep {EVERY_S}; done\n'
Handler = Callable[[dist.Store, int, int], Any]
COMMANDS = (["status"], ["why"], ["report"], ["logs", "--rank", "0"], ["exporter", "--once", "--collect", "runs"])


def main() -> int:
    """Measure what is asked for, and print it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--meet", default="", metavar="NODES,NODES")
    parser.add_argument("--job", default="", metavar="NODES,NODES")
    parser.add_argument("--ranks", type=int, default=8, help="of each node of the job")
    parser.add_argument("--longest", type=float, default=120.0, help="seconds for which a meeting is waited for")
    parser.add_argument("--json", type=Path, metavar="FILE")
    wanted = parser.parse_args()
    found: dict[str, Any] = {"meet": {}, "job": {}}
    handlers: dict[str, Handler] = {"trainworks": own_handler, "torch": torch_handler}
    for nodes in sorted(map(int, filter(None, wanted.meet.split(",")))):
        for name, handler in list(handlers.items()):
            seconds, used = meeting(handler, nodes, wanted.longest)
            if seconds is None:
                del handlers[name]
            found["meet"][f"{nodes} {name}"] = {"s": seconds, "processor_s": used}
            took = f"{seconds:8.2f} s, {used:7.1f} s of processor time" if seconds else "   not within the limit"
            print(f"{nodes:6} nodes meet, {name:10} {took}", flush=True)
    for nodes in map(int, filter(None, wanted.job.split(","))):
        figures = found["job"][str(nodes)] = job(nodes, wanted.ranks)
        print(
            f"{nodes:6} nodes of {wanted.ranks} ranks: " + ", ".join(f"{k} {v:.4g}" for k, v in figures.items()),
            flush=True,
        )
    if wanted.json:
        wanted.json.write_text(json.dumps(found | {"command": sys.argv}, indent=2) + "\n")
    return 0


def own_handler(store: dist.Store, node: int, nodes: int) -> Any:
    """That of the node agents."""
    return KnownNodes("run", store, node, nodes, ADDRESS)


def torch_handler(store: dist.Store, node: int, nodes: int) -> Any:
    """That of torchrun, with its settings."""
    backend, timeout = C10dRendezvousBackend(store, "run"), RendezvousTimeout(join=PATIENCE)
    return DynamicRendezvousHandler.from_backend(
        "run", store, backend, nodes, nodes, local_addr=ADDRESS, timeout=timeout
    )


def meeting(handler: Handler, nodes: int, longest_s: float) -> tuple[float | None, float]:
    """Seconds until all nodes have met, None if they did not, and the processor time of all."""
    context = multiprocessing.get_context("fork")
    (port,) = free_ports(ADDRESS, [0])
    ready, done, go = context.Queue(), context.Queue(), context.Event()

    def node(number: int) -> None:
        store = open_store(ADDRESS, port, serves=number == 0, timeout=PATIENCE)
        ready.put(number)
        go.wait()
        used = time.process_time()
        handler(store, number, nodes).next_rendezvous()
        done.put(time.process_time() - used)
        time.sleep(PATIENCE.total_seconds())  # the first one serves the store

    processes = [context.Process(target=node, args=(number,), daemon=True) for number in range(nodes)]
    for process in processes:
        process.start()
    for _ in processes:
        ready.get()
    started, used = time.monotonic(), 0.0
    go.set()
    try:
        for _ in processes:
            used += done.get(timeout=max(0.1, started + longest_s - time.monotonic()))
        seconds: float | None = time.monotonic() - started
    except Empty:
        seconds = None
    for process in processes:
        process.kill()
    for process in processes:
        process.join()
    return seconds, used


def job(nodes: int, ranks: int) -> dict[str, float]:
    """Figures of one command on so many nodes of this machine."""
    with tempfile.TemporaryDirectory(prefix="many-nodes-") as folder:
        Path(folder, "stub.sh").write_text(PROGRAM)
        text = f"name: wide\nrun: bash stub.sh\nnum_nodes: {nodes}\nresources: {{cpus: 0.001}}\n"
        Path(folder, "run.yaml").write_text(text + f"cluster: {{engine: local, processes_per_node: {ranks}}}\n")
        environment = os.environ | {"TRAINWORKS_DATA": f"{folder}/data"}
        program = [str(Path(sys.executable).with_name("trainworks"))]
        quiet: dict[str, Any] = {
            "cwd": folder,
            "env": environment,
            "stdout": subprocess.DEVNULL,
            "stderr": subprocess.DEVNULL,
        }
        started, before = time.monotonic(), _children_s()
        run = subprocess.Popen([*program, "run", "run.yaml"], **quiet)
        logs = Path(folder, "runs", "wide-1", "logs")
        while run.poll() is None and sum(1 for log in logs.glob("rank-*.log") if log.stat().st_size) < nodes * ranks:
            time.sleep(0.2)
        figures = {"started after s": time.monotonic() - started}
        run.wait()
        took = time.monotonic() - started
        figures |= {"ended after s": took - STEPS * EVERY_S, "exit code": float(run.returncode)}
        figures["processor s"] = _children_s() - before
        files = [each for each in logs.parent.rglob("*") if each.is_file()]
        figures |= {"files": float(len(files)), "MB": sum(each.stat().st_size for each in files) / 1e6}
        for command in COMMANDS:
            before = _children_s()
            subprocess.run([*program, *command], check=False, **quiet)
            figures[f"{command[0]} processor s"] = _children_s() - before
        return figures


def _children_s() -> float:
    """Processor time of all processes that have ended below this one."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


if __name__ == "__main__":
    sys.exit(main())
