"""TW5xx: data loaders and samplers of PyTorch programs."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import replace
from functools import partial

from trainworks.review.files import ReviewedFile
from trainworks.review.finding import Problem
from trainworks.review.readers.python import Call
from trainworks.review.rule import rule
from trainworks.review.versions import Releases

_DATALOADER = "https://github.com/pytorch/pytorch/blob/main/torch/utils/data/dataloader.py"
_loader_rule = partial(rule, file="train.py", source=_DATALOADER)
_SAMPLER = "https://docs.pytorch.org/docs/stable/data.html#torch.utils.data.distributed.DistributedSampler"
_HELD_OUT = re.compile(r"val|test|eval|dev", re.IGNORECASE)
_SHARDS = re.compile(
    r"[Ss]ampler|IterableDataset|webdataset|shard|split_dataset|accelerat|lightning|fabric|\]\s*\*\s*world_size"
)
_WAITS = re.compile(r"barrier\(|wait_for_everyone|process_first|FileLock|monitored_barrier|local_master")
_IMPORTS = "from torch.utils.data import DataLoader, DistributedSampler\n"
_DDP = "from torch.nn.parallel import DistributedDataParallel as DDP\n"


@_loader_rule(
    "TW501",
    "Every epoch has the same order",
    "warning",
    why="DistributedSampler derives the order of its shuffle from the epoch that `set_epoch` gives it. Without the "
    "call, every epoch visits the data in the same order.",
    fix="Call `sampler.set_epoch(epoch)` at the start of each epoch.",
    source=_SAMPLER,
    bad=_IMPORTS + "sampler = DistributedSampler(train_set)\nloader = DataLoader(train_set, sampler=sampler)\n"
    "for epoch in range(10):\n    for batch in loader:\n        step(batch)\n",
    good=_IMPORTS + "sampler = DistributedSampler(train_set)\nloader = DataLoader(train_set, sampler=sampler)\n"
    "for epoch in range(10):\n    sampler.set_epoch(epoch)\n    for batch in loader:\n        step(batch)\n",
)
def missing_set_epoch(file: ReviewedFile) -> Iterator[Problem]:
    """A shuffling sampler of training data, a loop over epochs, and no `set_epoch`."""
    code = file.python
    samplers = (
        [] if "set_epoch" in code.text else list(code.calls_of("DistributedSampler", "ElasticDistributedSampler"))
    )
    loops = (
        [f"{ast.unparse(node.target)} {ast.unparse(node.iter)}" for node in code.nodes_of(ast.For)] if samplers else []
    )
    if not any("epoch" in loop.lower() for loop in loops):
        return
    for call in samplers:
        statement = ast.unparse(call.node)
        target = code.parents.get(call.node)
        named = ast.unparse(target) if isinstance(target, ast.Assign) else statement
        shuffles = call.argument("shuffle") is None or call.constant("shuffle") is True
        if call.name.startswith("torch.") and shuffles and not _HELD_OUT.search(named):
            yield call.problem("the sampler shuffles, and nothing calls `set_epoch`")


@_loader_rule(
    "TW502",
    "Every rank reads all data",
    "warning",
    why="DistributedDataParallel does not divide the data. Without a sampler each rank goes through the whole data "
    "set: N ranks do N epochs, and call it one.",
    fix="Give the loader a `DistributedSampler(dataset)` in place of `shuffle=True`.",
    source=_SAMPLER,
    bad=_DDP + "from torch.utils.data import DataLoader\nmodel = DDP(model)\n"
    "loader = DataLoader(train_set, batch_size=32, shuffle=True)\n",
    good=_DDP + _IMPORTS + "model = DDP(model)\n"
    "loader = DataLoader(train_set, batch_size=32, sampler=DistributedSampler(train_set))\n",
)
def undivided_data(file: ReviewedFile) -> Iterator[Problem]:
    """A shuffling loader beside DistributedDataParallel, in a file without any kind of sharding."""
    code = file.python
    wrapped = any(call.name.startswith("torch.") for call in code.calls_of("DistributedDataParallel"))
    wrapped = wrapped or any(call.name == "deepspeed.initialize" for call in code.calls_of("initialize"))
    if wrapped and not _SHARDS.search(code.text):
        for call in code.calls_of("DataLoader"):
            if call.constant("shuffle") is True and not _HELD_OUT.search(ast.unparse(call.node)):
                yield call.problem("each rank reads the whole data set: the loader has no sampler")


@_loader_rule(
    "TW503",
    "A sampler and shuffle",
    why="DataLoader raises `sampler option is mutually exclusive with shuffle`.",
    fix="Remove `shuffle=True`; DistributedSampler shuffles itself.",
    bad=_IMPORTS + "loader = DataLoader(data, shuffle=True, sampler=DistributedSampler(data))\n",
    good=_IMPORTS + "loader = DataLoader(data, sampler=DistributedSampler(data))\n",
)
def sampler_and_shuffle(file: ReviewedFile) -> Iterator[Problem]:
    """`shuffle=True` beside a sampler that is constructed in the call, or before it."""
    for call in file.python.calls_of("DataLoader"):
        if _has_sampler(file, call) and call.constant("shuffle") is True:
            yield call.problem("`sampler` and `shuffle=True` exclude each other")


def _has_sampler(file: ReviewedFile, call: Call) -> bool:
    """The sampler of a loader is an object of a class; a function such as `get_sampler` may return None instead."""
    made = _constructed(file, call.argument("sampler"))
    return made is not None and ast.unparse(made.func).rpartition(".")[2][0].isupper()


def _constructed(file: ReviewedFile, value: ast.expr | None) -> ast.Call | None:
    """The call that makes a value: the value itself, or what the code gives to its name, if it is a call each time."""
    if isinstance(value, ast.Call) or value is None:
        return value if isinstance(value, ast.Call) else None
    calls = file.python.values_of(value)
    last = calls[-1] if calls else None
    return last if isinstance(last, ast.Call) and all(isinstance(each, ast.Call) for each in calls) else None


@_loader_rule(
    "TW504",
    "Options of workers without workers",
    why="DataLoader raises a ValueError: `persistent_workers` and `prefetch_factor` need `num_workers` above 0.",
    fix="Set `num_workers`, or remove the option.",
    bad=_IMPORTS + "loader = DataLoader(data, num_workers=0, persistent_workers=True)\n",
    good=_IMPORTS + "loader = DataLoader(data, num_workers=8, persistent_workers=True)\n",
)
def options_without_workers(file: ReviewedFile) -> Iterator[Problem]:
    """Such an option with `num_workers=0`, or without the argument."""
    for call in file.python.calls_of("DataLoader"):
        workers = call.argument("num_workers")
        unpacked = any(keyword.arg is None for keyword in call.node.keywords) or len(call.node.args) > 5
        none = (workers is None and not unpacked) or call.constant("num_workers") == 0
        if not call.name.startswith("torch.") or not none:
            continue
        message = "`persistent_workers` or `prefetch_factor` with 0 workers"
        if call.constant("persistent_workers") is True or isinstance(call.constant("prefetch_factor"), int):
            is_old_default = call.constant("persistent_workers") is not True and call.constant("prefetch_factor") == 2
            holds_for = Releases("torch", since="2.0") if is_old_default else None  # 2 was the default before
            yield replace(call.problem(message), holds_for=holds_for)


@_loader_rule(
    "TW505",
    "A batch sampler and its options",
    why="DataLoader raises a ValueError: `batch_sampler` decides about `batch_size`, `shuffle`, `sampler` and "
    "`drop_last`.",
    fix="Give these options to the batch sampler.",
    bad="from torch.utils.data import DataLoader\nloader = DataLoader(data, batch_sampler=batches, batch_size=32)\n",
    good="from torch.utils.data import DataLoader\nloader = DataLoader(data, batch_sampler=batches)\n",
)
def options_of_batch_sampler(file: ReviewedFile) -> Iterator[Problem]:
    """A literal option beside a batch sampler that is not None."""
    for call in file.python.calls_of("DataLoader"):
        sampler = call.argument("batch_sampler")
        if not call.name.startswith("torch.") or sampler is None or isinstance(sampler, ast.Constant | ast.IfExp):
            continue
        sized = isinstance(call.constant("batch_size"), int) and call.constant("batch_size") != 1
        if sized or call.constant("shuffle") is True or call.constant("drop_last") is True:
            yield call.problem("`batch_sampler` excludes `batch_size`, `shuffle` and `drop_last`")


@_loader_rule(
    "TW506",
    "A stream is not shuffled by its loader",
    why="DataLoader raises a ValueError for `shuffle` or `sampler` with an IterableDataset, which decides about its "
    "own order.",
    fix="Shuffle inside the data set, and let it choose its part by rank.",
    bad="from torch.utils.data import DataLoader, IterableDataset\nclass Stream(IterableDataset):\n    pass\n"
    "loader = DataLoader(Stream(), shuffle=True)\n",
    good="from torch.utils.data import DataLoader, IterableDataset\nclass Stream(IterableDataset):\n    pass\n"
    "loader = DataLoader(Stream())\n",
)
def shuffled_stream(file: ReviewedFile) -> Iterator[Problem]:
    """A loader of an IterableDataset of the file with `shuffle=True` or a sampler."""
    loaders = list(file.python.calls_of("DataLoader"))
    classes = file.python.nodes_of(ast.ClassDef) if loaders else ()
    streams = {each.name for each in classes if any("IterableDataset" in ast.unparse(base) for base in each.bases)}
    for call in loaders if streams else ():
        data = _constructed(file, call.node.args[0] if call.node.args else call.argument("dataset"))
        stream = data is not None and isinstance(data.func, ast.Name) and data.func.id in streams
        if stream and (call.constant("shuffle") is True or _has_sampler(file, call)):
            yield call.problem("an IterableDataset takes neither `shuffle` nor `sampler`")


@_loader_rule(
    "TW507",
    "Every process downloads the data",
    "warning",
    why="All processes of a node write the same files at the same time: one reads a file that another has not "
    "finished, and ends with an error of its checksum or archive. The data are also fetched once per process.",
    fix="Download on one rank, `if local_rank == 0:`, and let the others wait in `dist.barrier()`.",
    source="https://docs.pytorch.org/vision/stable/datasets.html",
    bad=_DDP + "from torchvision import datasets\nmodel = DDP(net)\ndata = datasets.CIFAR10('data', download=True)\n",
    good=_DDP + "from torchvision import datasets\nmodel = DDP(net)\nif local_rank == 0:\n"
    "    datasets.CIFAR10('data', download=True)\ndist.barrier()\ndata = datasets.CIFAR10('data')\n",
)
def downloads_together(file: ReviewedFile) -> Iterator[Problem]:
    """`download=True` of torchvision on every rank of a DDP program in which no rank waits for another."""
    code = file.python
    if "download=True" not in code.text or _WAITS.search(code.text):
        return
    wrapped = any(code.calls_of("DistributedDataParallel", "FullyShardedDataParallel"))
    for call in code.calls if wrapped else ():
        downloads = call.name.startswith("torchvision.datasets.") and call.constant("download") is True
        if downloads and not code.is_on_one_rank(call.node):
            yield call.problem(f"every rank calls `{call.name.rpartition('.')[2]}` with `download=True`")
