"""TW2xx: variables of NCCL, and tests of a network."""

from __future__ import annotations

import re
from collections.abc import Iterator
from difflib import get_close_matches
from functools import cache, partial
from importlib import resources

from trainworks.catalog.catalog import accelerator, node
from trainworks.catalog.facts import Accelerator
from trainworks.errors import UsageError
from trainworks.review.files import ReviewedFile
from trainworks.review.finding import Edit, Problem
from trainworks.review.readers.launch import count_of, nodes_of
from trainworks.review.readers.shell import Command, Setting
from trainworks.review.rule import rule
from trainworks.review.versions import Releases
from trainworks.units import format_quantity

_nccl_rule = partial(rule, source="https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html")
_NCCL_TEST = re.compile(r"(?:all_reduce|all_gather|reduce_scatter|alltoall|broadcast|reduce|sendrecv)_perf(?:_mpi)?")
_LINES_TO_TABLE = 12
"""Lines between a command and the table of its results."""
_IN_WORDS = re.compile(
    r"(?<!\d)(\d{1,2})(?:\s?卡|\s?[张块]\s?(?:GPU|IB\s?卡|网?卡)"
    r"|[- ]GPU\b[^.\n]{0,12}(?:nodes?|servers?|machines?|box(?:es)?)\b)"
)
_MANY_GPUS = 8
"""GPUs of a node of the catalogue, all of which have several NICs."""


@_nccl_rule(
    "TW201",
    "NCCL uses one adapter of many",
    "warning",
    why="The list is a filter: NCCL leaves every other adapter idle. A DGX or HGX with eight accelerators has eight "
    "NICs for them, and loses 7/8 of the bandwidth between nodes.",
    fix="Remove the variable: NCCL finds the adapters itself. To leave out an adapter for storage, exclude it: "
    "`NCCL_IB_HCA=^=mlx5_4`.",
    bad="export NCCL_IB_HCA=mlx5_0:1\ntorchrun --standalone --nproc-per-node=8 train.py\n",
    good="export NCCL_IB_HCA=^=mlx5_4\ntorchrun --standalone --nproc-per-node=8 train.py\n",
)
def one_adapter(file: ReviewedFile) -> Iterator[Problem]:
    """A single adapter with its number, in a file that uses as many GPUs per node as a node with several NICs has."""
    for setting in _named(file, "NCCL_IB_HCA"):
        if re.fullmatch(r"=?(?:mlx\d_|bnxt_re)\d+(?::\d+)?", setting.value) and _gpus_per_node(file) >= _MANY_GPUS:
            nics = node("DGX A100").nics
            yield setting.problem(f"`{setting.value}` is one adapter; a node such as DGX A100 has {nics}")


@_nccl_rule(
    "TW202",
    "LL128 is forced",
    "warning",
    why="NCCL enables LL128 itself where the platform supports it. Forced on another platform it can corrupt data.",
    fix="Remove the variable; to exclude a protocol, write `NCCL_PROTO=^LL128`.",
    bad="export NCCL_PROTO=LL128\n",
    good="export NCCL_PROTO=^LL128\n",
)
def forced_protocol(file: ReviewedFile) -> Iterator[Problem]:
    """LL128 in a list of protocols that does not exclude, without a tuner of the platform beside it."""
    tuned = any(name.startswith(("NCCL_TUNER_", "NCCL_FASTRAK_")) for name in file.values)
    for setting in _named(file, "NCCL_PROTO") if not tuned else ():
        if not setting.value.startswith("^") and re.search(r"\bLL128\b", setting.value, re.IGNORECASE):
            yield setting.problem(f"`{setting.value}` forces the protocol LL128")


@rule(
    "TW203",
    "NCCL traces every call",
    "warning",
    why="`TRACE` prints a line for every call of every rank; `WARN` is the minimum for production and `INFO` prints "
    "what NCCL chose.",
    fix="Set `NCCL_DEBUG=WARN`.",
    source="https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/troubleshooting/logging.html",
    bad="export NCCL_DEBUG=TRACE\n",
    good="export NCCL_DEBUG=WARN\n",
)
def traced_calls(file: ReviewedFile) -> Iterator[Problem]:
    """`NCCL_DEBUG=TRACE`."""
    for setting in _named(file, "NCCL_DEBUG"):
        if setting.value.upper() == "TRACE":
            yield setting.problem("`NCCL_DEBUG=TRACE` prints every call")


