"""TW62x: what the ranks of a PyTorch program do together: saving, accumulating, and ending."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import partial

from trainworks.review.files import ReviewedFile
from trainworks.review.finding import Problem
from trainworks.review.readers.python import PythonCode
from trainworks.review.rule import rule

_program_rule = partial(rule, file="train.py", source="https://docs.pytorch.org/docs/stable/notes/ddp.html")
_GUARD = re.compile(
    r"rank|is_main|main_process|master|primary|chief|leader|process_index|gpu|device|writer|should_save|save_model"
    r"|log_dir|logger|coordinator|first_worker",
    re.IGNORECASE,
)
"""Words of conditions that choose one rank, or may."""
_OTHER_SAVING = re.compile(
    r"FSDP|FullyShardedDataParallel|deepspeed|[Aa]ccelerat|lightning|torch_xla|save_on_master|distributed\.checkpoint"
)
"""Libraries and functions that shard a checkpoint, or choose the rank that writes."""
_OTHER_SYNC = re.compile(r"no_sync|require_backward_grad_sync|deepspeed|[Aa]ccelerator|accelerate\b|fabric")
_DEEPEST = 3
"""Callers that are followed."""
_HEAD = (
    "import torch\nimport torch.distributed as dist\nfrom torch.nn.parallel import DistributedDataParallel as DDP\n"
    'dist.init_process_group("nccl")\n'
)


@_program_rule(
    "TW621",
    "Every rank writes one file",
    "warning",
    why="All ranks run the same program, so each of them writes the same file at the same time. The file can hold "
    "parts of several, and a job that ends while they write leaves none.",
    fix="Write on one rank, `if dist.get_rank() == 0:`, a new file that is renamed when it is complete.",
    bad=_HEAD + "model = DDP(torch.nn.Linear(8, 8).to(0))\ntorch.save(model.module.state_dict(), 'last.pt')\n",
    good=_HEAD + "model = DDP(torch.nn.Linear(8, 8).to(0))\nif dist.get_rank() == 0:\n"
    "    torch.save(model.module.state_dict(), 'last.pt')\n",
)
def one_file_of_all_ranks(file: ReviewedFile) -> Iterator[Problem]:
    """`torch.save` to a path without a rank, in a program that joins a group, where no condition chooses a rank."""
    code = file.python
    joins = any(call.name.startswith("torch.distributed") for call in code.calls_of("init_process_group"))
    if not joins or not any(code.calls_of("DistributedDataParallel")) or _OTHER_SAVING.search(code.text):
        return
    for call in code.calls_of("save"):
        target = call.node.args[1] if len(call.node.args) > 1 else call.argument("f")
        if call.name != "torch.save" or target is None or not _is_one_path(code, target):
            continue
        if _reaches_every_rank(code, call.node, _DEEPEST):
            yield call.problem(f"every rank writes `{ast.unparse(target)}`")


def _is_one_path(code: PythonCode, target: ast.expr) -> bool:
    """A path that the file itself makes of constants and of names without a word for a rank."""
    written = " ".join([ast.unparse(target), *(ast.unparse(value) for value in code.values_of(target))])
    return not _GUARD.search(written) and any(isinstance(each, ast.Constant) for each in ast.walk(target))


def _reaches_every_rank(code: PythonCode, node: ast.AST, depth: int) -> bool:
    """No condition around a node, or around all uses of its function, chooses a rank."""
    inner: ast.AST = node
    while (outer := code.parents.get(inner)) is not None:
        if isinstance(outer, ast.If | ast.IfExp | ast.While) and _GUARD.search(ast.unparse(outer.test)):
            return False
        if isinstance(outer, ast.ClassDef | ast.Lambda | ast.ExceptHandler):
            return False  # a method may be called from anywhere, and a handler seldom
        if isinstance(outer, ast.FunctionDef | ast.Module):
            before = outer.body[: outer.body.index(inner)] if inner in outer.body else []  # type: ignore[arg-type]
            if any(isinstance(each, ast.If) and _GUARD.search(ast.unparse(each.test)) for each in before):
                return False  # `if rank != 0: return`
        if isinstance(outer, ast.FunctionDef):
            uses = [each for each in code.nodes_of(ast.Name) if each.id == outer.name]
            return depth > 0 and any(_reaches_every_rank(code, use, depth - 1) for use in uses)
        inner = outer
    return True


@_program_rule(
    "TW622",
    "Gradients are exchanged in every accumulated step",
    "warning",
    why="DistributedDataParallel starts its all-reduce in each `backward()`. With k accumulated steps all but the last "
    "exchange sums that nothing reads, k times the traffic.",
    fix="Run all but the last `backward()` in `with model.no_sync():`.",
    bad=_HEAD + "model = DDP(net)\nfor i, batch in enumerate(loader):\n    loss = model(batch) / steps\n"
    "    loss.backward()\n    if (i + 1) % steps == 0:\n        optimizer.step()\n        optimizer.zero_grad()\n",
    good=_HEAD + "model = DDP(net)\nfor i, batch in enumerate(loader):\n    last = (i + 1) % steps == 0\n"
    "    with nullcontext() if last else model.no_sync():\n        (model(batch) / steps).backward()\n"
    "    if last:\n        optimizer.step()\n        optimizer.zero_grad()\n",
)
def exchange_in_every_step(file: ReviewedFile) -> Iterator[Problem]:
    """A loop of a DDP program, or a function of one step, with `backward()` in each and an optimizer's step in some."""
    code = file.python
    if not any(code.calls_of("DistributedDataParallel")) or _OTHER_SYNC.search(code.text):
        return
    for branch in code.nodes_of(ast.If):
        divided = re.match(r"\(?[\w.]+(?: \+ 1\))? % ([A-Za-z_][\w.]*) == ", ast.unparse(branch.test))
        stepped = "\n".join(ast.unparse(each) for each in branch.body)
        if divided is None or not re.search(r"optim\w*\.step\(|scaler\.step\(", stepped):
            continue
        steps = divided[1]
        loop = code.parents.get(branch)
        body = ast.unparse(loop) if isinstance(loop, ast.For | ast.While | ast.FunctionDef) else ""
        if ".backward()" in body and re.search(rf"/=?\s*\(?{re.escape(steps)}\b", body):
            yield Problem(branch.lineno, branch.col_offset + 1, f"each of `{steps}` steps exchanges gradients")


