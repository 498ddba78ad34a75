"""TW21x: variables of NCCL whose values weaken it, or that it does not read any more."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import partial

from trainworks.review.files import ReviewedFile
from trainworks.review.finding import Problem
from trainworks.review.rule import rule
from trainworks.review.versions import Releases

_nccl_rule = partial(rule, source="https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html")
_REMOVED = {
    "NCCL_IB_CUDA_SUPPORT": "2.4",
    "NCCL_SINGLE_RING_THRESHOLD": "2.3",
    "NCCL_LL_THRESHOLD": "2.5",
    "NCCL_TREE_THRESHOLD": "2.5",
}
"""Release of NCCL that removed a variable."""
_ALGORITHMS = {
    "NCCL_ALGO": ("ring", "tree", "collnet", "collnetchain", "collnetdirect", "nvls", "nvlstree", "pat"),
    "NCCL_PROTO": ("ll", "ll128", "simple"),
}


@_nccl_rule(
    "TW211",
    "GPUDirect RDMA is switched off",
    "warning",
    why="`LOC` means that NICs never read or write the memory of a GPU: every message between nodes is copied through "
    "host memory.",
    fix="Remove the variable: NCCL chooses the level by the distance of GPU and NIC.",
    bad="export NCCL_NET_GDR_LEVEL=LOC\n",
    good="export NCCL_NET_GDR_LEVEL=PHB\n",
)
def disabled_gpudirect(file: ReviewedFile) -> Iterator[Problem]:
    """`NCCL_NET_GDR_LEVEL` is `LOC`, or 0."""
    for setting in file.settings:
        if setting.name == "NCCL_NET_GDR_LEVEL" and setting.value.upper() in ("LOC", "0"):
            yield setting.problem(f"`{setting.name}={setting.value}` disables GPUDirect RDMA")


@_nccl_rule(
    "TW224",
    "A ring is forced",
    "warning",
    why="The latency of a ring grows with the number of ranks, that of a tree with its logarithm. NCCL chooses by size "
    "and topology, and a list that lacks NVLS gives up the reduction in the switches of H100 and newer.",
    fix="Remove the variable.",
    bad="export NCCL_ALGO=Ring\n",
    good="export NCCL_ALGO=^NVLS\n",
)
def forced_ring(file: ReviewedFile) -> Iterator[Problem]:
    """`NCCL_ALGO` is Ring alone, without other values beside it, in a file that does not name determinism."""
    same = re.search(r"determin|repro|CUBLAS_WORKSPACE_CONFIG", file.text, re.IGNORECASE)
    for setting in file.settings if not same else ():
        others = re.search(r"\b[Tt]ree\b|CollNet|NVLS", file.lines[setting.line - 1])
        if setting.name == "NCCL_ALGO" and setting.value.lower() == "ring" and not others:
            yield setting.problem(f"`{setting.name}={setting.value}` forces rings")


@_nccl_rule(
    "TW212",
    "A distance as a number",
    "note",
    why="The numbers of distances change between releases of NCCL, so a number can mean another distance after an "
    "update; the names stay.",
    fix="Write the name: LOC, NVL, PIX, PXB, PHB or SYS.",
    bad="export NCCL_P2P_LEVEL=4\n",
    good="export NCCL_P2P_LEVEL=PHB\n",
)
def distance_as_number(file: ReviewedFile) -> Iterator[Problem]:
    """A level above 0 that is a number."""
    for setting in file.settings:
        if setting.name in ("NCCL_P2P_LEVEL", "NCCL_NET_GDR_LEVEL") and re.fullmatch("[1-9]", setting.value):
            yield setting.problem(f"`{setting.name}={setting.value}` is a number of a distance")


@_nccl_rule(
    "TW213",
    "NCCL removed the variable",
    "note",
    why="NCCL ignores the variable since that release, without a message.",
    fix="Remove it; for GPUDirect RDMA set `NCCL_NET_GDR_LEVEL`.",
    bad="export NCCL_TREE_THRESHOLD=0\n",
    good="export NCCL_DEBUG=WARN\n",
)
def removed_variable(file: ReviewedFile) -> Iterator[Problem]:
    """A variable that NCCL removed."""
    for setting in file.settings:
        if setting.name in _REMOVED:
            release = _REMOVED[setting.name]
            message = f"NCCL ignores `{setting.name}` since {release}"
            yield Problem(setting.line, setting.column, message, holds_for=Releases("nccl", since=release))


@_nccl_rule(
    "TW214",
    "All ranks write one log",
    "warning",
    why="Each process creates the file anew and overwrites what another wrote: the log is lost or mixed up.",
    fix="Make the name unique: `NCCL_DEBUG_FILE=nccl.%h.%p`, with host and process.",
    bad="export NCCL_DEBUG_FILE=/logs/nccl.txt\n",
    good="export NCCL_DEBUG_FILE=/logs/nccl.%h.%p.txt\n",
)
def shared_log(file: ReviewedFile) -> Iterator[Problem]:
    """A file without a process, a host or a variable in its name."""
    for setting in file.settings:
        plain = setting.value and not re.search(r"[%$`]|^/dev/", setting.value)
        if setting.name == "NCCL_DEBUG_FILE" and plain:
            yield setting.problem(f"every process writes `{setting.value}`")


@_nccl_rule(
    "TW215",
    "A prefix selects other adapters",
    "note",
    why="Without `=` each name is a prefix: `mlx5_1` selects `mlx5_10` to `mlx5_19` as well, which a node with more "
    "than ten adapters has.",
    fix="Put `=` before the list.",
    bad="export NCCL_IB_HCA=mlx5_0,mlx5_1,mlx5_2,mlx5_3\n",
    good="export NCCL_IB_HCA==mlx5_0,mlx5_1,mlx5_2,mlx5_3\n",
)
def prefix_of_adapters(file: ReviewedFile) -> Iterator[Problem]:
    """A list with `mlx5_1` and without `=`."""
    for setting in file.settings:
        listed = re.search(r"(?:^\^?|,)mlx5_1(?:$|[,:])", setting.value)
        exact = setting.value.startswith(("=", "^="))
        if setting.name == "NCCL_IB_HCA" and listed and not exact and "," in setting.value:
            exact_list = setting.value.replace("^", "^=") if setting.value.startswith("^") else f"={setting.value}"
            edits = file.edit(setting.line, setting.value_column, setting.value, exact_list)
            yield setting.problem("`mlx5_1` selects `mlx5_10` to `mlx5_19` as well", edits)


@rule(
    "TW216",
    "NCCL does not know the value",
    "warning",
    why="NCCL knows the levels VERSION, WARN, INFO, ABORT and TRACE, and prints nothing at another one.",
    fix="Set `NCCL_DEBUG=INFO` to see what NCCL chose, or `WARN` for errors.",
    source="https://github.com/NVIDIA/nccl (src/debug.cc, v2.30)",
    bad="export NCCL_DEBUG=DEBUG\n",
    good="export NCCL_DEBUG=INFO\n",
    holds_for=Releases("nccl", until="2.30"),
)
def unknown_level(file: ReviewedFile) -> Iterator[Problem]:
    """A plain word that is not a level, and does not ask for silence."""
    for setting in file.settings:
        known = setting.value.upper() in ("VERSION", "WARN", "INFO", "ABORT", "TRACE", "NONE", "OFF")
        if setting.name == "NCCL_DEBUG" and re.fullmatch("[A-Za-z]+", setting.value) and not known:
            yield setting.problem(f"`{setting.value}` is not a level of NCCL_DEBUG")


@_nccl_rule(
    "TW217",
    "A wildcard in a list of prefixes",
    why="NCCL compares the start of each name and knows no wildcards: a name with `*` fits no interface.",
    fix="Remove the `*`: `eth` fits eth0, eth1 and so on.",
    bad="export NCCL_SOCKET_IFNAME=eth*\n",
    good="export NCCL_SOCKET_IFNAME=eth\n",
)
def wildcard(file: ReviewedFile) -> Iterator[Problem]:
    """A `*` in a list of interfaces or adapters."""
    for setting in file.settings:
        if setting.name in ("NCCL_SOCKET_IFNAME", "NCCL_IB_HCA") and "*" in setting.value:
            plain = setting.value.replace("*", "")
            edits = file.edit(setting.line, setting.value_column, setting.value, plain) if plain.strip("^=,") else ()
            yield setting.problem(f"`{setting.value}` fits no name: NCCL has no wildcards", edits)


@_nccl_rule(
    "TW218",
    "More sockets than NCCL opens",
    "warning",
    why="The product of the two variables cannot exceed 64, and threads are at most 16.",
    fix="Set 4 and 4 on a network of 100 Gb/s, or leave both out.",
    bad="export NCCL_SOCKET_NTHREADS=16\nexport NCCL_NSOCKS_PERTHREAD=8\n",
    good="export NCCL_SOCKET_NTHREADS=4\nexport NCCL_NSOCKS_PERTHREAD=4\n",
)
def too_many_sockets(file: ReviewedFile) -> Iterator[Problem]:
    """A product above 64, in a file that sets each of the two once."""
    found = [each for each in file.settings if each.name in ("NCCL_SOCKET_NTHREADS", "NCCL_NSOCKS_PERTHREAD")]
    if len(found) == len({each.name for each in found}) == 2 and all(each.value.isdecimal() for each in found):
        product = int(found[0].value) * int(found[1].value)
        if product > 64:
            yield Problem(found[1].line, found[1].column, f"{found[0].value} x {found[1].value} = {product} sockets")


@_nccl_rule(
    "TW219",
    "An unknown algorithm or protocol",
    why="Since 2.24 NCCL fails on a name that it does not know; before, it ignored the name.",
    fix="Use Ring, Tree, CollnetChain, CollnetDirect, NVLS, NVLSTree or PAT; LL, LL128 or Simple. Without the variable "
    "NCCL chooses.",
    bad="export NCCL_ALGO=Rings\n",
    good="export NCCL_ALGO=Tree\n",
    holds_for=Releases("nccl", until="2.30"),
)
def unknown_algorithm(file: ReviewedFile) -> Iterator[Problem]:
    """A plain name in such a list, after its functions are taken off."""
    for setting in file.settings:
        known = _ALGORITHMS.get(setting.name)
        for names in setting.value.split(";") if known else ():
            for name in names.rpartition(":")[2].lstrip("^").split(","):
                if known and re.fullmatch(r"\w+", name) and name.lower() not in known:
                    yield setting.problem(f"`{name}` is unknown to `{setting.name}`")


@rule(
    "TW221",
    "The results of the test are cut off",
    "warning",
    why="nccl-tests print the sizes from small to large, and the average bandwidth at the end. The first lines hold "
    "the header and the latencies of small messages, and no bandwidth.",
    fix="Keep the whole output: `... | tee all_reduce.txt`.",
    source="https://github.com/NVIDIA/nccl-tests",
    file="bench.sh",
    bad="mpirun -np 16 -N 8 all_reduce_perf -b 8 -e 8G -f 2 -g 1 | head -n 20\n",
    good="mpirun -np 16 -N 8 all_reduce_perf -b 8 -e 8G -f 2 -g 1 | tee all_reduce.txt\n",
)
def cut_results(file: ReviewedFile) -> Iterator[Problem]:
    """A test of nccl-tests, whose output goes through `head`."""
    for script in file.scripts:
        code = re.sub(r"\\\n", "  ", script.text)
        for found in re.finditer(r"\b\w+_perf\b[^|\n#]*\|\s*head\b", code):
            line = script.first_line + script.text.count("\n", 0, found.start())
            if line not in script.comments:
                yield Problem(line, 1, "`head` cuts the bandwidths off")


@rule(
    "TW222",
    "The variable stays on the first node",
    "warning",
    why="Open MPI starts the ranks of other hosts through ssh, with the environment of a new login. A variable that "
    "the script exports reaches them only with `-x`.",
    fix="Add `-x NAME` to mpirun for each variable.",
    source="https://docs.open-mpi.org/en/main/man-openmpi/man1/mpirun.1.html",
    file="bench.sh",
    bad="export NCCL_ALGO=Tree\nmpirun --hostfile hosts -np 16 --bind-to none all_reduce_perf -b 8 -e 8G -f 2 -g 1\n",
    good="mpirun --hostfile hosts -np 16 --bind-to none -x NCCL_ALGO=Tree all_reduce_perf -b 8 -e 8G -f 2 -g 1\n",
)
def variable_of_one_node(file: ReviewedFile) -> Iterator[Problem]:
    """An exported variable of NCCL or of the GPUs, before an Open MPI on named hosts without `-x` for it."""
    if file.kind != "shell" or file.batch is not None or "mca_base_env_list" in file.text:
        return
    for command in file.commands:
        texts = command.texts
        hosts = any(re.fullmatch(r"-H|--?(?:host|hostfile|machinefile)", text) for text in texts)
        open_mpi = any(re.fullmatch(r"--?mca|--?bind-to|--?map-by|-x", text) for text in texts)
        if texts[0].rpartition("/")[2] != "mpirun" or not hosts or not open_mpi:
            continue
        for setting in file.settings:
            exported = re.match(r"\s*export\s", file.lines[setting.line - 1])
            given = any(text.partition("=")[0] == setting.name for text in texts)
            named = setting.name.startswith(("NCCL_", "CUDA_VISIBLE")) and setting.line < command.line
            if named and exported and not given:
                yield setting.problem(f"mpirun gives `{setting.name}` to no other host")


@_nccl_rule(
    "TW225",
    "Ranks of one node talk through the network",
    "warning",
    why="With `NCCL_SHM_DISABLE=1` the ranks of a node that have no direct access to each other's GPU exchange data "
    "through a network adapter in place of host memory.",
    fix="Remove the variable, and give the container more of /dev/shm.",
    bad="NCCL_SHM_DISABLE=1 torchrun --standalone --nproc-per-node=8 train.py\n",
    good="NCCL_DEBUG=WARN torchrun --standalone --nproc-per-node=8 train.py\n",
)
def disabled_shared_memory(file: ReviewedFile) -> Iterator[Problem]:
    """The variable in a script that starts a training, without a comment above it."""
    starts = file.launches or any(c.words[0].text in ("srun", "deepspeed", "mpirun") for c in file.commands)
    for setting in file.settings if starts and file.kind == "shell" else ():
        above = file.lines[setting.line - 2].strip() if setting.line > 1 else ""
        if setting.name == "NCCL_SHM_DISABLE" and setting.value == "1" and not above.startswith("#"):
            yield setting.problem("`NCCL_SHM_DISABLE=1`")
