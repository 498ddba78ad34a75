"""TW8xx: figures in texts that hardware or arithmetic does not allow, in English and in Chinese."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache, partial
from math import prod

from trainworks.catalog.bounds import RankGroup, busbw_bound
from trainworks.catalog.catalog import accelerator, link, names, node, switch
from trainworks.catalog.facts import Accelerator
from trainworks.errors import UsageError
from trainworks.review.files import ReviewedFile
from trainworks.review.finding import Problem
from trainworks.review.readers.prose import LINK, WORD_END, WORD_START, ports_in
from trainworks.review.rule import rule
from trainworks.units import format_quantity

_CATALOG = "trainworks catalog show {}"
_hardware_rule = partial(rule, source=_CATALOG.format("PART"), file="hardware.md")
_GB_PER_S = r"(?<![\d.])(\d+(?:\.\d+)?)\s*\+?\s*GB/s"
_STATED_RATE = re.compile(
    rf"(?<![x×\d] )(?<![x×\d]){LINK.pattern}\s*(?:[:：]|gives|reaches|可达|达到|为)\s*{_GB_PER_S}"
)
_LONGEST_LINE = 4000
_MOST_GPUS_PER_NODE = 16
_NEAR = 10
"""Lines above a figure in which its subject is named."""
_PART = re.compile(rf"{WORD_START}(A100|A800|H100|H800|H200|H20|B200|B300|V100|MI300X){WORD_END}")
_AXES = {
    "DP": r"(?<![A-Za-z])DP\s*[=:×x]?\s*(\d+)|(?:数据并行|[Dd]ata parallel\w*)\s*[:：]?[^\d\n]{0,12}(\d+)",
    "TP": r"(?<![A-Za-z])TP\s*[=:×x]?\s*(\d+)|(?:张量并行|[Tt]ensor parallel\w*)\s*[:：]?[^\d\n]{0,12}(\d+)",
    "PP": r"(?<![A-Za-z])PP\s*[=:×x]?\s*(\d+)|(?:流水线?并行|[Pp]ipeline parallel\w*)\s*[:：]?[^\d\n]{0,24}(\d+)",
}
_TOTAL = re.compile(
    r"(?<![\d.,])(\d[\d,]*)\s*(?:块|张|个|x|×)?\s*(?:NVIDIA\s+)?(?:[ABH]\d{2,3}(?!\d)|GPUs?|accelerators?|卡)"
)
_OTHER_AXES = re.compile(
    r"(?<![A-Za-z])(?:CP|EP|SP)\s*[=:×x]?\s*\d|专家并行|上下文并行|(?:context|expert) parallel", re.IGNORECASE
)
_COLLECTIVE = re.compile(r"all[-_ ]?reduce|busbw", re.IGNORECASE)
_RANKS = re.compile(r"(?<!\d)(\d+)\s*[x×]\s*GPU")
_STATED_MEMORY = re.compile(
    rf"{WORD_START}(A100|A800|H100|H800|H200|B200|V100)(?:[ -](?:SXM\d?|PCIe))?(?:\s*[(（]|\s+with|配备|采用|\s)*"
    rf"(?:\d+\s*GB\s*(?:of\s+)?)?(HBM\d?e?|GDDR\d\w?){WORD_END}"
)
_MEMORY_RATE = re.compile(
    rf"(?<![x×块张] )(?<![x×块张]){WORD_START}(A100|H100|H200|B200|V100)(?![A-Za-z0-9])[^\n。;；.,，、]{{0,20}}?"
    r"(?:HBM[0-9A-Za-z]*|memory|显存)[^\n。;；,，、\d]{0,16}(?<![\d.])(\d+(?:\.\d+)?)\s*TB/s"
)
_SPLIT_PORT = re.compile(
    r"(?<!\d)400|NDR200|split|break-?outs?\b|\bhal(?:f|ves?|ved)\b|divid|\bY-?cable|(?:2|two|twin)[ -]*[x×]? ?200"
    r"|\btwo (?:ports|links|lanes|nodes)\b|twin|(?<!\d)128 (?:ports|x|×)|拆分|分拆|拆成|分成|分为|一分二|一拆二|对半",
    re.IGNORECASE,
)
"""Words for an NDR port of 400 Gb/s whose two halves are ports of 200 Gb/s."""

_THREADS = re.compile(
    r"multi-?thread\w* DataLoader|多线程\s*`?DataLoader"
    r"|(?-i:DataLoader)(?:(?!不|非|进程|process|not |n't|instead|rather|\.\s)[^\n。;；]){0,40}?"
    r"(?:多线程(?:加载|读取|读入)|(?:loads?|reads?) (?:\w+ ){0,3}(?:with|in|by) (?:several|multiple) threads)",
    re.IGNORECASE,
)
_WEIGHTS_ALONE = re.compile(
    r"(?:optimizer state\w*|优化器状态)[^\n。.;；]{0,20}(torch\.save\((?:model|net|network)\.state_dict\(\),)"
    r"(?![^\n]*optim\w*\.state_dict)"
)

_RATIO = re.compile(
    rf"(?<![\d.])(\d+(?:\.\d+)?)\s*TFLOPS(?:[^。.;；\n]{{0,40}}?(V100|A100|H100){WORD_END}[^。.;；\n]{{0,8}}?(\d+(?:\.\d+)?)\s*(?:倍|x|×|times)"
    rf"|[^。.;；\n]{{0,20}}?(\d+(?:\.\d+)?)\s*(?:x|×|times) (?:the|that of(?: the)?) (V100|A100|H100){WORD_END})"
)
_STORED_ACTIVATIONS = re.compile(
    r"激活检查点(?:(?!不|卸载|重)[^\n。;；]){0,12}(?:激活|中间)(?:(?!不|卸载|重)[^\n。;；]){0,8}"
    r"(?:存入|存到|保存到|存储到|存放到|放到|放入|放进)\s*(?:CPU|主机)"
    r"|activation checkpointing (?:stores|saves|keeps) (?:the )?activations (?:in|to|on) (?:the )?(?:CPU|host)",
    re.IGNORECASE,
)


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
    """A rate of a test of perftest, or of a link by its name, above twice the rate of the link."""
    for number, line in enumerate(_text(file), start=1):
        stated, test = _STATED_RATE.search(line), re.search(rf"ib_(?:send|write|read)_bw\b.{{0,40}}?{_GB_PER_S}", line)
        name = stated[1] if stated else _link_above(file, number) if test else None
        found = stated or test
        if found is None or name is None:
            continue
        rate, limit = float(found[found.lastindex or 1]) * 1e9, link(name).bytes_per_s
        if rate > 2 * limit:
            written = f"{rate / 1e9:g} GB/s"
            carries = f"{name} carries {format_quantity(limit, 'bytes/s')} in one direction"
            yield Problem(number, found.start(found.lastindex or 1) + 1, f"{written}: {carries}", part=name)


def _link_above(file: ReviewedFile, number: int) -> str | None:
    """The last link that is named in this line or in those above it."""
    for line in reversed(file.lines[max(0, number - _NEAR) : number]):
        if found := LINK.findall(line):
            return str(found[-1])
    return None


@rule(
    "TW802",
    "The parallel sizes exceed the GPUs",
    why="Each rank has one place on every axis, so the product of data, tensor and pipeline parallel sizes is the "
    "number of ranks.",
    fix="Divide the GPUs by tensor x pipeline parallel size: that is the data parallel size.",
    source="https://github.com/NVIDIA/Megatron-LM/blob/main/megatron/core/parallel_state.py",
    file="plan.md",
    bad="We train on 1536 A100: DP 128 x TP 8 x PP 8.\n",
    good="We train on 1536 A100: DP 24 x TP 8 x PP 8.\n",
)
def ranks_above_world_size(file: ReviewedFile) -> Iterator[Problem]:
    """All three sizes within a few lines of the number of GPUs, whose product exceeds every number near them."""
    lines = list(_text(file))
    for number, line in enumerate(lines, start=1):
        total = _TOTAL.search(line)
        if total is None:
            continue
        near = "\n".join(lines[max(0, number - 3) : number + 4])
        sizes = _parallel_sizes("\n".join(lines[number - 1 : number + 4])[total.start() :])
        world = int(total[1].replace(",", ""))
        gpus = [int(found[1].replace(",", "")) for found in _TOTAL.finditer(near)]
        nodes = [int(found) for found in re.findall(r"(\d+)\s*(?:个)?\s*(?:nodes|节点)", near)]
        most = max([*gpus, *(count * _MOST_GPUS_PER_NODE for count in nodes)])
        if len(sizes) == len(_AXES) and prod(sizes.values()) > most:
            product = " x ".join(f"{axis} {size}" for axis, size in sizes.items())
            yield Problem(number, total.start() + 1, f"{product} = {prod(sizes.values()):,} ranks on {world:,} GPUs")


def _parallel_sizes(text: str) -> dict[str, int]:
    """The first size of each axis; none if the text has axes that the product leaves out."""
    if _OTHER_AXES.search(text):
        return {}
    found = {axis: re.search(pattern, text) for axis, pattern in _AXES.items()}
    return {axis: int(match[1] or match[2]) for axis, match in found.items() if match}


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
    """A column `N x GPU ... GB/s` of a table about all-reduce, in a text about one kind of accelerator."""
    part = _only_part(file)
    if part is None or not part.scale_up_bytes_per_s:
        return
    ports, adds = ports_in(file.text), "SHARP" in file.text
    ranks: dict[int, int] = {}
    for number, line in enumerate(_text(file), start=1):
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")] if line.lstrip().startswith("|") else []
        header = {at: int(found[1]) for at, cell in enumerate(cells) if (found := _RANKS.search(cell))}
        if header and "GB/s" in line and _COLLECTIVE.search("\n".join(file.lines[max(0, number - _NEAR) : number])):
            ranks = header
        elif not cells:
            ranks = {}
        for at, world in ranks.items():
            value = re.fullmatch(r"~?(\d+(?:\.\d+)?)", cells[at]) if at < len(cells) else None
            # without an adapter, the slots limit it
            machine = node(part.reference_node) if part.reference_node else None
            inside = min(world, machine.scale_up_domain if machine else world)
            slot = part.host_bytes_per_s
            group = RankGroup(
                ranks=world,
                domains=-(-world // inside),
                rank_bytes_per_s=part.scale_up_bytes_per_s,
                domain_bytes_per_s=(ports.count or inside) * min(ports.link.bytes_per_s, slot)
                if ports
                else inside * slot,
                adds_inside=bool(machine and machine.scale_up_reduction),
                adds_between=adds,
            )
            limit, over = busbw_bound("all_reduce", group).value, f" over {ports}" if ports and world > inside else ""
            if value and float(value[1]) * 1e9 > limit:
                column = line.index(value[1]) + 1
                bound = f"{part.name} reaches at most {format_quantity(limit, 'bytes/s')} on {world} GPUs{over}"
                yield Problem(number, column, f"{value[1]} GB/s: {bound}")


def _only_part(file: ReviewedFile) -> Accelerator | None:
    """The accelerator of a text that names exactly one kind."""
    found = set(_PART.findall(file.text)) if file.kind == "text" else set()
    try:
        return accelerator(found.pop()) if len(found) == 1 else None
    except UsageError:
        return None


@_hardware_rule(
    "TW804",
    "Another kind of memory",
    why="The data sheet of the accelerator names another kind of memory, with another bandwidth.",
    fix="Take the memory from the data sheet: `trainworks catalog show PART`.",
    bad="Each node has 8 A100 80GB HBM3.\n",
    good="Each node has 8 A100 80GB HBM2e.\n",
)
def wrong_memory(file: ReviewedFile) -> Iterator[Problem]:
    """The name of an accelerator directly before a kind of memory that no variant of it has."""
    for number, line in enumerate(_text(file), start=1):
        for found in _STATED_MEMORY.finditer(line):
            kinds = {part.memory_type for part in _variants(found[1]) if part.memory_type}
            if kinds and found[2].lower() not in {kind.lower() for kind in kinds}:
                has = " or ".join(sorted(kinds))
                yield Problem(number, found.start() + 1, f"{found[1]} has {has}, not {found[2]}", part=found[1])


@cache
def _variants(family: str) -> tuple[Accelerator, ...]:
    """The accelerators of a family: of `A100` those with 40 and with 80 GB."""
    return tuple(accelerator(name) for name in names("accelerators") if name.startswith(f"{family}-"))


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
    """Quantum-2 directly before 200 Gb/s, in lines that do not speak of a split port."""
    for number, line in enumerate(_text(file), start=1):
        found = re.search(r"Quantum-2(?!\d)[^\n。;；.]{0,30}?(?<!\d)200\s*G(?:b|bit)(?:ps|/s)", line)
        near = " ".join(file.lines[max(0, number - 2) : number + 1])
        if found and not _SPLIT_PORT.search(near):
            port = switch("QM9700").port_bytes_per_s * 8 / 1e9
            yield Problem(number, found.start() + 1, f"a port of Quantum-2 has {port:g} Gb/s, not 200 Gb/s")


@rule(
    "TW806",
    "Data loader workers are processes",
    "note",
    why="`num_workers` starts processes, each with its own copy of the data set object; their memory adds up, and "
    "Python's lock does not limit them.",
    fix="Write processes.",
    source="https://github.com/pytorch/pytorch/blob/main/torch/utils/data/dataloader.py",
    file="guide.md",
    bad="Use a multi-threaded DataLoader for loading.\n",
    good="Use a DataLoader with several worker processes for loading.\n",
)
def threads_of_loader(file: ReviewedFile) -> Iterator[Problem]:
    """DataLoader beside the word for several threads."""
    for number, line in enumerate(_text(file), start=1):
        if found := _THREADS.search(line):
            yield Problem(number, found.start() + 1, "the workers of a DataLoader are processes, not threads")


@rule(
    "TW807",
    "The checkpoint has no optimizer",
    why="`model.state_dict()` has the weights alone. A run that resumes from it starts with an empty optimizer, "
    "schedule and data position.",
    fix="Save them together: `{'model': model.state_dict(), 'optimizer': optimizer.state_dict(), 'step': step}`.",
    source="https://docs.pytorch.org/tutorials/beginner/saving_loading_models.html",
    file="guide.md",
    bad="Save weights and optimizer states (`torch.save(model.state_dict(), 'a.pt')`).\n",
    good="Save the weights (`torch.save(model.state_dict(), 'a.pt')`).\n",
)
def weights_alone(file: ReviewedFile) -> Iterator[Problem]:
    """A text that promises the state of the optimizer and saves the model."""
    for number, line in enumerate(_text(file), start=1):
        if found := _WEIGHTS_ALONE.search(line):
            yield Problem(number, found.start(1) + 1, "this saves the weights, and not the state of the optimizer")


@_hardware_rule(
    "TW808",
    "The ratio of two peak rates",
    why="The data sheets give both rates, dense and in the same precision; their ratio is arithmetic.",
    fix="Divide the two figures: `trainworks catalog show PART`.",
    bad="The A100 has 312 TFLOPS (FP16), 3x the V100.\n",
    good="The A100 has 312 TFLOPS (FP16), 2.5x the V100.\n",
)
def wrong_ratio(file: ReviewedFile) -> Iterator[Problem]:
    """A dense peak of one accelerator, a second one, and a factor that is not the ratio of their peaks."""
    for number, line in enumerate(_text(file), start=1):
        for found in _RATIO.finditer(line):
            peak, other, factor = float(found[1]) * 1e12, found[2] or found[5], float(found[3] or found[4])
            base = accelerator(other).peak_flops_per_s.get("fp16")
            known = any(accelerator(name).peak_flops_per_s.get("fp16") == peak for name in _PART.findall(line))
            if base and known and abs(peak / base - factor) > 0.1 * factor:
                message = f"{found[1]} TFLOPS is {peak / base:.3g} times the {base / 1e12:g} TFLOPS of {other}"
                yield Problem(number, found.start() + 1, message, part=other)


@rule(
    "TW809",
    "Checkpointed activations are recomputed",
    why="Activation checkpointing keeps the inputs of a region and computes the rest again in the backward pass. To "
    "store activations in host memory is another technique: activation offloading.",
    fix="Write that activations are recomputed, or name offloading.",
    source="https://docs.pytorch.org/docs/stable/checkpoint.html",
    file="guide.md",
    bad="Activation checkpointing stores activations in CPU memory.\n",
    good="Activation checkpointing recomputes activations in the backward pass.\n",
)
def stored_activations(file: ReviewedFile) -> Iterator[Problem]:
    """Activation checkpointing that is said to store activations on the host."""
    for number, line in enumerate(_text(file), start=1):
        if found := _STORED_ACTIVATIONS.search(line):
            yield Problem(number, found.start() + 1, "checkpointed activations are recomputed, not stored on the host")


@_hardware_rule(
    "TW810",
    "More than the memory carries",
    why="The data sheet of the accelerator names a lower bandwidth of its memory, which no program exceeds.",
    fix="Take the bandwidth from the data sheet: `trainworks catalog show PART`.",
    bad="The A100 has HBM2e memory with 4.8 TB/s.\n",
    good="The H200 has HBM3e memory with 4.8 TB/s.\n",
)
def rate_above_memory(file: ReviewedFile) -> Iterator[Problem]:
    """A bandwidth of the memory of one accelerator that is above that of every variant of it."""
    for number, line in enumerate(_text(file), start=1):
        for found in _MEMORY_RATE.finditer(line):
            rates = [part.memory_bytes_per_s for part in _variants(found[1])]
            if rates and float(found[2]) * 1e12 > 1.1 * max(rates):
                has = f"{found[1]} has at most {format_quantity(max(rates), 'bytes/s')}"
                yield Problem(number, found.start() + 1, f"{found[2]} TB/s: {has}", part=found[1])


def _text(file: ReviewedFile) -> Iterator[str]:
    """Lines of a text, of very long ones the start; none of another kind of file."""
    return (line[:_LONGEST_LINE] for line in (file.lines if file.kind == "text" else ()))