@_program_rule(
    "TW623",
    "A broken group is joined again",
    why="An error of a collective ends the communicator on every rank. This rank joins a new rendezvous, in which the "
    "others do not take part: they hang in the collective, or have ended.",
    fix="Let the error end the process, and torchrun or the scheduler start all ranks from the last checkpoint.",
    bad="import torch.distributed as dist\n\ndist.init_process_group('nccl')\ntry:\n    train()\n"
    "except RuntimeError:\n    dist.init_process_group('nccl')\n    train()\n",
    good="import torch.distributed as dist\n\ndist.init_process_group('nccl')\ntrain()\n",
)
def joined_again(file: ReviewedFile) -> Iterator[Problem]:
    """`init_process_group` in the handler of an exception of a program that has joined a group before."""
    code = file.python
    calls = [call for call in code.calls_of("init_process_group") if call.name.startswith("torch.distributed")]
    for call in calls if len(calls) > 1 else ():
        node: ast.AST | None = call.node
        while node is not None and not isinstance(node, ast.ExceptHandler | ast.FunctionDef):
            node = code.parents.get(node)
        handled = ast.unparse(node.type) if isinstance(node, ast.ExceptHandler) and node.type else ""
        tried = code.parents.get(node) if isinstance(node, ast.ExceptHandler) else None
        starts = isinstance(tried, ast.Try) and "init_process_group" in "".join(map(ast.unparse, tried.body))
        destroys = node is not None and "destroy_process_group" in ast.unparse(node)
        if handled and not starts and not destroys and not re.search(r"Import|Key|Value|Attribute", handled):
            yield call.problem(f"a rank cannot join its group again after `{handled}`")
