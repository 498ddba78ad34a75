"""TW802 and TW87x: numbers of accelerators, nodes and processes in texts, and releases, held against facts."""

from __future__ import annotations

import re
from collections.abc import Iterator
from math import prod

from trainworks.catalog.catalog import node
from trainworks.catalog.facts import Component, Release
from trainworks.catalog.software import AS_OF, is_over, longest_supported, releases
from trainworks.numerals import chinese_number
from trainworks.review.files import ReviewedFile
from trainworks.review.finding import Problem
from trainworks.review.readers.hardware import parts_in
from trainworks.review.readers.statements import Statement
from trainworks.review.rule import rule

_MOST_GPUS_PER_NODE = 16
_LEAST_NODES = 16
"""Fewer nodes of one accelerator each are a laboratory."""
_AFTER = (
    r"\s*(?:parallel\w*|并行(?:度)?)?\s*(?:size|degree)?\s*(?:跨|占|共|为|取|is|of|over|takes|spans|has)?"
    r"[^\d\n。;；，,]{0,12}?"
)
_SIZE = (
    r"(\d+)(?:[- ]way| ?[路级组份阶])?\s?(?:的)?{0}|(?<![A-Za-z]){1}(?![A-Za-z_])\s*[=:：×x]?\s*(\d+)|(?:{2}){3}(\d+)"
)
_AXES = {
    "DP": _SIZE.format("(?:[Dd]ata[- ]parallel|数据并行)", "DP", "[Dd]ata[- ]parallel|数据并行", _AFTER),
    "TP": _SIZE.format(
        "(?:[Tt]ensor(?=[- ]parallel| and\\b)|张量并行)", "TP", "[Tt]ensor[- ]parallel|张量并行", _AFTER
    ),
    "PP": _SIZE.format("(?:[Pp]ipeline|流水线)", "PP", "[Pp]ipeline[- ]parallel|流水线?并行", _AFTER),
}
_TOTAL = re.compile(
    r"(?<![\d.,-])(\d[\d,]*)\s*(?:块|张|个|x|×)?\s*(?:NVIDIA\s+)?(?:[ABH]\d{2,3}(?!\d)|GPUs?|accelerators?|卡)"
)
_OTHER_AXES = re.compile(
    r"(?<![A-Za-z])(?:CP|EP|SP)\s*[=:×x]?\s*\d|专家并行|上下文并行|(?:context|expert) parallel", re.IGNORECASE
)
_SAID = re.compile(
    r"(?<![\d.])(\d+|[两四八])[- ]?(?:GPUs?(?: job| training)?|卡)"
    r"(?!\s*(?:/|per|each|on each|nodes?|servers?|节点|机|服务器|每))"
)
"""GPUs that a launch is said to use; those of each node are another number."""
_GROWTH = re.compile(
    r"(?:\b[Ff]rom\b|从|由)\s*(\d+)[^\d。.]{0,14}?(?:to|扩展?到|扩至|增加?到|到)\s*(\d+)\s*[张块个台]?\s*"
    r"(GPUs?|nodes?|servers?|machines?|cards?|卡|节点|服务器|机器)"
)
_LEAST_GROWTH = 2
_OPTION = r"--{}[= ](\d+)"
_EACH_NODE = re.compile(
    r"(?<![\d.])(\d{1,2})[- ]?(?:GPUs?|卡)\s?(?:的)?\s?(?:boxe?s?|nodes?|servers?|machines?|节点|服务器|机器|机型)"
    r"|(?:每(?:台|个节点|节点|机)|each (?:node|server|machine|box) (?:has|with)|with)\s*(\d{1,2})"
    r"\s*(?:卡|张|块|GPUs (?:per|each))"
)
"""Accelerators of a node, as a sentence gives them: `8-GPU boxes`, `每台 8 卡`."""
_VERSIONS: dict[Component, re.Pattern[str]] = {
    "operating system": re.compile(
        r"(?<![A-Za-z.])(?P<name>CentOS|Ubuntu|Debian)(?: Linux)?[ :-]?(?P<version>\d+(?:\.\d+)?)", re.IGNORECASE
    ),
    "driver": re.compile(
        r"(?:[Dd]rivers?|驱动)[^。；,，\d]{0,24}(?P<version>\d{3})(?:\.[\dx.]+)?(?!\d)"
        r"|(?<!\d)(?P<before>\d{3})\s?(?:\+|以上|及以上|or newer)的?\s?(?:NVIDIA\s?)?(?:[Dd]rivers?|驱动)"
    ),
}  # fmt: skip
_TORCH_NEEDS = re.compile(
    r"(?:(?P<least>(?<![\d.])\d\.\d+)(?:\.\d+)?\s*(?:以上|及以上|及更高|and newer|or newer)\S{0,4}\s*(?:PyTorch|torch)"
    r"|(?:PyTorch|torch)\s*(?P<bound>>=|≥|>)?\s*(?P<torch>\d\.\d+)(?:\.\d+)?)"
    r"\s*(?P<newer>\+|以上|及以上|及更高|或更高|and (?:newer|later|above)|or (?:newer|later))?"
    r"[^。；]{0,24}?(?:needs?|requires?|must|upgrade|需要?|必须|先装|要求|依赖)[^。；\d]{0,20}CUDA\s*(?:版本)?\s*(?P<cuda>\d+\.\d+)(?!\d)"
    r"(?!\s*(?:\+|以上|及以上|及更高|或更高|or |and (?:newer|above|later)))",
    re.IGNORECASE,
)
_BOUND = re.compile(
    r">=|≥|\+|at least|minimum|(?:or|anything) (?:newer|later|above|higher)|以上|更高|requires?|must"
    r"|要求|必须|安装|装|install",
    re.IGNORECASE,
)
_RELEASE = r"\s*(?:版本)?\s*(?:>=|≥|==?|[:：|])?\s*"
"""What stands between a name and its release."""
_ROWS = 8
"""Rows of a table above and below one that are about the same machine."""
_LATER = re.compile(r"[\d.]*\s?(?:\+|or (?:newer|later)|以上|或更高)")
_NEAR_BEFORE = 40
_YEARS_OVER = 2
"""Years after the end of support in which a driver is not called outdated."""


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
    lines = file.lines if file.kind == "text" else ()
    for number, line in enumerate(lines, start=1):
        total = _TOTAL.search(line) or re.search(r"(?<![\d.,])(\d[\d,]{2,})\s*(?:GPU|卡)", line)
        if total is None:
            continue
        near = "\n".join(lines[max(0, number - 3) : number + 4])
        behind = "\n".join(lines[number - 1 : number + 4])
        sizes = _parallel_sizes(behind[total.start() :])
        if len(sizes) < len(_AXES):
            sizes = _parallel_sizes(behind)
        world = int(total[1].replace(",", ""))
        gpus = [int(found[1].replace(",", "")) for found in _TOTAL.finditer(near)]
        nodes = [int(found) for found in re.findall(r"(\d+)\s*(?:个)?\s*(?:nodes|节点)", near)]
        most = max([world, *gpus, *(count * _MOST_GPUS_PER_NODE for count in nodes if count not in sizes.values())])
        if len(sizes) == len(_AXES) and prod(sizes.values()) > most:
            product = " x ".join(f"{axis} {size}" for axis, size in sizes.items())
            message = f"{product} = {prod(sizes.values()):,} ranks on {world:,} GPUs"
            values = {"product": product, "ranks": f"{prod(sizes.values()):,}", "world": f"{world:,}"}
            yield Problem(number, total.start() + 1, message, values=values)


