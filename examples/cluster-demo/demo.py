"""Six throw-away Debian machines, the stack of `stack.yaml` on them, and a training over it: `make cluster-demo`.

Runs inside `hall.sh`. Each command is printed as a user would type it, with its output and time; one that ends
differently than the demonstration says ends all with 1. `demo.py chain`, of `make chain`, goes from a goal to the bill,
over a slow node and one that dies. `demo.py shell` gives a shell after the machines have booted.
"""

from __future__ import annotations

import re
import subprocess  # noqa: TID251  # an example, and no part of the package
import sys
import time

from hall import DEPLOY, HALL, HERE, PAGE_S, Hall, Pager, build, run

SLOW = "gpu3"
"""Node with a bad cable."""


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


def order() -> None:
    """From three lines to the order, the stack file, and the job, on paper: these machines have no GPUs."""
    run("cat goal.yaml")
    run(
        "trainworks size goal.yaml --contract own --engine slurm --only H100"
        " --write sized.yaml --write-stack bought.yaml --bill order.csv | sed -n '1,/^$/p'"
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
        lambda code, printed: re.search(r"^outcome +\S", printed, re.M) is not None,
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
    started = time.monotonic()
    # an acceptance asks for the accelerators of the stack, and there are none
    without = {', accelerators: "h100:2"': ""} if sys.argv[1:] == ["chain"] else None
    hall = Hall(HERE / "stack.yaml", without)
    for name in ("run.yaml", "goal.yaml", "chain.yaml", "repair.yaml"):
        (HALL / name).write_text((HERE / name).read_text())
    hall.boot()
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
