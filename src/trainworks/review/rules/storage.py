"""TW51x: exports and mounts of shared file systems."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import partial
from itertools import pairwise

from trainworks.review.files import ReviewedFile
from trainworks.review.finding import Problem
from trainworks.review.rule import rule

_exports_rule = partial(rule, file="exports", source="https://manpages.ubuntu.com/manpages/jammy/man5/exports.5.html")
_mount_rule = partial(rule, file="fstab", source="https://man7.org/linux/man-pages/man5/nfs.5.html")
_SMALL_REQUEST_BYTES = 65_536
_SMALL_SHM_BYTES = 10**9


@_exports_rule(
    "TW511",
    "Options behind a blank",
    why="No blank is permitted between a client and its options. The client gets the default options, which are "
    "read-only, and the options hold for every other host.",
    fix="Remove the blank before the parenthesis.",
    bad="/shared 10.0.0.0/16 (rw,sync)\n",
    good="/shared 10.0.0.0/16(rw,sync)\n",
)
def options_of_everyone(file: ReviewedFile) -> Iterator[Problem]:
    """A list of options that follows the name of a client after a blank."""
    for _, *clients in file.exports:
        for client, after in pairwise(clients):
            if after.text.startswith("(") and not client.text.endswith(")") and not client.text.startswith("-"):
                message = f"`{after.text}` is for every host, and not for `{client.text}`"
                yield Problem(after.line, after.column, message)


@_exports_rule(
    "TW512",
    "Root of any host",
    "warning",
    why="Without root squashing, root of a client is root on the files. Exported to every host, any machine that "
    "reaches the server can change all files of all users.",
    fix="Name the network of the nodes, or leave `no_root_squash` out.",
    bad="/shared *(rw,sync,no_root_squash)\n",
    good="/shared 10.0.0.0/16(rw,sync,root_squash)\n",
)
def root_of_any_host(file: ReviewedFile) -> Iterator[Problem]:
    """`no_root_squash` for `*`, with the right to write."""
    for _, *clients in file.exports:
        for client in clients:
            at = client.option("no_root_squash")
            if at is not None and re.match(r"\*?\(", client.text) and client.option("rw") is not None:
                yield Problem(client.line, at, "root of every host is root on this file system")


@_exports_rule(
    "TW513",
    "The server confirms before it writes",
    "warning",
    why="With `async` the server replies before the data is on its disk. A checkpoint that is complete for the job "
    "can be lost or damaged when the server restarts.",
    fix="Write `sync`, which is the default.",
    bad="/shared 10.0.0.0/16(rw,async)\n",
    good="/shared 10.0.0.0/16(rw,sync)\n",
)
def early_confirmation(file: ReviewedFile) -> Iterator[Problem]:
    """`async` beside `rw`."""
    for _, *clients in file.exports:
        for client in clients:
            at = client.option("async")
            if at is not None and client.option("rw") is not None:
                edits = file.edit(client.line, at, "async", "sync")
                yield Problem(client.line, at, "a restart of the server can lose data that it has confirmed", edits)


@_mount_rule(
    "TW514",
    "A soft mount that writes",
    "warning",
    why="A soft mount gives an error to the program after some retries, and can corrupt data silently: programs do not "
    "expect a write to fail. A server that is busy for some minutes ends the job.",
    fix="Write `hard`, which waits for the server.",
    bad="server:/shared /shared nfs rw,soft,timeo=50 0 0\n",
    good="server:/shared /shared nfs rw,hard 0 0\n",
)
def soft_mount(file: ReviewedFile) -> Iterator[Problem]:
    """`soft` or `softerr` of a mount of NFS that is not read-only."""
    for fields in file.mounts:
        options = fields[3]
        at = options.option("soft") or options.option("softerr")
        if fields[2].text in ("nfs", "nfs4") and at is not None and options.option("ro") is None:
            yield Problem(options.line, at, f"`{fields[1].text}` loses writes when its server is slow")


@_mount_rule(
    "TW515",
    "Small requests to the file server",
    "warning",
    why="Client and server agree on the largest request that both support, up to 1 MiB. A smaller one multiplies the "
    "number of requests for a checkpoint or a shard.",
    fix="Leave `rsize` and `wsize` out.",
    bad="server:/shared /shared nfs rw,hard,rsize=8192,wsize=8192 0 0\n",
    good="server:/shared /shared nfs rw,hard 0 0\n",
)
def small_requests(file: ReviewedFile) -> Iterator[Problem]:
    """`rsize` or `wsize` below 64 KiB."""
    for fields in file.mounts:
        options = fields[3]
        for found in re.finditer(r"\b([rw]size)=(\d+)", options.text):
            if fields[2].text in ("nfs", "nfs4") and int(found[2]) < _SMALL_REQUEST_BYTES:
                column = options.column + found.start()
                yield Problem(options.line, column, f"`{found[0]}`: 1 MiB takes {2**20 // int(found[2])} requests")


@rule(
    "TW516",
    "Little shared memory",
    "warning",
    why="Workers of data loaders pass batches through /dev/shm, and NCCL passes data between processes of a node. By "
    "default it has half of the memory; a small limit ends them with a bus error.",
    fix="Leave the line out, or set a share of the memory: `size=50%`.",
    source="https://docs.kernel.org/filesystems/tmpfs.html",
    file="fstab",
    bad="tmpfs /dev/shm tmpfs size=64M 0 0\n",
    good="tmpfs /dev/shm tmpfs size=50% 0 0\n",
)
def small_shm(file: ReviewedFile) -> Iterator[Problem]:
    """`size` of /dev/shm below 1 GB."""
    for fields in file.mounts:
        found = re.search(r"\bsize=(\d+)([kKmMgG]?)\b(?!%)", fields[3].text)
        if fields[1].text == "/dev/shm" and found:  # noqa: S108  # the name of the folder is what is looked for
            num_bytes = int(found[1]) * 1024 ** " kmg".index(found[2].lower() or " ")
            if num_bytes < _SMALL_SHM_BYTES:
                column = fields[3].column + found.start()
                yield Problem(fields[3].line, column, f"`{fields[1].text}` has {found[1]}{found[2]} bytes")
