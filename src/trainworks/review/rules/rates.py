"""TW80x and TW86x: what texts say of networks and of rates over them, held against the catalogue."""

from __future__ import annotations

import re
from collections.abc import Iterator

from trainworks.catalog.bounds import RankGroup, busbw_bound
from trainworks.catalog.catalog import link, node, switch
from trainworks.catalog.facts import Accelerator, Link
from trainworks.review.files import ReviewedFile
from trainworks.review.finding import Problem
from trainworks.review.readers.hardware import only_part, parts_in
from trainworks.review.readers.prose import LINK, NodePorts, ports_in
from trainworks.review.readers.quantities import StatedQuantity
from trainworks.review.readers.statements import Statement
from trainworks.review.rule import rule
from trainworks.units import format_quantity

_CATALOG = "trainworks catalog show {}"
_NEAR = 10
"""Lines above a figure in which its subject is named."""
_REACH = 60
"""Characters between a link and its rate."""
_SLOWEST_TODAY = 26e9
"""Bytes per second of a port of 200 Gb/s, and a little more."""
_GPUS_OF_SERVER = 8
_SPLIT_PORT = re.compile(
    r"(?<!\d)400|NDR200|split|break-?outs?\b|\bhal(?:f|ves?|ved)\b|divid|\bY-?cable|(?:2|two|twin)[ -]*[x×]? ?200"
    r"|\btwo (?:ports|links|lanes|nodes)\b|twin|(?<!\d)128 (?:ports|x|×)|拆分|分拆|拆成|分成|分为|一分二|一拆二|对半",
    re.IGNORECASE,
)
"""Words for an NDR port of 400 Gb/s whose two halves are ports of 200 Gb/s."""
_SINGLE_CARD = re.compile(
    r"(?<![\dA-Za-z])(?:1\s*[x×张块]|one|single|单张?|一[张块])\s*(?=(?:\d+\s?G\S*\s*的?\s*)?"
    r"(?:\w+ )?(?:ConnectX-?\d|NIC|HCA|IB\s?卡|InfiniBand (?:card|adapter)|网卡))"
)
"""One card, whose rate follows: `1x ConnectX-6 100Gb/s`, `一张 100Gb/s 的 IB 卡`."""
_PERFTEST = re.compile(r"ib_(?:send|write|read)_bw")
_GPUS_OF_TEST = re.compile(r"(?:all_reduce|all_gather|reduce_scatter)_perf\b[^`|]*?\s-g\s?(\d+)")
"""GPUs of one process of nccl-tests."""
_RANKS_OF_COLUMN = re.compile(r"(?<!\d)(\d+)\s*[x×]\s*GPU")


@rule(
    "TW801",
    "More than the link carries",
    why="A test of one adapter cannot exceed the rate of its port, twice that in both directions. A factor of eight "
    "is Gb/s written as GB/s.",
    fix="Write Gb/s, or divide by eight.",
    source=_CATALOG.format("PART"),
    file="results.md",
    bad="HDR100 results:\n\n| test | rate |\n|---|---|\n| ib_send_bw | 90+ GB/s |\n",
    good="HDR100 results:\n\n| test | rate |\n|---|---|\n| ib_send_bw | 90+ Gb/s |\n",
)
def rate_above_link(file: ReviewedFile) -> Iterator[Problem]:
    """A rate in bytes of a link before it, or of a test of perftest, above twice the rate of its ports."""
    for statement in file.naming(("link",)):
        if statement.is_denied or statement.names("several ports", "collective", "device memory", "scale-up link"):
            continue
        for rate in statement.quantities("bytes/s"):
            name = _link_of(file, statement, rate) if rate.in_bytes else None
            if name is None:
                continue
            limit = link(name).bytes_per_s
            ports = ports_in(statement.text)
            if rate.value > 2 * limit * (ports.count or 1 if ports else 1):
                yield statement.problem(
                    rate.start, "{stated}: {part} carries {limit} in one direction", part=name,
                    stated=f"{rate.value / 1e9:g} GB/s", limit=format_quantity(limit, "bytes/s"),
                )  # fmt: skip