@_nccl_rule(
    "TW204",
    "InfiniBand is configured and disabled",
    "warning",
    why="`NCCL_IB_DISABLE=1` makes NCCL use IP sockets between nodes, and the other `NCCL_IB_` variables have no "
    "effect.",
    fix="Remove `NCCL_IB_DISABLE`, or the variables that it disables.",
    bad="export NCCL_IB_DISABLE=1\nexport NCCL_IB_HCA=mlx5\n",
    good="export NCCL_IB_HCA=mlx5\n",
)
def disabled_infiniband(file: ReviewedFile) -> Iterator[Problem]:
    """`NCCL_IB_DISABLE=1` beside a variable that selects adapters."""
    others = {"NCCL_IB_HCA", "NCCL_IB_GID_INDEX"} & file.values.keys()
    for setting in _named(file, "NCCL_IB_DISABLE"):
        if setting.value == file.values[setting.name] == "1" and others and file.kind != "text":
            named = ", ".join(f"`{name}`" for name in sorted(others))
            yield setting.problem(f"`NCCL_IB_DISABLE=1` makes {named} useless")


@_nccl_rule(
    "TW205",
    "NVLink is switched off",
    "warning",
    why="`NCCL_P2P_DISABLE=1` disables direct access between GPUs: the ranks of a node exchange data through host "
    "memory over PCIe and not over NVLink.",
    fix="Remove the variable; it works around a defect of one machine.",
    file="train.sbatch",
    bad="#!/bin/bash\n#SBATCH --gres=gpu:a100:8\nexport NCCL_P2P_DISABLE=1\n",
    good="#!/bin/bash\n#SBATCH --gres=gpu:a100:8\nexport NCCL_DEBUG=WARN\n",
)
def disabled_nvlink(file: ReviewedFile) -> Iterator[Problem]:
    """`NCCL_P2P_DISABLE=1` in a batch script that requests accelerators with a link of their own."""
    part = _requested(file)
    for setting in _named(file, "NCCL_P2P_DISABLE"):
        if setting.value == "1" and part is not None and part.scale_up.startswith("NVLink"):
            link = format_quantity(part.scale_up_bytes_per_s, "bytes/s")
            host = format_quantity(part.host_bytes_per_s, "bytes/s")
            yield setting.problem(f"the ranks of a node use PCIe ({host}) and not {part.scale_up} ({link})")


@_nccl_rule(
    "TW206",
    "Nodes meet on an interface of one host",
    why="NCCL connects the ranks over this interface. The loopback and the bridge of Docker do not leave the host, so "
    "ranks of other nodes cannot connect.",
    fix="Name the interface of the cluster network, or exclude the others: `NCCL_SOCKET_IFNAME=^lo,docker0`.",
    file="train.sbatch",
    bad="#!/bin/bash\n#SBATCH --nodes=4\nexport NCCL_SOCKET_IFNAME=lo\nsrun python train.py\n",
    good="#!/bin/bash\n#SBATCH --nodes=4\nexport NCCL_SOCKET_IFNAME=^lo,docker0\nsrun python train.py\n",
)
def interface_of_one_host(file: ReviewedFile) -> Iterator[Problem]:
    """The loopback or Docker's bridge, in a job of several nodes."""
    for name in ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME"):
        settings = list(_named(file, name))
        if _num_nodes(file) > 1 and all(re.fullmatch(r"=?(?:lo|docker\d*)", each.value) for each in settings):
            for setting in settings:
                yield setting.problem(f"`{setting.value}` does not leave the host")


@_nccl_rule(
    "TW207",
    "A second ^ in a list of interfaces",
    why="One `^` at the start excludes the whole list. A later one becomes part of a name that no interface has, so "
    "that interface is used.",
    fix="Keep the first `^` only.",
    bad="export NCCL_SOCKET_IFNAME=^lo,^docker0\n",
    good="export NCCL_SOCKET_IFNAME=^lo,docker0\n",
)
def repeated_exclusion(file: ReviewedFile) -> Iterator[Problem]:
    """A `^` behind a comma."""
    for setting in _named(file, "NCCL_SOCKET_IFNAME", "NCCL_IB_HCA"):
        if ",^" in setting.value:
            yield setting.problem(f"`{setting.value}`: only the first `^` excludes", _remove_carets(file, setting))


