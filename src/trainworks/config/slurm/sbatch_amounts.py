"""Slurm syntax of times, memory sizes and node lists, and the amounts per node that the options of sbatch request.

Slurm counts per job, per node, per task and per accelerator; a run file counts per node. Where the options leave the
numbers per node to Slurm, as `--gpus=16` does, they are passed on unchanged.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from trainworks.config.slurm.sbatch_options import Option
from trainworks.errors import QuantityError, UsageError

AMOUNTS = frozenset({
    "nodes", "ntasks", "ntasks-per-node", "ntasks-per-gpu", "cpus-per-task", "cpus-per-gpu", "gpus",
    "gpus-per-node", "gpus-per-task", "gres", "mem", "mem-per-cpu", "mem-per-gpu",
})  # fmt: skip
"""Options that this module reads."""
ANY_ACCELERATOR = "gpu"
"""Name of an accelerator of any kind."""
_COUNTS = ("ntasks", "ntasks-per-node", "ntasks-per-gpu", "cpus-per-task", "cpus-per-gpu")
_ALTERNATIVES = (("mem", "mem-per-cpu", "mem-per-gpu"), ("cpus-per-task", "cpus-per-gpu"))

Options = Mapping[str, Option]


@dataclass(frozen=True, slots=True, kw_only=True)
class Amounts:
    """Number of nodes and resources of each."""

    min_nodes: int
    nodes: int
    tasks_per_node: int = 1
    accelerator: str = ANY_ACCELERATOR
    accelerators: int = 0
    cores: int | None = None
    memory_bytes: int | None = None
    other: tuple[Option | str, ...]
    """Options to pass on: for other resources, such as `--gres=nvme:1`, or all of them if Slurm chooses the numbers."""


class _ChosenBySlurmError(Exception):
    """The options do not give the same numbers for every node."""


def amounts_of(options: Options) -> Amounts:
    """Compute the amounts of a job.

    Raises:
        UsageError: an invalid number, or options that contradict each other.
    """
    for alternatives in _ALTERNATIVES:
        written = [options[name] for name in alternatives if name in options]
        if len(written) > 1:
            raise UsageError(f"`{written[0]}` and `{written[1]}` exclude each other", place=written[1].place)
    for option in (options[name] for name in _COUNTS if name in options):
        _number(option)
    try:
        return _node_amounts(options)
    except _ChosenBySlurmError:
        least, nodes = _node_range(options)
        chosen = tuple(option for option in options.values() if option.name in AMOUNTS)
        return Amounts(min_nodes=least or 1, nodes=nodes or 1, other=chosen)


def _node_amounts(options: Options) -> Amounts:
    least, nodes, tasks = _nodes_and_tasks(options)
    accelerator, accelerators = _accelerators(options, nodes, tasks, is_range=least != nodes)
    if "ntasks-per-gpu" in options:
        tasks = _number(options["ntasks-per-gpu"]) * max(1, accelerators)
    cores = _cores(options, tasks, accelerators)
    memory_bytes = _memory_bytes(options, cores or tasks, accelerators)
    others = _gres(options, of_accelerators=False)
    return Amounts(
        min_nodes=least,
        nodes=nodes,
        tasks_per_node=tasks,
        accelerator=accelerator,
        accelerators=accelerators,
        cores=cores,
        memory_bytes=memory_bytes or None,
        other=(*([f"--gres={','.join(others)}"] if others else []), *(["--mem=0"] if memory_bytes == 0 else [])),
    )


def _number(option: Option, text: str | None = None) -> int:
    written = option.text if text is None else text
    if not re.fullmatch(r"0*[1-9][0-9]{0,8}", written):
        raise UsageError(f"`{written}` is not an integer of at least 1", place=option.place)
    return int(written)


def _nodes_and_tasks(options: Options) -> tuple[int, int, int]:
    """Fewest nodes, most nodes, and tasks of each."""
    least, nodes = _node_range(options)
    total, per_node = options.get("ntasks"), options.get("ntasks-per-node")
    if per_node is not None:
        tasks = _number(per_node)
        if total is not None and nodes is None:
            nodes = least = _share(total, tasks)
        elif total is not None and (least != nodes or _number(total) != tasks * (nodes or 1)):
            raise _ChosenBySlurmError
        return least or 1, nodes or 1, tasks
    if total is None or "ntasks-per-gpu" in options:
        return least or 1, nodes or 1, 1
    if (nodes is None and _number(total) > 1) or least != nodes:
        raise _ChosenBySlurmError
    return least or 1, nodes or 1, _share(total, nodes or 1)


def _node_range(options: Options) -> tuple[int | None, int | None]:
    if (option := options.get("nodes")) is None:
        return None, None
    least, _, most = option.text.partition("-")
    first, last = _number(option, least), _number(option, most or least)
    if last < first:
        raise UsageError(f"`{option}` has a last number below the first", place=option.place)
    return first, last


def _share(total: Option, parts: int) -> int:
    number = _number(total)
    if number % parts:
        raise _ChosenBySlurmError
    return number // parts


def _accelerators(options: Options, nodes: int, tasks: int, *, is_range: bool) -> tuple[str, int]:
    """Kind and number per node; all options about accelerators have to agree."""
    found = list(_named_accelerators(options, nodes, tasks, is_range=is_range))
    if not found:
        return ANY_ACCELERATOR, 0
    first = found[0][0]
    for option, _, count in found:
        if count != found[0][2]:
            raise UsageError(f"`{option}` is {count} per node, and `{first}` is {found[0][2]}", place=option.place)
    kinds = list(dict.fromkeys(kind for _, kind, _ in found if kind))
    if len(kinds) > 1:
        raise UsageError(f"a node has accelerators of one kind, not {' and '.join(kinds)}", place=found[-1][0].place)
    return (kinds or [ANY_ACCELERATOR])[0], found[0][2]


def _named_accelerators(
    options: Options, nodes: int, tasks: int, *, is_range: bool
) -> Iterator[tuple[Option, str, int]]:
    """Option, kind and number per node."""
    if option := options.get("gpus-per-node"):
        yield option, *_kind_and_count(option, option.text)
    for text in _gres(options, of_accelerators=True):
        yield options["gres"], *_kind_and_count(options["gres"], text.partition(":")[2])
    if option := options.get("gpus-per-task"):
        kind, count = _kind_and_count(option, option.text)
        yield option, kind, count * tasks
    if option := options.get("gpus"):
        kind, count = _kind_and_count(option, option.text)
        if is_range or count % nodes or ("nodes" not in options and count > 1 and nodes == 1):
            raise _ChosenBySlurmError
        yield option, kind, count // nodes


def _kind_and_count(option: Option, text: str) -> tuple[str, int]:
    """Parse `h100:8`, `8`, or `h100` for one."""
    kind, _, count = text.rpartition(":")
    if not kind and not count.isdecimal():
        kind, count = count, "1"
    if not re.fullmatch(r"[A-Za-z0-9_.+-]*", kind):
        raise UsageError(
            f"`{option}` does not name accelerators of one kind", place=option.place, hint="write it like `h100:8`"
        )
    return kind, 0 if re.fullmatch("0+", count) else _number(option, count)


def _gres(options: Options, *, of_accelerators: bool) -> list[str]:
    """Generic resources: accelerators, such as `gpu:h100:8`, or all others."""
    items = options["gres"].text.removeprefix("gres:").split(",") if "gres" in options else []
    return [item for item in items if (item.partition(":")[0].partition("=")[0] == "gpu") is of_accelerators]


def _cores(options: Options, tasks: int, accelerators: int) -> int | None:
    if option := options.get("cpus-per-task"):
        return _number(option) * tasks
    if option := options.get("cpus-per-gpu"):
        return _number(option) * _present(option, accelerators)
    return None


def _memory_bytes(options: Options, cores: int, accelerators: int) -> int | None:
    """Memory per node; 0 for all of it."""
    if option := options.get("mem"):
        return _bytes(option)
    if option := options.get("mem-per-cpu"):
        return _bytes(option) * cores
    if option := options.get("mem-per-gpu"):
        return _bytes(option) * _present(option, accelerators)
    return None


def _bytes(option: Option) -> int:
    try:
        return parse_slurm_memory(option.text)
    except QuantityError as error:
        raise UsageError(error.message, place=option.place, hint=error.hint) from None


def _present(option: Option, accelerators: int) -> int:
    if not accelerators:
        raise UsageError(f"`{option}` needs an accelerator", place=option.place, hint="add `--gpus-per-node`")
    return accelerators


_KIB = {"K": 1, "": 1 << 10, "M": 1 << 10, "G": 1 << 20, "T": 1 << 30}
_MAX_NODES = 65536


def parse_slurm_time(text: str) -> float | None:
    """Parse a time limit in seconds; None for no limit (`0`, `UNLIMITED`, `INFINITE`).

    Source: sbatch(1), `--time`: minutes, minutes:seconds, hours:minutes:seconds, days-hours, days-hours:minutes and
    days-hours:minutes:seconds. Slurm rounds up to whole minutes; this does not.

    >>> parse_slurm_time("90"), parse_slurm_time("1:30"), parse_slurm_time("2:00:00"), parse_slurm_time("1-12")
    (5400.0, 90.0, 7200.0, 129600.0)

    Raises:
        QuantityError: the text is not a time.
    """
    if text.upper() in ("UNLIMITED", "INFINITE"):
        return None
    found = re.fullmatch(r"(?:(?P<days>\d+)-)?(?P<first>\d+)(?::(?P<second>\d+))?(?::(?P<third>\d+))?", text, re.ASCII)
    if found is None:
        raise QuantityError(
            f"`{text}` is not a time of Slurm", hint="write it like `30` (minutes), `2:00:00` or `1-12`"
        )
    numbers = [int(part) for part in found.group("first", "second", "third") if part is not None]
    if found["days"] is None and len(numbers) < 3:
        numbers.insert(0, 0)
    hours, minutes, seconds = [*numbers, 0, 0][:3]
    total = ((int(found["days"] or 0) * 24 + hours) * 60 + minutes) * 60 + seconds
    return float(total) or None


def parse_slurm_memory(text: str) -> int:
    """Parse a memory size in bytes; units are powers of 1024, and a bare number is in MiB.

    >>> parse_slurm_memory("64G") == 64 * 2**30, parse_slurm_memory("500") == 500 * 2**20
    (True, True)

    Raises:
        QuantityError: the text is not a size.
    """
    found = re.fullmatch(r"(\d+)([KMGT]?)B?", text, re.IGNORECASE | re.ASCII)
    if found is None:
        raise QuantityError(f"`{text}` is not a memory size of Slurm", hint="write it like `64G`, or `4000M`")
    return int(found[1]) * _KIB[found[2].upper()] * 1024


def expand_nodes(text: str) -> tuple[str, ...]:
    """Expand a list such as `node[1-3,7],login` to the names of its nodes, in order, each once.

    >>> expand_nodes("node[08-10],gpu[1,3]-ib")
    ('node08', 'node09', 'node10', 'gpu1-ib', 'gpu3-ib')

    Raises:
        QuantityError: the list is malformed, or has more than 65536 nodes.
    """
    names: dict[str, None] = {}
    for item in re.findall(r"(?:[^,\[\]]|\[[^\[\]]*\])+|.", text):
        if item == ",":
            continue
        # `a[1-2]b` as [[a], [1, 2], [b]]
        pieces = re.findall(r"\[([^\[\]]*)\]|([^\[\],]+)", item)
        if re.search(r"[\[\]]", re.sub(r"\[[^\[\]]*\]", "", item)) or item.startswith("["):
            raise _malformed(text)
        for parts in itertools.product(*[[plain] if plain else _numbers(inside, text) for inside, plain in pieces]):
            names["".join(parts)] = None
            if len(names) > _MAX_NODES:
                raise _malformed(text)
    if not names:
        raise _malformed(text)
    return tuple(names)


def _numbers(inside: str, whole: str) -> list[str]:
    """`08-10,12` as 08, 09, 10, 12; the first number gives the width."""
    found: list[str] = []
    for part in inside.split(","):
        bounds = re.fullmatch(r"(\d+)(?:-(\d+))?", part, re.ASCII)
        first, last = (int(bounds[1]), int(bounds[2] or bounds[1])) if bounds else (1, 0)
        if bounds is None or last < first or last - first >= _MAX_NODES:
            raise _malformed(whole)
        found += [f"{number:0{len(bounds[1])}d}" for number in range(first, last + 1)]
    return found


def _malformed(text: str) -> QuantityError:
    return QuantityError(f"`{text}` is not a list of nodes", hint="write it like `node[1-3,7],gpu05`")