def _link_of(file: ReviewedFile, statement: Statement, rate: StatedQuantity) -> str | None:
    """The link before a rate in its sentence; of a test of perftest also that in the lines above."""
    before = [found for found in LINK.finditer(statement.text) if found.end() <= rate.start]
    if before and rate.start - before[-1].end() <= _REACH:
        return before[-1][1].upper()
    if _PERFTEST.search(statement.text[: rate.start]) is None:
        return None
    line, _ = statement.place(rate.start)
    for text in reversed(file.lines[max(0, line - _NEAR) : line]):
        if found := LINK.findall(text):
            return str(found[-1]).upper()
    return None


@rule(
    "TW803",
    "More than NVLink carries",
    why="In an all-reduce each GPU sends and receives 2 (n - 1) / n of the buffer over its own links, and the bus "
    "bandwidth counts just that: it cannot exceed the rate of the links in one direction. Between nodes of g GPUs it "
    "cannot exceed the rate of a node's adapters times (n - 1) / (n - g). The adapters are those that the text gives "
    "to a node; without a number the rule counts one to a GPU, of the fastest link that the text names. Switches that "
    "add up (NVLS, SHARP) double it. The bounds are those of `trainworks bench`.",
    fix="Check the unit (Gb/s, both directions) and whether it is bus bandwidth.",
    source="https://github.com/NVIDIA/nccl-tests (doc/PERFORMANCE.md)",
    file="results.md",
    bad="AllReduce on A100\n\n| setting | one node (8x GPU) GB/s |\n|---|---|\n| tuned | 510 |\n",
    good="AllReduce on A100\n\n| setting | one node (8x GPU) GB/s |\n|---|---|\n| tuned | 235 |\n",
)
def busbw_above_scale_up(file: ReviewedFile) -> Iterator[Problem]:
    """A bus bandwidth above its bound: in a sentence with its GPUs, or in a column `N x GPU ... GB/s` of a table."""
    ports = ports_in(file.text)
    part = only_part([each for statement in file.naming(("accelerator",)) for each in parts_in(statement)])
    ranks: dict[int, int] = {}
    previous = 0
    for statement in file.statements:
        cells = [cell.strip() for cell in statement.text.strip().strip("|").split("|")]
        line, _ = statement.place(0)
        if not statement.text.startswith("|"):
            yield from _busbw_of_sentence(statement, ports, part)
            continue
        if line != previous + 1:
            ranks = {}
        previous = line
        header = {at: int(found[1]) for at, cell in enumerate(cells) if (found := _RANKS_OF_COLUMN.search(cell))}
        above = "\n".join(file.lines[max(0, line - _NEAR) : line])
        if header and "GB/s" in statement.text and re.search(r"all[-_ ]?reduce|busbw", above, re.IGNORECASE):
            ranks = header
        for at, world in ranks.items() if part and part.scale_up_bytes_per_s else ():
            value = re.fullmatch(r"~?(\d+(?:\.\d+)?)", cells[at]) if at < len(cells) else None
            if value:
                start = statement.text.index(value[1])
                yield from _busbw_problem(statement, start, float(value[1]) * 1e9, part, (world, None), ports)


def _busbw_of_sentence(statement: Statement, ports: NodePorts | None, of_file: Accelerator | None) -> Iterator[Problem]:
    if not statement.names("collective") or statement.is_denied or statement.names("algorithm bandwidth"):
        return
    part = only_part(parts_in(statement)) if parts_in(statement) else of_file
    counts = [int(one.value) for one in statement.quantities("ranks")]
    counts += [int(found[1]) for found in _GPUS_OF_TEST.finditer(statement.text)]
    nodes = max((int(one.value) for one in statement.quantities("nodes")), default=1)
    if not (counts or statement.quantities("nodes")):
        return
    each = max(counts, default=_GPUS_OF_SERVER)
    if nodes > 1 and each > _GPUS_OF_SERVER and each % nodes == 0:  # of all nodes together
        each //= nodes
    if each < 2:
        return
    here = ports_in(statement.text) or ports
    if not (part and part.scale_up_bytes_per_s) and not (here and here.count and nodes > 1):
        return
    for rate in statement.quantities("bytes/s"):
        if rate.in_bytes:
            yield from _busbw_problem(statement, rate.start, rate.value, part, (nodes * each, each), here)