@rule(
    "TW208",
    "NCCL does not know the variable",
    "warning",
    why="NCCL ignores a variable that it does not know, without a message, so the setting has no effect.",
    fix="Correct the name.",
    source="https://github.com/NVIDIA/nccl (`NCCL_PARAM` in src/, v2.30)",
    bad="export NCCL_SOCKET_IFNAMES=eth0\n",
    good="export NCCL_SOCKET_IFNAME=eth0\n",
    holds_for=Releases("nccl", until="2.30"),
)
def unknown_variable(file: ReviewedFile) -> Iterator[Problem]:
    """A name that is one slip away from a variable of NCCL, or a timeout, which NCCL has for InfiniBand alone."""
    for setting in file.settings:
        name = setting.name
        if name in ("NCCL_TIMEOUT", "NCCL_TIMEOUT_MS", "NCCL_SOCKET_TIMEOUT", "NCCL_COMM_TIMEOUT"):
            yield setting.problem(f"NCCL ignores `{name}`; `init_process_group(timeout=...)` limits a collective")
        if name.startswith("NCCL_") and name not in _variables():
            near = get_close_matches(name, _variables(), n=1, cutoff=0.93)
            if near:
                yield setting.problem(f"NCCL ignores `{name}`; it knows `{near[0]}`")


@rule(
    "TW209",
    "A variable of PyTorch has a new name",
    "note",
    why="PyTorch 2.2 renamed its variables for NCCL to `TORCH_NCCL_...`, and every rank warns about the old one.",
    fix="Put `TORCH_` before the name.",
    source="https://github.com/pytorch/pytorch (c10d/Utils.hpp, whose warning was read in logs)",
    bad="export NCCL_ASYNC_ERROR_HANDLING=1\n",
    good="export TORCH_NCCL_ASYNC_ERROR_HANDLING=1\n",
    holds_for=Releases("torch", since="2.2"),
)
def renamed_variable(file: ReviewedFile) -> Iterator[Problem]:
    """`NCCL_ASYNC_ERROR_HANDLING` without its new name beside it."""
    for setting in _named(file, "NCCL_ASYNC_ERROR_HANDLING"):
        if f"TORCH_{setting.name}" not in file.text:
            edits = file.edit(setting.line, setting.column, setting.name, f"TORCH_{setting.name}")
            yield setting.problem(f"`{setting.name}` is now `TORCH_{setting.name}`", edits)


@rule(
    "TW210",
    "The adapter is taken for a host",
    why="The argument of these tests is the address of the server; without one the program is the server. A name of "
    "an adapter is looked up as a host and fails.",
    fix="Name the adapter with `-d`.",
    source="https://github.com/linux-rdma/perftest/blob/master/README",
    file="test.sh",
    bad="ib_send_bw mlx5_0\n",
    good="ib_send_bw -d mlx5_0 --report_gbits server\n",
)
def adapter_for_host(file: ReviewedFile) -> Iterator[Problem]:
    """A test of perftest whose first argument is the name of an adapter."""
    for command in file.commands:
        name, *arguments = command.words
        if re.fullmatch(r"ib_(?:send|write|read|atomic)_(?:bw|lat)", name.text.rpartition("/")[2]) and arguments:
            word = arguments[0]
            if re.fullmatch(r"(?:mlx[45]_|bnxt_re|irdma|hfi1_|efa_|rdmap)\d+", word.text):
                yield word.problem(f"`{word.text}` is taken for a server", (Edit(word.line, word.column, 0, "-d "),))