def _parallel_sizes(text: str) -> dict[str, int]:
    """The first size of each axis; none if the text has axes that the product leaves out."""
    if _OTHER_AXES.search(text):
        return {}
    found = {axis: re.search(pattern, text) for axis, pattern in _AXES.items()}
    return {axis: int(match[1] or match[2] or match[3]) for axis, match in found.items() if match}


@rule(
    "TW871",
    "As many nodes as accelerators",
    "warning",
    why="A node of this accelerator has eight of them, so a job on n accelerators takes n / 8 nodes.",
    fix="Divide the accelerators by those of a node.",
    source="trainworks catalog show PART",
    file="guide.md",
    bad="For 128 A100 the scheduler looks for 128 free nodes.\n",
    good="For 128 A100 the scheduler looks for 16 free nodes.\n",
)
def nodes_as_accelerators(file: ReviewedFile) -> Iterator[Problem]:
    """The same number of nodes and of accelerators whose machine has eight, by its name or by the sentence."""
    for statement in file.whole_lines:
        parts = parts_in(statement)
        machine = node(name) if parts and (name := parts[0].usual.reference_node) else None
        stated = _EACH_NODE.search(statement.text)
        each = int(stated[1] or stated[2]) if stated else machine.accelerators if machine else 1
        ranks = {one.value: one.start for one in statement.quantities("ranks")}
        same = [
            one
            for one in statement.quantities("nodes")
            if one.value >= _LEAST_NODES and ranks.get(one.value, one.start) != one.start
        ]
        if same and each > 1 and not statement.is_denied:
            count, family = int(same[0].value), parts[0].family if parts else "GPU"
            yield statement.problem(
                same[0].start, "{count} {family} are {nodes} nodes of {each}, not {count} nodes", part=family,
                count=count, family=family, nodes=-(-count // each), each=each,
            )  # fmt: skip


@rule(
    "TW872",
    "Another number of processes than the text says",
    "warning",
    why="A launcher starts `nnodes` times `nproc_per_node` processes, one to an accelerator, and runs on every node.",
    fix="Write the product, or the options of one node.",
    source="https://docs.pytorch.org/docs/stable/elastic/run.html",
    file="guide.md",
    bad="Train on 8 GPUs: `torchrun --nnodes=4 --nproc-per-node=8 --rdzv-endpoint=$HEAD train.py`\n",
    good="Train on 32 GPUs: `torchrun --nnodes=4 --nproc-per-node=8 --rdzv-endpoint=$HEAD train.py`\n",
)
def other_number_of_processes(file: ReviewedFile) -> Iterator[Problem]:
    """A line that says a number of GPUs, and has a launch of another number that is a multiple of it."""
    for number, line in enumerate(file.lines if file.kind == "text" else (), start=1):
        nodes, each = (re.search(_OPTION.format(name), line) for name in ("nnodes", r"nproc[-_]per[-_]node"))
        said = _SAID.search(line)
        if nodes is None or each is None or said is None or re.search(r"\beach\b|\bper\b(?![ _-]*node)|每|各", line):
            continue
        world, claimed = int(nodes[1]) * int(each[1]), chinese_number(said[1]) or int(said[1])
        if int(nodes[1]) > 1 and claimed == int(each[1]) and not re.search(rf"(?<!\d){world}(?!\d)", line):
            message = f"{nodes[1]} x {each[1]} = {world} processes, not {said[1]}"
            values = {"nodes": nodes[1], "each": each[1], "world": str(world), "said": said[1]}
            yield Problem(number, said.start() + 1, message, values=values)


@rule(
    "TW873",
    "Its support has ended",
    "note",
    why="It gets no corrections of security any more, and new drivers, frameworks and GPUs leave it out.",
    fix="Name a release with support: `trainworks catalog list software`.",
    source="trainworks catalog show PART",
    file="guide.md",
    bad="Install CentOS 8 on the servers.\n",
    good="Install Rocky 9 on the servers.\n",
)
def ended_release(file: ReviewedFile) -> Iterator[Problem]:
    """The first mention of a system or driver branch without support that a sentence advises, and none with support."""
    said: set[str] = set()
    for statement in file.naming(("named release",)):
        if statement.is_denied:
            continue
        for component in _VERSIONS:
            for found, each in _ended(statement, component):
                # what it was tested with behind a bound, as in `525+ (tested with 525.105)`, is not of the past
                bound = _LATER.match(statement.text, found.end())
                past = [
                    word
                    for word in statement.mentions("past")
                    if not (bound and word[0].lower() == "tested" and word.start() > found.end())
                ]
                if each.name not in said and not past:
                    said.add(each.name)
                    yield statement.problem(
                        found.start(), "support of {part} ended in {ends}; {newest} has it", part=each.name,
                        ends=each.ends, newest=longest_supported(component).name,
                    )  # fmt: skip


def _ended(statement: Statement, component: Component) -> list[tuple[re.Match[str], Release]]:
    """The last advised release whose support has ended; none beside one of its family that has support."""
    # a lower bound of a driver includes the newer ones, so it is outdated later than it ends
    until = f"{int(AS_OF[:4]) - _YEARS_OVER}{AS_OF[4:]}" if component == "driver" else AS_OF
    found = [one for one in _VERSIONS[component].finditer(statement.text) if _is_advised(component, statement, one)]
    named = [(one, each) for one in found if (each := _release(component, one))]
    ended = [(one, each) for one, each in named if each.ends and each.ends < until]
    lasting = {_family(one) for one, each in named if component == "operating system" and not is_over(each)}
    return [(one, each) for one, each in ended[-1:] if _family(one) not in lasting]


def _is_advised(component: Component, statement: Statement, found: re.Match[str]) -> bool:
    """A release is required or chosen: a bound beside a driver, or a verb or a noun directly before a system."""
    if component == "driver":
        near = statement.text[max(0, found.start() - _NEAR_BEFORE // 2) : found.end() + _NEAR_BEFORE]
        return _BOUND.search(near) is not None
    advising = (word for concept in ("advise", "with", "installing") for word in statement.mentions(concept))
    gaps = (statement.text[word.end() : found.start()] for word in advising if word.end() <= found.start())
    return any(len(gap) <= _NEAR_BEFORE and not re.search(r"[,，。;；]", gap) for gap in gaps)


def _family(found: re.Match[str]) -> str:
    return str(found.groupdict().get("name", "")).lower()


def _release(component: Component, found: re.Match[str]) -> Release | None:
    known = {each.name.lower(): each for each in releases(component)}
    if component == "driver":
        return known.get(f"r{found['version'] or found['before']}")
    name = f"{found['name']} {found['version']}".lower()
    return known.get(name) or known.get(name.split(".")[0])


@rule(
    "TW874",
    "PyTorch does not need this CUDA",
    "warning",
    why="Wheels of PyTorch bring their CUDA, and each release has wheels for several; only the driver has to be new "
    "enough.",
    fix="Name the driver, and the index of the wheel.",
    source="trainworks catalog show PART",
    file="guide.md",
    bad="PyTorch 1.12+ requires CUDA 11.6.\n",
    good="PyTorch 2.9 requires CUDA 12.6 or newer.\n",
)
def cuda_of_torch(file: ReviewedFile) -> Iterator[Problem]:
    """A release of PyTorch that is said to need one CUDA, without it being the CUDA of all its wheels."""
    known = {each.name: each for each in releases("PyTorch")}
    for statement in file.naming(("PyTorch",)):
        found = _TORCH_NEEDS.search(statement.text)
        each = known.get(f"PyTorch {found['torch'] or found['least']}") if found else None
        newer = found and (found["newer"] or found["bound"] or found["least"])
        if found and each and not statement.is_denied and (newer or found["cuda"] not in each.builds):
            yield statement.problem(
                found.start(),
                "wheels of {part} bring their CUDA: {builds}",
                part=each.name,
                builds=", ".join(each.builds),
            )


@rule(
    "TW876",
    "As much faster as there are more GPUs",
    "note",
    why="Communication and pipeline bubbles grow with the nodes: in MLPerf Training 4.0, GPT-3 on 10,752 instead of "
    "512 H100, 21 times the GPUs, was 13.8 times as fast.",
    fix="Give the time that was measured on each, or the efficiency that `trainworks plan` predicts.",
    source="https://mlcommons.org/benchmarks/training/",
    file="guide.md",
    bad="From 8 to 64 GPUs training is 8x faster.\n",
    good="From 8 to 64 GPUs training is 6.4x faster.\n",
)
def linear_growth(file: ReviewedFile) -> Iterator[Problem]:
    """A factor of speed that is exactly the ratio of two numbers of GPUs or nodes."""
    for statement in file.naming(("compute",)):
        found = _GROWTH.search(statement.text)
        grown = int(found[2]) / int(found[1]) if found and int(found[1]) else 1.0
        factors = [one for one in statement.quantities("factor") if one.value == grown >= _LEAST_GROWTH]
        if factors and not statement.is_denied and not statement.names("not compute", "approximate"):
            yield statement.problem(
                factors[0].start, "{factor} times the speed on {factor} times the {unit}",
                factor=grown, unit="nodes" if found and re.match("node|server|machine|节|台|机", found[3]) else "GPUs",
            )  # fmt: skip


@rule(
    "TW875",
    "A CUDA stack of 2023",
    "note",
    why="cuDNN 8 ended with 8.9.7 in December 2023, and NCCL 2.14 is of 2022. Wheels of PyTorch bring both libraries; "
    "only the driver is installed on a node.",
    fix="Install a driver with support, and take CUDA, cuDNN and NCCL from the wheel.",
    source="https://docs.nvidia.com/deeplearning/cudnn/latest/release-notes.html",
    file="guide.md",
    bad="Install CUDA 12.2 and cuDNN 8.9.\n",
    good="Install the driver 580, and PyTorch brings CUDA 13 and cuDNN 9.\n",
)
def old_stack(file: ReviewedFile) -> Iterator[Problem]:
    """CuDNN 8 with a CUDA before 12.4, or with an NCCL before 2.18, in a sentence without TensorFlow."""
    for statement in file.naming(("cuDNN",)):
        cudnn = re.search(rf"cuDNN{_RELEASE}v?8(?:\.\d+)*", statement.text, re.IGNORECASE)
        line, _ = statement.place(0)
        near = range(max(0, line - _ROWS), min(line + _ROWS, len(file.lines))) if statement.text.startswith("|") else ()
        rows = [file.lines[at] for at in near if file.lines[at].lstrip().startswith("|")]
        text = "\n".join([statement.text, *rows])
        cuda = re.search(rf"CUDA(?: Toolkit)?{_RELEASE}(?:1[01]|12\.[0-3])(?!\d)", text, re.IGNORECASE)
        if cudnn and cuda and not statement.names("past", "TensorFlow") and not statement.is_denied:
            yield statement.problem(cudnn.start(), "cuDNN 8 had its last release in December 2023")