def _busbw_problem(
    statement: Statement,
    start: int,
    rate: float,
    part: Accelerator | None,
    ranks: tuple[int, int | None],
    ports: NodePorts | None,
) -> Iterator[Problem]:
    """A rate above the bound of `ranks`: all of them, and those of a node, of which None means the usual machine.

    Without an accelerator only the adapters between the nodes bound it.
    """
    world, each = ranks
    machine = node(part.reference_node) if part and part.reference_node else None
    inside = min(world, each or (machine.scale_up_domain if machine else world))
    # without an adapter, the slots limit it
    slot = part.host_bytes_per_s if part else float("inf")
    adapters = (ports.count or inside) * min(ports.link.bytes_per_s, slot) if ports else inside * slot
    group = RankGroup(
        ranks=world,
        domains=-(-world // inside),
        rank_bytes_per_s=part.scale_up_bytes_per_s if part else float("inf"),
        domain_bytes_per_s=adapters,
        adds_inside=bool(machine and machine.scale_up_reduction),
        adds_between="SHARP" in statement.text,
    )
    limit = busbw_bound("all_reduce", group).value
    if rate > limit:
        yield statement.problem(
            start,
            "{stated} GB/s: {named} reaches at most {limit} on {ranks} GPUs{over}",
            part=part.name if part else "",
            named=part.name if part else "all-reduce",
            stated=f"{rate / 1e9:g}",
            limit=format_quantity(limit, "bytes/s"),
            ranks=world,
            over=f" over {ports}" if ports and world > inside else "",
        )


@rule(
    "TW805",
    "Half the rate of the switch",
    "warning",
    why="A port of Quantum-2 has twice this rate; 200 Gb/s is the generation before it, or a split port.",
    fix="Write 400 Gb/s (NDR), or name the split port (NDR200).",
    source=_CATALOG.format("QM9700"),
    file="network.md",
    bad="NVIDIA Quantum-2 connects the nodes at 200Gbps.\n",
    good="NVIDIA Quantum-2 connects the nodes at 400Gbps.\n",
)
def rate_of_quantum_2(file: ReviewedFile) -> Iterator[Problem]:
    """Quantum-2 shortly before 200 Gb/s, in lines that do not speak of a split port."""
    port = switch("QM9700").port_bytes_per_s
    for statement in file.naming(("Quantum-2",)):
        named = re.search(r"Quantum-2(?!\d)", statement.text)
        if named is None or statement.is_denied:
            continue
        line, _ = statement.place(named.start())
        half = [
            rate
            for rate in statement.quantities("bytes/s")
            if 0 <= rate.start - named.end() <= _REACH and not rate.in_bytes and rate.value == port / 2
        ]
        if half and not _SPLIT_PORT.search(" ".join(file.lines[max(0, line - 2) : line + 1])):
            yield statement.problem(
                named.start(), "a port of Quantum-2 has {port} Gb/s, not {stated} Gb/s",
                port=f"{port * 8 / 1e9:g}", stated=f"{half[0].value * 8 / 1e9:g}",
            )  # fmt: skip


@rule(
    "TW861",
    "An adapter that its slot cannot feed",
    "warning",
    why="An adapter reaches the accelerator through a PCIe slot of the generation of the host, which carries less than "
    "the port.",
    fix="Name an adapter for each accelerator that its slot can feed: `trainworks catalog show PART`.",
    source=_CATALOG.format("PART"),
    file="hardware.md",
    bad="Each A100 node has NDR InfiniBand adapters of 400 Gb/s.\n",
    good="Each A100 node has HDR InfiniBand adapters of 200 Gb/s.\n",
)
def link_above_slot(file: ReviewedFile) -> Iterator[Problem]:
    """An InfiniBand port faster than the slot of the only accelerator of a sentence."""
    for statement in file.naming(("accelerator",)):
        part = only_part(parts_in(statement)) if parts_in(statement) else None
        if part is None or statement.is_denied or not statement.names("InfiniBand", "adapter"):
            continue
        named = [(found.start(), link(found[1].upper())) for found in LINK.finditer(statement.text)]
        named += [
            (rate.start, Link(name=rate.text.strip(), bytes_per_s=rate.value))
            for rate in statement.quantities("bytes/s")
            if not rate.in_bytes and statement.names("adapter") and not statement.names("several ports")
        ]
        found = max(named, key=lambda one: one[1].bytes_per_s, default=None)
        if found and found[1].bytes_per_s > part.host_bytes_per_s and not statement.names("split or several", "slot"):
            yield statement.problem(
                found[0], "{link} carries {rate}, and the slot of {part} {slot}", part=part.name,
                link=found[1].name, rate=format_quantity(found[1].bytes_per_s, "bytes/s"),
                slot=format_quantity(part.host_bytes_per_s, "bytes/s"),
            )  # fmt: skip


@rule(
    "TW862",
    "One adapter for all accelerators",
    "warning",
    why="Between nodes each accelerator has its share of the adapters. Nodes of this kind are built with an adapter "
    "for each accelerator or two, because gradients are exchanged in every step.",
    fix="Give the node an adapter for each accelerator, or say that it trains alone.",
    source=_CATALOG.format("PART"),
    file="hardware.md",
    bad="Each node has 8x A100 80GB and one HDR100 InfiniBand adapter.\n",
    good="Each node has 8x A100 80GB and 8x HDR InfiniBand adapters.\n",
)
def starved_node(file: ReviewedFile) -> Iterator[Problem]:
    """Eight accelerators or more in a line with adapters of a tenth of what their reference node has."""
    for statement in file.whole_lines if file.naming(("accelerator",)) else ():
        parts, ports = parts_in(statement), ports_in(statement.text)
        card = _SINGLE_CARD.search(statement.text)
        rates = [rate for rate in statement.quantities("bytes/s") if card and rate.start >= card.end()]
        if ports is None and rates:
            ports = NodePorts(Link(name=rates[0].text.strip(), bytes_per_s=rates[0].value), 1)
        part = only_part(parts) if parts else None
        counts = [int(one.value) for one in statement.quantities("ranks") if one.value >= _GPUS_OF_SERVER]
        if part is None or part.reference_node is None or not counts or ports is None or ports.count is None:
            continue
        usual = node(part.reference_node)
        has, wants = ports.count * ports.link.bytes_per_s, usual.nics * usual.nic_bytes_per_s
        if not statement.is_denied and not statement.names("collective") and has * 10 <= wants:
            yield statement.problem(
                parts[0].start, "{ports}: {has} for {count} accelerators; {usual} has {wants}", part=part.name,
                ports=ports, has=format_quantity(has, "bytes/s"), count=counts[0], usual=usual.name,
                wants=format_quantity(wants, "bytes/s"),
            )  # fmt: skip


@rule(
    "TW863",
    "A network of an earlier generation",
    "note",
    why="Nodes of eight H100 or newer have 3,200 Gb/s, 400 Gb/s for each accelerator. How much training needs depends "
    "on the model: `trainworks network` computes it.",
    fix="Give the rate for each accelerator, and the time of the exchange of gradients.",
    source=_CATALOG.format("H100"),
    file="guide.md",
    bad="100 Gb/s InfiniBand is enough for distributed training.\n",
    good="400 Gb/s InfiniBand for each accelerator is usual for distributed training.\n",
)
def slow_network(file: ReviewedFile) -> Iterator[Problem]:
    """A rate of at most 200 Gb/s that is called enough, or recommended, for training."""
    for statement in file.naming(("RDMA network",)):
        rates = [rate for rate in statement.quantities("bytes/s") if not rate.in_bytes and rate.value >= 1e9]
        rates = rates or [
            StatedQuantity("bytes/s", link(found[1].upper()).bytes_per_s, found.start(), found.end(), found[1])
            for found in LINK.finditer(statement.text)
        ]
        if not rates or statement.is_denied or statement.names("past", "not for training"):
            continue
        fast = max(rate.value for rate in rates) > _SLOWEST_TODAY
        advised = statement.names("training") and statement.names("advise", "enough")
        if not fast and statement.names("RDMA network") and (advised or rates[0].open_ended):
            yield statement.problem(
                rates[0].start, "{stated} is the rate of an earlier generation; a node of 8 H100 has 3,200 Gb/s",
                stated=rates[0].text.strip(),
            )  # fmt: skip
