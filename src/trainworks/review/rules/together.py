"""TW624 to TW630 and TW639: what some ranks do alone while the others wait, or what only all ranks have together."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import partial

from trainworks.review.files import ReviewedFile
from trainworks.review.finding import Problem
from trainworks.review.readers.python import PythonCode
from trainworks.review.rule import rule

_FSDP = "https://docs.pytorch.org/docs/stable/fsdp.html"
_program_rule = partial(rule, file="train.py", source="https://docs.pytorch.org/docs/stable/notes/ddp.html")
_TOGETHER = re.compile(r"DistributedDataParallel|FullyShardedDataParallel|fully_shard|deepspeed|Accelerator\(")
_NOT_FINITE = re.compile(r"is_?nan\(|is_?inf\(|not [\w.]*isfinite\(", re.IGNORECASE)
_WHOLE_STATE = re.compile(
    r"state_dict_type|StateDictType|get_model_state_dict|get_state_dict|full_tensor|summon_full_params|rank0_only"
    r"|distributed\.checkpoint"
)
_GATHERED = re.compile(r"GatheredParameters|zero_to_fp32|fp32_state_dict|consolidat|get_state_dict|save_checkpoint\(")
_SHARDED = ("FSDP", "FullyShardedDataParallel", "fully_shard")
_HEAD = (
    "import torch\nimport torch.distributed as dist\nfrom torch.nn.parallel import DistributedDataParallel as DDP\n"
    "model = DDP(net, device_ids=[local_rank()])\n"
)
_FSDP_HEAD = (
    "import torch\nimport torch.distributed as dist\n"
    "from torch.distributed.fsdp import FullyShardedDataParallel as FSDP\nmodel = FSDP(net)\n"
)


@_program_rule(
    "TW624",
    "One rank leaves a step out",
    why="The loss is that of one rank. The rank that sees a NaN takes part in no all-reduce of this step, and its next "
    "one meets that of another step on the others: wrong sums, then a hang.",
    fix="Decide together: `dist.all_reduce` a flag, and let every rank skip the step.",
    bad=_HEAD + "for batch in loader:\n    loss = model(batch)\n    if torch.isnan(loss):\n        continue\n"
    "    loss.backward()\n",
    good=_HEAD + "for batch in loader:\n    loss = model(batch)\n    bad = torch.isnan(loss).float()\n"
    "    dist.all_reduce(bad)\n    if bad > 0:\n        continue\n    loss.backward()\n",
)
def step_left_out(file: ReviewedFile) -> Iterator[Problem]:
    """`continue` for a loss that is not finite, before the `backward` of a program of several ranks."""
    code = file.python
    if "continue" not in code.text or not _TOGETHER.search(code.text):
        return
    for branch in code.nodes_of(ast.If):
        if _NOT_FINITE.search(ast.unparse(branch.test)) and any(isinstance(each, ast.Continue) for each in branch.body):
            loop = code.loop_around(branch)
            calls = [call.node.lineno for call in code.calls_of("backward")]
            behind = loop is not None and any(branch.lineno < at <= (loop.end_lineno or 0) for at in calls)
            if behind and loop is not None and not re.search("reduce|gather|broadcast", ast.unparse(loop)):
                yield Problem(branch.lineno, branch.col_offset + 1, "a rank leaves its step out, and the others do not")


@_program_rule(
    "TW625",
    "One rank asks for the state of a sharded model",
    why="FSDP gathers the parameters of all ranks in `state_dict()`, or each rank returns its own part. Called on one "
    "rank, the gathering waits for the others, or the file holds a part of the model.",
    fix="Call it on every rank, with `FullStateDictConfig(rank0_only=True)` or `torch.distributed.checkpoint`, and "
    "write on rank 0.",
    source=_FSDP,
    bad=_FSDP_HEAD + "if dist.get_rank() == 0:\n    torch.save(model.state_dict(), 'last.pt')\n",
    good=_FSDP_HEAD + "state = model.state_dict()\nif dist.get_rank() == 0:\n    torch.save(state, 'last.pt')\n",
)
def sharded_state_of_one_rank(file: ReviewedFile) -> Iterator[Problem]:
    """`state_dict()` of a model under a condition that one rank meets, in a program that shards with FSDP."""
    code = file.python
    if not any(code.calls_of(*_SHARDED)):
        return
    gathers = _WHOLE_STATE.search(code.text) is not None
    for call in code.calls_of("state_dict"):
        if gathers and not _gathered_here(code, call.node):
            continue
        owner = call.name.rpartition(".")[0]
        is_model = re.search(r"model|net$|fsdp", owner, re.IGNORECASE) and not re.search("optim|sched|ema", owner)
        if is_model and code.is_on_one_rank(call.node):
            yield call.problem(f"one rank asks `{owner}` for its state")


def _gathered_here(code: PythonCode, call: ast.AST) -> bool:
    """A call gathers the parameters itself: it is inside `with FSDP.state_dict_type(...)`."""
    around = code.parents.get(call)
    while around is not None:
        if isinstance(around, ast.With):
            return any("state_dict_type(" in ast.unparse(item) for item in around.items)
        around = code.parents.get(around)
    return False


@_program_rule(
    "TW626",
    "One rank leaves the loop",
    why="The other ranks start the next step, and wait there for the rank that has left until the collective times "
    "out.",
    fix="Let rank 0 decide and tell the others, `dist.broadcast(stop, 0)`; then every rank leaves.",
    bad=_HEAD + "for epoch in range(10):\n    train(model)\n    if dist.get_rank() == 0:\n"
    "        if validate(model) > best:\n            break\n",
    good=_HEAD + "for epoch in range(10):\n    train(model)\n    stop = torch.zeros(1)\n    if dist.get_rank() == 0:\n"
    "        stop += validate(model) > best\n    dist.broadcast(stop, 0)\n    if stop:\n        break\n",
)
def loop_left_by_one_rank(file: ReviewedFile) -> Iterator[Problem]:
    """`break` out of a training loop under a condition that one rank meets."""
    code = file.python
    if "break" not in code.text or not _TOGETHER.search(code.text):
        return
    for leave in code.nodes_of(ast.Break):
        loop = code.loop_around(leave)
        text = ast.unparse(loop) if loop is not None else ""
        trains = re.search(r"\.backward\(|set_epoch|for \w*epoch\w* in", text)
        if trains and "broadcast" not in text and code.is_on_one_rank(leave, until=loop):
            yield Problem(leave.lineno, leave.col_offset + 1, "one rank leaves the loop, and the others wait for it")


@_program_rule(
    "TW627",
    "The count of one rank over the data of all",
    "warning",
    why="The sampler gives each rank a part of the data set. Its count of right answers, divided by the length of the "
    "whole, is about 1/N of the accuracy on N ranks.",
    fix="Add the counts of all ranks with `dist.all_reduce`, or divide by the number of samples that the rank saw.",
    bad=_HEAD + "from torch.utils.data import DataLoader, DistributedSampler\n"
    "test_loader = DataLoader(data, sampler=DistributedSampler(data, shuffle=False))\n"
    "print(correct / len(test_loader.dataset))\n",
    good=_HEAD + "from torch.utils.data import DataLoader, DistributedSampler\n"
    "test_loader = DataLoader(data, sampler=DistributedSampler(data, shuffle=False))\n"
    "dist.all_reduce(correct)\nprint(correct / len(test_loader.dataset))\n",
)
def count_of_one_rank(file: ReviewedFile) -> Iterator[Problem]:
    """A division by `len(LOADER.dataset)`, in a file that divides this loader and adds nothing over the ranks."""
    code = file.python
    if "DistributedSampler" not in code.text or re.search(r"reduce|gather|[Aa]ccelerat|metrics\.", code.text):
        return
    shared: set[str] = set()
    for call in code.calls_of("DataLoader"):
        target, sampler = code.parents.get(call.node), call.argument("sampler")
        made = [sampler, *code.values_of(sampler)] if sampler is not None else []
        if isinstance(target, ast.Assign) and any("DistributedSampler(" in ast.unparse(value) for value in made):
            shared |= {ast.unparse(each) for each in target.targets}
    for function in code.nodes_of(ast.FunctionDef) if shared else ():
        shared |= _given(code, function, shared)
    divided: list[tuple[ast.BinOp | ast.AugAssign, ast.expr, ast.expr]] = []
    divided += [(node, node.left, node.right) for node in code.nodes_of(ast.BinOp)]
    divided += [(node, node.target, node.value) for node in code.nodes_of(ast.AugAssign)]
    for node, count, whole in divided if shared else ():
        sizes = [whole, *code.values_of(whole)] if isinstance(whole, ast.Name) else [whole]
        found = [re.fullmatch(r"len\((\w+)\.dataset\)", ast.unparse(size)) for size in sizes]
        if isinstance(node.op, ast.Div) and any(one and one[1] in shared for one in found):
            yield Problem(node.lineno, node.col_offset + 1, f"`{ast.unparse(count)}` is of one rank")


def _given(code: PythonCode, function: ast.FunctionDef, loaders: set[str]) -> set[str]:
    """Parameters of a function that only get one of some loaders, in the order of the calls."""
    names = [argument.arg for argument in function.args.args]
    calls = [call.node for call in code.calls if call.name == function.name]
    return {
        name
        for at, name in enumerate(names)
        if calls and all(at < len(call.args) and ast.unparse(call.args[at]) in loaders for call in calls)
    }


@_program_rule(
    "TW628",
    "A state without the parameters",
    why="ZeRO stage 3 keeps a part of every parameter on each rank. `state_dict()` of the module has placeholders of "
    "size 0: the file has the names and no weights.",
    fix="Save with `engine.save_16bit_model(folder)` or `trainer.save_model(folder)`, or gather first with "
    "`deepspeed.zero.GatheredParameters`.",
    source="https://deepspeed.readthedocs.io/en/stable/zero3.html#gathering-parameters",
    bad='import torch, deepspeed\nzero = {"stage": 3}\n'
    "engine, *_ = deepspeed.initialize(model=model, config={'zero_optimization': zero})\n"
    "torch.save(model.state_dict(), 'last.pt')\n",
    good='import torch, deepspeed\nzero = {"stage": 3}\n'
    "engine, *_ = deepspeed.initialize(model=model, config={'zero_optimization': zero})\n"
    "engine.save_16bit_model('last')\n",
)
def state_without_parameters(file: ReviewedFile) -> Iterator[Problem]:
    """`torch.save` of the state of a module, with a configuration of stage 3 in the file or beside it."""
    code = file.python
    if "deepspeed" not in code.text or _GATHERED.search(code.text):
        return
    names = {each.value for each in code.nodes_of(ast.Constant) if isinstance(each.value, str)}
    texts = [file.text, *(file.read_near(name) or "" for name in names if name.endswith(".json"))]
    is_stage_3 = any(re.search(r"""["']stage["']\s*:\s*3\b""", text) for text in texts)
    for call in code.calls_of("save") if is_stage_3 else ():
        saved = ast.unparse(call.node.args[0]) if call.node.args else ""
        is_module = re.search(r"(?:model|net|module)\.state_dict\(\)", saved)
        if call.name == "torch.save" and is_module:
            yield call.problem(f"`{saved}` has no parameters under ZeRO stage 3")


@_program_rule(
    "TW629",
    "Each rank clips its own part",
    "warning",
    why="The parameters of a FSDP model are parts of a whole. `torch.nn.utils.clip_grad_norm_` takes the norm of the "
    "part of its rank: each rank scales by another factor, and the limit holds for none.",
    fix="Call `model.clip_grad_norm_(max_norm)`, which takes the norm over all ranks.",
    source=_FSDP + "#torch.distributed.fsdp.FullyShardedDataParallel.clip_grad_norm_",
    bad=_FSDP_HEAD + "loss.backward()\ntorch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)\n",
    good=_FSDP_HEAD + "loss.backward()\nmodel.clip_grad_norm_(1.0)\n",
)
def clipped_by_part(file: ReviewedFile) -> Iterator[Problem]:
    """The function of torch in a program that wraps its model with FSDP, and in no other way."""
    code = file.python
    if not any(code.calls_of("FullyShardedDataParallel")) or any(
        code.calls_of("DistributedDataParallel", "fully_shard")
    ):
        return
    for call in code.calls_of("clip_grad_norm_"):
        if call.name.startswith("torch.nn.utils") and "NO_SHARD" not in code.text:
            yield call.problem("the norm is that of the part of one rank")


@_program_rule(
    "TW630",
    "One rank loads the checkpoint",
    why="DistributedDataParallel sends the parameters of rank 0 to the others when it is made, and not later: rank 0 "
    "continues from the checkpoint, the others from their start, and their gradients are averaged.",
    fix="Load on every rank with `map_location`, or before the model is wrapped.",
    bad=_HEAD + "if dist.get_rank() == 0:\n    model.load_state_dict(torch.load('last.pt', map_location='cpu'))\n",
    good=_HEAD + "model.load_state_dict(torch.load('last.pt', map_location='cpu'))\n",
)
def loaded_by_one_rank(file: ReviewedFile) -> Iterator[Problem]:
    """`load_state_dict` of a model that one rank reaches, behind the wrapping, in a file that broadcasts nothing."""
    code = file.python
    wraps = list(code.calls_of("DistributedDataParallel"))
    if not wraps or re.search("broadcast|sync_module_states", code.text):
        return
    for call in code.calls_of("load_state_dict"):
        if re.search("optim|sched|scaler", call.name) or not code.is_on_one_rank(call.node):
            continue
        function = code.parents.get(call.node)
        while function is not None and not isinstance(function, ast.FunctionDef):
            function = code.parents.get(function)
        uses = [call.node] if function is None else [use.node for use in code.calls_of(function.name)]
        if any(code.follows(use, wrap.node) for use in uses for wrap in wraps):
            yield call.problem("rank 0 loads, and the other ranks keep what they had")


@_program_rule(
    "TW639",
    "The ranks wait for each other in every step",
    "warning",
    why="The all-reduce of the gradients already keeps the ranks together. A barrier in each step waits for the "
    "slowest rank once more and empties the queues of the GPUs.",
    fix="Remove the barrier; time with `torch.cuda.Event`.",
    bad=_HEAD + "for batch in loader:\n    loss = model(batch)\n    dist.barrier()\n    loss.backward()\n",
    good=_HEAD + "for batch in loader:\n    loss = model(batch)\n    loss.backward()\n",
)
def barrier_in_every_step(file: ReviewedFile) -> Iterator[Problem]:
    """`barrier` in the body of the innermost loop that also calls `backward` there."""
    code = file.python
    for call in code.calls_of("barrier") if _TOGETHER.search(code.text) else ():
        statement = code.parents.get(call.node)
        loop = code.parents.get(statement) if statement is not None else None
        is_step = any(code.loop_around(other.node) is loop for other in code.calls_of("backward"))
        if isinstance(loop, ast.For | ast.While) and call.name.endswith("distributed.barrier") and is_step:
            yield call.problem("a barrier in each step")
