"""TW6xx: devices, mixed precision and memory in PyTorch programs and DeepSpeed configurations."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial

import yaml

from trainworks.review.files import ReviewedFile
from trainworks.review.finding import Edit, Problem
from trainworks.review.readers import tree
from trainworks.review.readers.python import Call, PythonCode
from trainworks.review.rule import rule
from trainworks.review.versions import Releases

_program_rule = partial(rule, file="train.py")
_TORCHRUN = "https://docs.pytorch.org/docs/main/distributed/elastic/run.html"
_DEVICE = re.compile(r"set_device|cuda:|CUDA_VISIBLE_DEVICES|cuda\.device\(|\.to\(|device=|\.cuda\([^)]")
_AMP_IMPORT = re.compile(r"from torch\.cuda\.amp import (?:autocast|GradScaler)(?:, *(?:autocast|GradScaler))?")
_EMPTY_CACHE = ("torch.cuda.empty_cache", "torch.cuda.memory.empty_cache")
_CONDITIONAL = (ast.If, ast.IfExp, ast.BoolOp, ast.ExceptHandler, ast.match_case, ast.Lambda, ast.For, ast.While)
_Round = ast.For | ast.While | ast.FunctionDef
_GPU_TEST = re.compile(r"torch\.cuda\.is_available\(\)|[\w.]*device(?:\.type)? == 'cuda'")
_FSDP_STEP = "model = FSDP(net, mixed_precision=policy)\nloss.backward()\n"
_FSDP_HEAD = "import torch\nfrom torch.distributed.fsdp import FullyShardedDataParallel as FSDP, MixedPrecision\n"
_DDP = "import torch\nimport torch.distributed as dist\nfrom torch.nn.parallel import DistributedDataParallel as DDP\n"


@_program_rule(
    "TW601",
    "Every rank takes GPU 0",
    why="`.cuda()` without an argument means the current device, which is GPU 0 in every process. All ranks of a node "
    "put the model there, and the collectives of NCCL fail.",
    fix='Call `torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))` before anything is moved to a GPU.',
    source=_TORCHRUN,
    bad=_DDP + 'dist.init_process_group(backend="nccl")\nmodel = DDP(MyModel().cuda())\n',
    good=_DDP + 'import os\ntorch.cuda.set_device(int(os.environ["LOCAL_RANK"]))\n'
    'dist.init_process_group(backend="nccl")\nmodel = DDP(MyModel().cuda())\n',
)
def no_device(file: ReviewedFile) -> Iterator[Problem]:
    """A program of NCCL and DistributedDataParallel with `.cuda()`, and nothing that chooses a device."""
    code = file.python
    if not any(code.calls_of("DistributedDataParallel")) or _DEVICE.search(code.text):
        return
    groups = code.calls_of("init_process_group")
    if any(call.name.startswith("torch.distributed") and "nccl" in ast.unparse(call.node) for call in groups):
        for call in code.calls_of("cuda"):
            if not call.node.args and not call.node.keywords:
                yield call.problem("every rank moves this to GPU 0: nothing calls `torch.cuda.set_device`")


@_program_rule(
    "TW602",
    "The rank is not defined",
    why="The name is not bound in any scope around it: Python raises a NameError before the first step.",
    fix='Read it: `local_rank = int(os.environ["LOCAL_RANK"])`.',
    source=_TORCHRUN,
    bad=_DDP + "model = DDP(model, device_ids=[local_rank])\n",
    good=_DDP + 'import os\nlocal_rank = int(os.environ["LOCAL_RANK"])\nmodel = DDP(model, device_ids=[local_rank])\n',
)
def undefined_rank(file: ReviewedFile) -> Iterator[Problem]:
    """A name in `device_ids` of DistributedDataParallel that nothing binds."""
    for call in file.python.calls_of("DistributedDataParallel"):
        devices = call.argument("device_ids")
        for name in devices.elts if isinstance(devices, ast.List) else ():
            if isinstance(name, ast.Name) and not file.python.binds(name):
                yield Problem(name.lineno, name.col_offset + 1, f"`{name.id}` is not defined")


@_program_rule(
    "TW603",
    "torch.cuda.amp is deprecated",
    "note",
    why="`torch.amp` replaces it for every kind of device since PyTorch 2.3, and the old names print a FutureWarning.",
    fix='Use `torch.amp.GradScaler("cuda")` and `torch.amp.autocast("cuda")`.',
    source="https://pytorch.org/docs/stable/_modules/torch/cuda/amp/grad_scaler",
    bad="from torch.cuda.amp import GradScaler\nscaler = GradScaler()\n",
    good='from torch.amp import GradScaler\nscaler = GradScaler("cuda")\n',
    holds_for=Releases("torch", since="2.3"),
)
def deprecated_amp(file: ReviewedFile) -> Iterator[Problem]:
    """A call of GradScaler or autocast of `torch.cuda.amp`, in a file that does not choose by version."""
    found = [call for call in file.python.calls_of("GradScaler", "autocast") if "torch.cuda.amp" in call.name]
    if not found or "torch.amp" in file.text:
        return
    edits = _new_names(file, found)
    for call in found:
        name = call.name.rpartition(".")[2]
        yield replace(call.problem(f'`torch.cuda.amp.{name}` is now `torch.amp.{name}("cuda")`'), edits=edits)
        edits = ()


def _new_names(file: ReviewedFile, calls: Sequence[Call]) -> tuple[Edit, ...]:
    """Edits that rename all calls and their import; none if one of them is not plain."""
    plain = [call for call in calls if _is_plain(file, call)]
    imports = [n for n, line in enumerate(file.lines, start=1) if _AMP_IMPORT.fullmatch(line)]
    named = [call for call in calls if isinstance(call.node.func, ast.Name)]
    words = re.findall(r"\b(?:autocast|GradScaler)\b", "\n".join(file.lines))
    written = sum(len(re.findall("autocast|GradScaler", file.lines[n - 1])) for n in imports)
    if len(plain) != len(calls) or len(words) != len(calls) + written or (named and len(imports) != 1):
        return ()
    edits = [
        Edit(c.node.lineno, (c.node.func.end_col_offset or 0) + 2, 0, '"cuda", ' if c.node.keywords else '"cuda"')
        for c in calls
    ]
    for n, column in [
        *((n, 1) for n in imports),
        *((c.node.lineno, c.node.col_offset + 1) for c in calls if c not in named),
    ]:
        edits += file.edit(n, column, "torch.cuda.amp", "torch.amp")
    return tuple(edits)


def _is_plain(file: ReviewedFile, call: Call) -> bool:
    """No positional argument, on one line that counts bytes and characters alike."""
    function, line = call.node.func, file.lines[call.node.lineno - 1]
    end = function.end_col_offset or 0
    return not call.node.args and line.isascii() and function.end_lineno == call.node.lineno and line[end] == "("


@_program_rule(
    "TW604",
    "Scaled gradients are clipped",
    "warning",
    why="After `scaler.scale(loss).backward()` the gradients are multiplied by the loss scale. Clipped before they "
    "are unscaled, nearly all of them are cut to the limit, and the limit means something else.",
    fix="Call `scaler.unscale_(optimizer)` before `clip_grad_norm_`.",
    source="https://docs.pytorch.org/docs/stable/notes/amp_examples.html#working-with-unscaled-gradients",
    bad='import torch\nscaler = torch.amp.GradScaler("cuda")\nscaler.scale(loss).backward()\n'
    "torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)\nscaler.step(optimizer)\nscaler.update()\n",
    good='import torch\nscaler = torch.amp.GradScaler("cuda")\nscaler.scale(loss).backward()\n'
    "scaler.unscale_(optimizer)\ntorch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)\nscaler.step(optimizer)\n"
    "scaler.update()\n",
)
def clipped_before_unscaling(file: ReviewedFile) -> Iterator[Problem]:
    """A clip behind a scaled backward, in its block or in a branch of it, in a file that never unscales."""
    code = file.python
    if "unscale_" in code.text or not any(code.calls_of("GradScaler")):
        return
    scale = re.compile(r"\.scale\(.*\)\.backward")
    scaled = [call for call in code.calls_of("backward") if scale.search(file.lines[call.node.lineno - 1])]
    for call in code.calls_of("clip_grad_norm_", "clip_grad_value_"):
        if any(code.follows(call.node, other.node) for other in scaled):
            yield call.problem("the gradients are clipped while they are scaled")


@_program_rule(
    "TW605",
    "The cache is emptied at each step",
    "warning",
    why="`empty_cache` gives the free blocks of the allocator back to the driver, which waits for all work of the GPU, "
    "and the next step has to allocate them again. It makes no more memory available to PyTorch, which reuses free "
    "blocks anyway.",
    fix="Remove the call. If memory is fragmented, set `PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True`; if it runs "
    "out, take a smaller micro-batch or checkpoint activations.",
    source="https://docs.pytorch.org/docs/stable/notes/cuda.html#memory-management",
    bad="import torch\nfor batch in loader:\n    model(batch).backward()\n    optimizer.step()\n"
    "    torch.cuda.empty_cache()\n",
    good="import torch\nfor batch in loader:\n    model(batch).backward()\n    optimizer.step()\n",
)
def emptied_cache(file: ReviewedFile) -> Iterator[Problem]:
    """`torch.cuda.empty_cache` in every round of a loop that itself calls `backward`, or of a function that does.

    A loop around that loop, and one inside it, are others: of epochs, of an evaluation.
    """
    code = file.python
    calls = [call for call in code.calls_of("empty_cache") if call.name in _EMPTY_CACHE]
    steps = {_round_around(code, call.node) for call in code.calls_of("backward")} if calls else set()
    for call in calls:
        step = _round_around(code, call.node, is_each=True)
        if step in steps and _is_repeated(code, step):
            yield call.problem("the cache of the allocator is emptied at each step")


def _round_around(code: PythonCode, node: ast.AST, *, is_each: bool = False) -> _Round | None:
    """The innermost loop or function that has a node in its body; None without one.

    With `is_each`, None also where a condition or an exception decides whether the node runs. A question for a GPU is
    no condition: its answer is the same in every round.
    """
    while (parent := code.parents.get(node)) is not None:
        if isinstance(parent, _Round) and node in parent.body:
            return parent
        if is_each and isinstance(parent, _CONDITIONAL) and not _asks_for_gpu(parent, node):
            return None
        node = parent
    return None


def _is_repeated(code: PythonCode, step: _Round | None) -> bool:
    """It is a loop, or a function that a loop of the file calls."""
    if not isinstance(step, ast.FunctionDef):
        return step is not None
    return any(isinstance(_round_around(code, call.node), ast.For | ast.While) for call in code.calls_of(step.name))


def _asks_for_gpu(parent: ast.AST, node: ast.AST) -> bool:
    """The node stands below `if torch.cuda.is_available():` or a comparison with `"cuda"`."""
    return isinstance(parent, ast.If) and node in parent.body and bool(_GPU_TEST.fullmatch(ast.unparse(parent.test)))


@rule(
    "TW611",
    "fp16 and bf16 are enabled",
    why="DeepSpeed stops with `bfloat16 and fp16 modes cannot be simultaneously enabled`.",
    fix="Keep bf16 on Ampere and later, fp16 on older GPUs.",
    source="https://github.com/deepspeedai/DeepSpeed/blob/master/deepspeed/runtime/config.py",
    file="ds_config.json",
    bad='{"fp16": {"enabled": true}, "bf16": {"enabled": true}, "zero_optimization": {"stage": 2}}\n',
    good='{"bf16": {"enabled": true}, "zero_optimization": {"stage": 2}}\n',
)
def two_precisions(file: ReviewedFile) -> Iterator[Problem]:
    """Both sections say `true`."""
    for root in _deepspeed(file):
        sections = [root.get(name) for name in ("fp16", "bf16")]
        enabled = [section for section in sections if section and tree.is_true(tree.get(section[1], "enabled"))]
        if len(enabled) == len(sections):
            yield Problem(*tree.place(enabled[1][0]), "`fp16` and `bf16` are both enabled")


@rule(
    "TW612",
    "The batch sizes do not multiply",
    why="DeepSpeed needs `train_batch_size` = `train_micro_batch_size_per_gpu` x `gradient_accumulation_steps` x "
    "number of GPUs, and stops with an AssertionError.",
    fix="Leave `train_batch_size` out: DeepSpeed infers the third of the three.",
    source="https://www.deepspeed.ai/docs/config-json/",
    file="ds_config.json",
    bad='{"train_batch_size": 100, "train_micro_batch_size_per_gpu": 8, "gradient_accumulation_steps": 4}\n',
    good='{"train_batch_size": 256, "train_micro_batch_size_per_gpu": 8, "gradient_accumulation_steps": 4}\n',
)
def indivisible_batch(file: ReviewedFile) -> Iterator[Problem]:
    """A batch that no number of GPUs gives."""
    for root in _deepspeed(file):
        names = ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps")
        total, micro, steps = (tree.integer(root[name][1]) if name in root else None for name in names)
        if total and micro and steps and total % (micro * steps):
            message = f"{total} is not a multiple of {micro} x {steps} = {micro * steps}"
            yield Problem(*tree.place(root["train_batch_size"][0]), message)


@rule(
    "TW613",
    "Parameters are not offloaded",
    "warning",
    why="DeepSpeed offloads parameters in stage 3 alone: in the stages below each GPU holds all of them, and the "
    "section has no effect.",
    fix="Set `stage` to 3, or remove `offload_param`.",
    source="https://www.deepspeed.ai/docs/config-json/#parameter-offloading",
    file="ds_config.json",
    bad='{"zero_optimization": {"stage": 2, "offload_param": {"device": "cpu"}}}\n',
    good='{"zero_optimization": {"stage": 3, "offload_param": {"device": "cpu"}}}\n',
)
def offload_without_effect(file: ReviewedFile) -> Iterator[Problem]:
    """`offload_param` to the CPU or a disk, in a stage below 3."""
    for root in _deepspeed(file):
        zero = root["zero_optimization"][1] if "zero_optimization" in root else None
        stage, section = tree.integer(tree.get(zero, "stage")), tree.get(zero, "offload_param")
        if stage in (0, 1, 2) and section is not None and tree.scalar(tree.get(section, "device")) in ("cpu", "nvme"):
            yield Problem(*tree.place(section), f"`offload_param` in stage {stage}")


def _deepspeed(file: ReviewedFile) -> Iterator[dict[str, tuple[yaml.Node, yaml.Node]]]:
    """The root of a configuration of DeepSpeed, recognised by its keys."""
    if file.kind == "json" and re.search("zero_optimization|train_micro_batch_size_per_gpu", file.text):
        for document in file.documents:
            yield tree.entries(document)


@_program_rule(
    "TW644",
    "Half precision without a scale",
    "warning",
    why="Gradients below 6e-8 are 0 in fp16, and above 65,504 infinite. Without a scaler that FSDP knows, small "
    "gradients are lost and one overflow ends in NaN.",
    fix="Use `torch.bfloat16`, or `torch.distributed.fsdp.sharded_grad_scaler.ShardedGradScaler` with fp16.",
    source="https://docs.pytorch.org/docs/stable/fsdp.html",
    bad=_FSDP_HEAD + "policy = MixedPrecision(param_dtype=torch.float16)\n" + _FSDP_STEP,
    good=_FSDP_HEAD + "policy = MixedPrecision(param_dtype=torch.bfloat16)\n" + _FSDP_STEP,
)
def unscaled_half(file: ReviewedFile) -> Iterator[Problem]:
    """A policy of FSDP with parameters in fp16, in a program that names no scaler and trains."""
    code = file.python
    if re.search(r"[Ss]caler", code.text) or ("backward(" not in code.text and ".step(" not in code.text):
        return
    for call in code.calls_of("MixedPrecision", "MixedPrecisionPolicy"):
        dtype = call.argument("param_dtype")
        if dtype is not None and ast.unparse(dtype) in ("torch.float16", "torch.half"):
            yield call.problem("parameters in fp16, and no gradient scaler")