@rule(
    "TW220",
    "The test stays inside one node",
    "warning",
    why="`-g 8` is a process with eight GPUs, and a process runs on one node. Figures for more GPUs need processes on "
    "every node, which MPI joins. What one node reaches is the rate of NVLink, and says nothing of the network.",
    fix="Start a process per GPU on all nodes: `mpirun -np 32 -npernode 8 all_reduce_perf -g 1`, built with `MPI=1`.",
    source="https://github.com/NVIDIA/nccl-tests#running",
    file="results.md",
    bad="```\nall_reduce_perf -b 8 -e 8G -f 2 -g 8\n```\n\n| one node (8x GPU) | 4 nodes (32x GPU) |\n|---|---|\n",
    good="```\nmpirun -np 32 all_reduce_perf -b 8 -e 8G\n```\n\n| one node (8x GPU) | 4 nodes (32x GPU) |\n|---|---|\n",
)
def test_of_one_node(file: ReviewedFile) -> Iterator[Problem]:
    """A test of nccl-tests without a launcher, in a job of several nodes or above a table of more GPUs."""
    nodes = count_of(file.options.get("nodes")) or 1
    for command in file.commands:
        gpus = _gpus_of_test(command)
        if not gpus:
            continue
        line, column = command.line, command.words[0].column
        below = "\n".join(file.lines[line : line + _LINES_TO_TABLE]) if file.kind == "text" else ""
        ranks = max((int(found) for found in re.findall(r"(?<!\d)(\d+)\s*[x×]\s*GPU", below)), default=0)
        if nodes > 1:
            yield Problem(line, column, f"this measures {gpus} GPUs of one node, and the job has {nodes} nodes")
        elif ranks > gpus:
            yield Problem(line, column, f"this measures {gpus} GPUs of one node, and the table has {ranks}")


def _gpus_of_test(command: Command) -> int:
    """GPUs of one process of nccl-tests that the shell starts by itself; 0 for another command, or for one GPU."""
    name, *arguments = command.texts
    if not _NCCL_TEST.fullmatch(name.rpartition("/")[2]):
        return 0
    found = re.search(r"(?:^| )(?:-g|--ngpus)[ =]?(\d+)(?: |$)", " ".join(arguments))
    gpus = int(found[1]) if found else 1
    return gpus if gpus > 1 else 0


def _named(file: ReviewedFile, *names: str) -> Iterator[Setting]:
    return (setting for setting in file.settings if setting.name in names)


def _num_nodes(file: ReviewedFile) -> int:
    """The most nodes that the file names; 1 if it names none, and for a text, whose examples are of several jobs."""
    if file.kind == "text":
        return 1
    launched = (nodes_of(script, launch) or 1 for script, launch in file.launches)
    return max([count_of(file.options.get("nodes")) or 1, *launched])


def _gpus_per_node(file: ReviewedFile) -> int:
    """The most processes or GPUs per node that the file names; 0 if it names none."""
    launched = [script.number(launch.values.get("nproc_per_node")) or 0 for script, launch in file.launches]
    written = [int(found[1]) for found in re.finditer(r"\b(\d{1,2}) ?[x×] ?(?:NVIDIA )?[ABH]\d{2,3}\b", file.text)]
    written += [int(found[1]) for found in _IN_WORDS.finditer(file.text if file.kind == "text" else "")]
    requested = re.search(r"(\d+)$", file.options.get("gpus-per-node") or file.options.get("gres") or "")
    return max([0, *launched, *written, int(requested[1]) if requested else 0])


def _requested(file: ReviewedFile) -> Accelerator | None:
    """The kind of accelerator in the request of a batch script; None if it is unknown."""
    for name in ("gpus-per-node", "gres", "gpus"):
        found = re.match(r"(?:gpu:)?([A-Za-z][\w.-]*):\d+$", file.options.get(name, ""))
        if found and found[1] != "gpu":
            try:
                return accelerator(found[1])
            except UsageError:
                return None
    return None


def _remove_carets(file: ReviewedFile, setting: Setting) -> tuple[Edit, ...]:
    """Remove every `^` behind a comma, where the value stands in the line as it is."""
    start = file.lines[setting.line - 1].find(setting.value, setting.value_column - 1)
    if start < 0:
        return ()
    carets = (found.start() + 1 for found in re.finditer(r",\^", setting.value))
    return tuple(Edit(setting.line, start + at + 1, 1, "") for at in carets)


@cache
def _variables() -> frozenset[str]:
    text = resources.files("trainworks.review").joinpath("nccl_variables.txt").read_text(encoding="utf-8")
    return frozenset(line for line in text.split("\n") if line and not line.startswith("#"))
