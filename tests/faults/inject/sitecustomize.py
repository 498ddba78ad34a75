"""Hurts one rank of a real run from inside: Python imports this module by itself if its folder is in PYTHONPATH.

TRAINWORKS_TEST_FAULT is `kind:rank:step`, or `limit:rank:MiB` of address space more than it has before the model.
A fault happens in the first attempt only, so that recovery can be seen; a `bug` happens in every attempt.
`slow` steps take 0.4 s up to the step, and twice as long after it; `jitter` lets every second step take 0.2 s.
`held` has no fault: ranks wait after a step as long as there is a file `hold-STEP`, and say so by a file `held-STEP`,
in the folder TRAINWORKS_TEST_HOLD or else where they run.
"""

import errno
import importlib.abc
import importlib.machinery
import json
import os
import resource
import sys
import time
from multiprocessing import forkserver
from pathlib import Path

READER, TOKENS = "trainworks.worker.data.reader", "trainworks.worker.data.tokens"
MESH = "trainworks.worker.mesh"
_LEFT = 13


class _Loader(importlib.abc.Loader):
    """Runs the module as it is, then puts the fault into it."""

    def __init__(self, real):
        self._real = real

    def create_module(self, spec):
        return self._real.create_module(spec)

    def exec_module(self, module):
        self._real.exec_module(module)
        if os.environ["TRAINWORKS_TEST_FAULT"].startswith("leave:"):
            report_slowly()
        harm(module)


class _Finder(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        kind, _, _ = os.environ["TRAINWORKS_TEST_FAULT"].partition(":")
        if name != {"limit": TOKENS, "links": MESH}.get(kind, READER):
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path)
        spec.loader = _Loader(spec.loader)
        return spec


def harm(module):
    """Replace `next_batch` by one that does what the fault says, and then reads."""
    kind, _, _ = os.environ["TRAINWORKS_TEST_FAULT"].partition(":")
    if kind in ("limit", "held", "links"):
        {"limit": limit, "held": let_wait, "links": links}[kind](module)
        return
    healthy = module.BatchReader.next_batch
    calls = 0

    def next_batch(reader):
        nonlocal calls
        calls += 1
        kind, rank, step = os.environ["TRAINWORKS_TEST_FAULT"].split(":")
        mine = rank in ("all", os.environ["RANK"])
        if kind in PAUSES and mine:
            time.sleep(PAUSES[kind](calls, int(step)))
        elif kind == "bug" and mine and steps_done() + calls == int(step):
            bug()
        elif kind not in (*PAUSES, "bug") and calls == int(step) and is_first_attempt():
            if kind == "deadlock":
                deadlock()
            elif mine:
                globals()[kind]()
        return healthy(reader)

    module.BatchReader.next_batch = next_batch


PAUSES = {
    "straggle": lambda calls, step: 0.2,
    "slow": lambda calls, step: 0.4 if steps_done() + calls <= step else 0.8,
    "jitter": lambda calls, step: 0.2 * (calls % 2),
}
"""Seconds before a batch, in every attempt."""


def let_wait(module):
    """Let all ranks wait for the test after some steps, so that a slow test finds the run where it expects it."""
    healthy = module.BatchReader.next_batch
    calls = 0

    def next_batch(reader):
        nonlocal calls
        step = steps_done() + calls
        calls += 1
        folder = Path(os.environ.get("TRAINWORKS_TEST_HOLD", "."))
        hold = folder / f"hold-{step}"
        if hold.exists():
            (folder / f"held-{step}").touch()
        while hold.exists():
            time.sleep(0.01)
        return healthy(reader)

    module.BatchReader.next_batch = next_batch


def limit(module):
    """Let one rank have little memory, from when it opens its data."""
    healthy = module.TokenDataset.__init__

    def open_limited(dataset, *arguments, **options):
        _, rank, mebibytes = os.environ["TRAINWORKS_TEST_FAULT"].split(":")
        if os.environ["RANK"] == rank:
            has = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
            most = has + int(mebibytes) * 2**20
            resource.setrlimit(resource.RLIMIT_AS, (most, most))
        healthy(dataset, *arguments, **options)

    module.TokenDataset.__init__ = open_limited


def links(module):
    """Let one rank stand still before it meets the others in their groups."""
    healthy = module.Mesh.check_links

    def check_links(mesh, *arguments):
        if os.environ["RANK"] == os.environ["TRAINWORKS_TEST_FAULT"].split(":")[1] and is_first_attempt():
            read()
        healthy(mesh, *arguments)

    module.Mesh.check_links = check_links


def is_first_attempt():
    """Whether nobody has been hurt yet."""
    return not any(event["kind"] == "failure" for event in events())


def steps_done():
    """Of the checkpoint that this attempt resumed from."""
    resumed = [event.get("resumed_from_step", 0) for event in events() if event["kind"] == "attempt"]
    return resumed[-1] if resumed else 0


def events():
    """Of the run; a line that another process is writing is left for the next look."""
    file = next(Path("runs").glob("*/events.jsonl"))  # a cluster's volume has other folders beside the run's
    *lines, _ = file.read_text().split("\n")
    return [json.loads(line) for line in lines if line]


def bug():
    """An error of the program."""
    raise ValueError("the program is wrong")


def ecc():
    """What torch raises when an accelerator finds an error in its memory."""
    raise RuntimeError("CUDA error: uncorrectable ECC error encountered")


def stale():
    """What a network file system says after its server came back."""
    raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))


def leave():
    """An exit without a word."""
    os._exit(_LEFT)


def report_slowly():
    """Let the fork server, which becomes a fork of this process, rest between the exit code and the end of its pipe."""
    healthy = forkserver.write_signed

    def write_signed(pipe, number):
        healthy(pipe, number)
        if number == _LEFT:
            time.sleep(0.5)

    forkserver.write_signed = write_signed


def read():
    """A disk that does not answer."""
    time.sleep(3600)


def hoard():
    """A leak of 2 GiB, page by page."""
    globals()["hoarded"] = b"x" * 2**31


def forward():
    """The next attention sleeps."""
    from trainworks.worker.models import attention

    attention.scaled_dot_product_attention = lambda *_, **__: time.sleep(3600)


def hold():
    """C code that never gives the interpreter back."""
    import ctypes

    ctypes.PyDLL(None).sleep(3600)


def deadlock():
    """Rank 0 waits to be sent something, the others to sum something."""
    import torch
    import torch.distributed as dist

    if dist.get_rank() == 0:
        dist.recv(torch.zeros(3), 1)
    dist.all_reduce(torch.zeros(7))


if "TRAINWORKS_TEST_FAULT" in os.environ:
    sys.meta_path.insert(0, _Finder())
