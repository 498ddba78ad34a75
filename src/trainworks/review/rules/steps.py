"""TW631 to TW643: the steps of a training loop: gradients, schedules, evaluation, devices and checkpoints."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import partial

from trainworks.review.files import ReviewedFile
from trainworks.review.finding import Problem
from trainworks.review.readers.python import Call, PythonCode
from trainworks.review.rule import rule
from trainworks.review.versions import Releases

_OPTIMIZER = "https://docs.pytorch.org/docs/stable/optim.html"
_program_rule = partial(rule, file="train.py", source=_OPTIMIZER)
_OTHER_LOOPS = re.compile(r"[Aa]ccelerat|deepspeed|[Ll]ightning|fabric|megatron")
"""Libraries that divide the loss, or choose the mode of the model, themselves."""
_ACTS_OTHERWISE = re.compile(
    r"Dropout|BatchNorm|resnet|vgg|densenet|mobilenet|efficientnet|bert|torchvision\.models|vit_"
)
"""Layers, and models with layers, that compute something else in training than in evaluation."""
_GLOBAL_RANK = re.compile(
    r"(?:dist|torch\.distributed|deepspeed\.comm)\.get_rank\(\)"
    r"|(?:environ(?:\.get)?|getenv)[\[(]['\"](?:RANK|SLURM_PROCID|PMIX_RANK|PMI_RANK|OMPI_COMM_WORLD_RANK)['\"]"
)
_DIVIDED = re.compile(r"%|//|LOCAL|device_count| - | or ")
"""The rank is divided by the GPUs of a node, or a local rank is asked first."""
_SCHEDULE = re.compile(r"lr_scheduler|get_\w*schedule|LR$|CosineAnnealing")
_LOADED = re.compile(
    r"(?:^|_)(?:val|valid|validation|test|eval|dev)\w*(?:loader|data|dl|iter|set)?$|loader", re.IGNORECASE
)
_DDP = (
    "import torch\nfrom torch.nn.parallel import DistributedDataParallel as DDP\nmodel = DDP(net, device_ids=[gpu()])\n"
)
_LOOP = "import torch\nmodel = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Dropout(0.1))\n"


@_program_rule(
    "TW631",
    "Evaluated in the mode of training",
    "warning",
    why="Without `model.eval()` Dropout drops activations of the evaluation as well, and BatchNorm normalises each "
    "batch by itself and moves its running statistics.",
    fix="Call `model.eval()` before the evaluation, and `model.train()` behind it.",
    source="https://docs.pytorch.org/docs/stable/generated/torch.nn.Module.html#torch.nn.Module.eval",
    bad=_LOOP
    + "model(x).sum().backward()\nwith torch.no_grad():\n    for x in test_loader:\n        right += model(x)\n",
    good=_LOOP + "model(x).sum().backward()\nmodel.eval()\nwith torch.no_grad():\n    for x in test_loader:\n"
    "        right += model(x)\n",
)
def evaluated_in_training_mode(file: ReviewedFile) -> Iterator[Problem]:
    """A loop over held-out data without gradients, in a program that trains and nowhere calls `eval`."""
    code = file.python
    if re.search(r"\.eval\(|\.train\(|train\(False", code.text.replace(".train()", "")) or _OTHER_LOOPS.search(
        code.text
    ):
        return
    if not any(code.calls_of("backward")) or not _ACTS_OTHERWISE.search(code.text):
        return
    for block in code.nodes_of(ast.With):
        quiet = any("no_grad" in ast.unparse(each) or "inference_mode" in ast.unparse(each) for each in block.items)
        loops = [each for each in block.body if isinstance(each, ast.For)] if quiet else []
        for loop in loops:
            if _LOADED.search(ast.unparse(loop.iter).rstrip(")")) and "train" not in ast.unparse(loop.iter):
                yield Problem(block.lineno, block.col_offset + 1, "nothing calls `eval()` before this evaluation")


@_program_rule(
    "TW632",
    "Accumulated gradients are deleted",
    why="`zero_grad()` runs in every micro-step, and the optimizer in every k-th: it steps with the gradient of the "
    "last micro-batch, and the others were computed for nothing.",
    fix="Call `zero_grad()` behind `optimizer.step()`, in the same branch.",
    bad=_LOOP + "for i, x in enumerate(loader):\n    optimizer.zero_grad()\n    (model(x) / k).backward()\n"
    "    if (i + 1) % k == 0:\n        optimizer.step()\n",
    good=_LOOP + "for i, x in enumerate(loader):\n    (model(x) / k).backward()\n"
    "    if (i + 1) % k == 0:\n        optimizer.step()\n        optimizer.zero_grad()\n",
)
def deleted_gradients(file: ReviewedFile) -> Iterator[Problem]:
    """`zero_grad` of an optimizer in each round of a loop that steps it in some, with `backward` in each."""
    code = file.python
    for call in code.calls_of("zero_grad"):
        statement = code.parents.get(call.node)
        loop = code.parents.get(statement) if statement is not None else None
        if not isinstance(loop, ast.For) or statement not in loop.body:
            continue
        own = call.name.rpartition(".")[0]
        stepped = re.compile(rf"(?<![\w.]){re.escape(own)}\.step\(|\.step\({re.escape(own)}\)")
        branches = [each for each in loop.body if isinstance(each, ast.If) and "%" in ast.unparse(each.test)]
        rest = "\n".join(ast.unparse(each) for each in loop.body if each not in branches)
        inside = "\n".join(ast.unparse(each) for each in branches)
        if stepped.search(inside) and not stepped.search(rest) and ".backward()" in rest and ".backward(" not in inside:
            yield call.problem(f"`{own}.zero_grad()` in every step, `{own}.step()` in some")


@_program_rule(
    "TW633",
    "Accumulated losses are added up",
    "warning",
    why="The gradients of k micro-batches add up. Undivided, the step is that of k times the learning rate, and a "
    "limit on the norm of the gradient cuts k times as much.",
    fix="Divide the loss by the number of micro-steps before `backward()`.",
    source="https://docs.pytorch.org/docs/stable/notes/amp_examples.html#gradient-accumulation",
    bad=_LOOP + "for i, x in enumerate(loader):\n    model(x).backward()\n"
    "    if (i + 1) % accumulation_steps == 0:\n        optimizer.step()\n        optimizer.zero_grad()\n",
    good=_LOOP + "for i, x in enumerate(loader):\n    (model(x) / accumulation_steps).backward()\n"
    "    if (i + 1) % accumulation_steps == 0:\n        optimizer.step()\n        optimizer.zero_grad()\n",
)
def undivided_loss(file: ReviewedFile) -> Iterator[Problem]:
    """`backward` in each micro-step of a loop, and nothing in the file divides by their number."""
    code = file.python
    if "accum" not in code.text or _OTHER_LOOPS.search(code.text) or "\ndef test_" in code.text:
        return
    for call in code.calls_of("backward"):
        loop = code.loop_around(call.node)
        number = _micro_steps(loop) if loop is not None and not call.node.args else None
        if number is not None and "accum" in number:
            last = re.escape(number.rpartition(".")[2])
            divided = re.search(rf"/=?\s*(?:\w+\(|\()*(?:\w+\.)*{last}\b|\bscale\w*\s*\*|\*\s*\w*scale", code.text)
            if divided is None:
                yield call.problem(f"the losses of `{number}` steps add up")


def _micro_steps(loop: ast.For | ast.While) -> str | None:
    """The number of micro-steps of a loop that steps in each k-th round, or whose rounds are the micro-steps."""
    counted = re.fullmatch(r"range\(([\w.]+)\)", ast.unparse(loop.iter)) if isinstance(loop, ast.For) else None
    if counted is not None and ".step(" not in ast.unparse(loop):
        return counted[1]
    for branch in loop.body:
        found = re.match(r"\(?[\w.]+(?: \+ 1\))? % ([A-Za-z_][\w.]*) == ", ast.unparse(getattr(branch, "test", branch)))
        if isinstance(branch, ast.If) and found and ".step(" in ast.unparse(branch):
            return found[1]
    return None


@_program_rule(
    "TW634",
    "The schedule needs the metric",
    why="`ReduceLROnPlateau.step()` takes the value that it watches, and raises a TypeError without it.",
    fix="Call `scheduler.step(validation_loss)`.",
    source="https://docs.pytorch.org/docs/stable/generated/torch.optim.lr_scheduler.ReduceLROnPlateau.html",
    bad="import torch\nplateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer)\n"
    "optimizer.step()\nplateau.step()\n",
    good="import torch\nplateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer)\n"
    "optimizer.step()\nplateau.step(loss)\n",
)
def missing_metric(file: ReviewedFile) -> Iterator[Problem]:
    """`step()` of an object that is a ReduceLROnPlateau wherever the file sets it."""
    code = file.python
    for call in code.calls_of("step") if "ReduceLROnPlateau" in code.text else ():
        made = code.values_of(call.node.func.value) if isinstance(call.node.func, ast.Attribute) else []
        plateau = [value for value in made if ast.unparse(value).partition("(")[0].endswith("ReduceLROnPlateau")]
        if made and len(plateau) == len(made) and not call.node.args and not call.node.keywords:
            yield call.problem("`ReduceLROnPlateau.step()` without the value that it watches")


@_program_rule(
    "TW635",
    "The schedule steps before the optimizer",
    "warning",
    why="Since PyTorch 1.1 the schedule sets the rate of the next step. Called first it leaves the first value out, "
    "and PyTorch warns of it.",
    fix="Call `scheduler.step()` behind `optimizer.step()`.",
    source=_OPTIMIZER + "#how-to-adjust-learning-rate",
    bad="import torch\nscheduler = torch.optim.lr_scheduler.StepLR(optimizer, 30)\nfor x in loader:\n"
    "    model(x).backward()\n    scheduler.step()\n    optimizer.step()\n",
    good="import torch\nscheduler = torch.optim.lr_scheduler.StepLR(optimizer, 30)\nfor x in loader:\n"
    "    model(x).backward()\n    optimizer.step()\n    scheduler.step()\n",
)
def early_schedule(file: ReviewedFile) -> Iterator[Problem]:
    """`step()` of a schedule in a loop, before the `step` of its optimizer in the same round, and none behind it."""
    code = file.python
    steps = list(code.calls_of("step")) if _SCHEDULE.search(code.text) else []
    for call in steps:
        optimizer = _optimizer_of(code, call)
        loop = code.loop_around(call.node)
        if optimizer is None or loop is None:
            continue
        within = [other for other in steps if loop.lineno < other.node.lineno <= (loop.end_lineno or 0)]
        own = [
            other
            for other in within
            if other.name == f"{optimizer}.step" or [*map(ast.unparse, other.node.args)] == [optimizer]
        ]
        if own and all(code.follows(other.node, call.node) for other in own):
            yield call.problem(f"the schedule steps before `{optimizer}.step()`")


def _optimizer_of(code: PythonCode, call: Call) -> str | None:
    """Name of the optimizer of a schedule whose `step()` without arguments this is; None for any other call."""
    made = code.values_of(call.node.func.value) if isinstance(call.node.func, ast.Attribute) else []
    if call.node.args or call.node.keywords or len(made) != 1 or not isinstance(made[0], ast.Call):
        return None
    schedule = made[0]
    if not _SCHEDULE.search(ast.unparse(schedule.func)):
        return None
    named = next((each.value for each in schedule.keywords if each.arg == "optimizer"), None)
    value = named or next((each for each in schedule.args if isinstance(each, ast.Name | ast.Attribute)), None)
    return ast.unparse(value) if value is not None else None


@_program_rule(
    "TW636",
    "The rank of all nodes as the number of a GPU",
    "warning",
    why="The ranks count through all nodes, the GPUs of each node from 0. The first rank of the second node asks for a "
    "GPU that its node does not have, `invalid device ordinal`.",
    fix='Take the rank within the node: `int(os.environ["LOCAL_RANK"])`, or `SLURM_LOCALID` under srun.',
    source="https://docs.pytorch.org/docs/main/distributed/elastic/run.html",
    bad="import torch\nimport torch.distributed as dist\nrank = dist.get_rank()\ntorch.cuda.set_device(rank)\n",
    good="import os\nimport torch\nimport torch.distributed as dist\nrank = dist.get_rank()\n"
    "torch.cuda.set_device(int(os.environ['LOCAL_RANK']))\n",
)
def rank_as_device(file: ReviewedFile) -> Iterator[Problem]:
    """A name that is only ever the global rank, as the number of a GPU."""
    code = file.python
    if not _GLOBAL_RANK.search(code.text):
        return
    for name in _devices(code):
        values = [ast.unparse(value) for value in code.values_of(name)]
        if values and all(_GLOBAL_RANK.search(value) and not _DIVIDED.search(value) for value in values):
            yield Problem(name.lineno, name.col_offset + 1, f"`{ast.unparse(name)}` counts through all nodes")
            return


def _devices(code: PythonCode) -> Iterator[ast.Name]:
    """Names that are the number of a GPU: of `set_device`, of `device_ids`, and behind `cuda:`."""
    for call in code.calls_of("set_device"):
        yield from (each for each in call.node.args if isinstance(each, ast.Name))
    for call in code.calls_of("DistributedDataParallel"):
        ids = call.argument("device_ids")
        yield from (each for each in getattr(ids, "elts", ()) if isinstance(each, ast.Name))
    for text in code.nodes_of(ast.JoinedStr):
        first, *others = text.values
        if isinstance(first, ast.Constant) and first.value == "cuda:" and len(others) == 1:
            value = others[0].value if isinstance(others[0], ast.FormattedValue) else None
            yield from (value,) if isinstance(value, ast.Name) else ()


@_program_rule(
    "TW637",
    "Every rank loads onto one GPU",
    "warning",
    why="Tensors are loaded to the device that they were saved from, usually GPU 0: all ranks of a node put their copy "
    "of the checkpoint there, and it runs out of memory.",
    fix='Give `map_location="cpu"`, or the device of the rank.',
    source="https://docs.pytorch.org/docs/stable/generated/torch.load.html",
    bad=_DDP + "model.load_state_dict(torch.load('last.pt', weights_only=True))\n"
    "if is_main:\n    torch.save(model.state_dict(), 'last.pt')\n",
    good=_DDP + "model.load_state_dict(torch.load('last.pt', map_location='cpu', weights_only=True))\n"
    "if is_main:\n    torch.save(model.state_dict(), 'last.pt')\n",
)
def loaded_onto_one_gpu(file: ReviewedFile) -> Iterator[Problem]:
    """`torch.load` without a location, in a program of DistributedDataParallel that saves as well."""
    code = file.python
    if not any(code.calls_of("DistributedDataParallel")) or "torch.save(" not in code.text:
        return
    for call in code.calls_of("load"):
        placed = "map_location" in code.text or any(each.arg is None for each in call.node.keywords)
        if call.name == "torch.load" and len(call.node.args) == 1 and not placed and not code.is_on_one_rank(call.node):
            yield call.problem("every rank loads onto the GPU that saved")


@_program_rule(
    "TW638",
    "The call chooses no device",
    why="`torch.accelerator.device_index` is a context manager: a call on a line of its own changes nothing, and every "
    "rank stays on device 0.",
    fix="Call `torch.accelerator.set_device_index(index)`.",
    source="https://docs.pytorch.org/docs/stable/accelerator.html",
    bad="import torch\ntorch.accelerator.device_index(1)\n",
    good="import torch\ntorch.accelerator.set_device_index(1)\n",
)
def context_without_block(file: ReviewedFile) -> Iterator[Problem]:
    """`torch.accelerator.device_index(...)` or `torch.cuda.device(...)` as a statement."""
    code = file.python
    for call in code.calls_of("device_index", "device"):
        is_context = call.name in ("torch.accelerator.device_index", "torch.cuda.device")
        if is_context and isinstance(code.parents.get(call.node), ast.Expr):
            yield call.problem(f"`{call.name}` without `with` changes nothing")


@_program_rule(
    "TW640",
    "Gradients are never deleted",
    why="`backward()` adds to the gradients that are there. Without `zero_grad` each step goes along the sum of all "
    "gradients since the start.",
    fix="Call `optimizer.zero_grad()` once per step of the optimizer.",
    bad="import torch\noptimizer = torch.optim.SGD(model.parameters(), 0.1)\nfor x in loader:\n"
    "    model(x).backward()\n    optimizer.step()\n",
    good="import torch\noptimizer = torch.optim.SGD(model.parameters(), 0.1)\nfor x in loader:\n"
    "    model(x).backward()\n    optimizer.step()\n    optimizer.zero_grad()\n",
)
def kept_gradients(file: ReviewedFile) -> Iterator[Problem]:
    """A loop with `backward` and the step of an optimizer of torch, in a file that deletes no gradient in any way."""
    code = file.python
    deletes = re.search(r"zero_grad|\.grad\b|grads\b|set_to_none|\.zero_\(", code.text) or _OTHER_LOOPS.search(
        code.text
    )
    if deletes or "torch.optim" not in code.text:
        return
    for call in code.calls_of("step"):
        made = code.values_of(call.node.func.value) if isinstance(call.node.func, ast.Attribute) else []
        is_optimizer = any(re.match(r"(?:torch\.)?optim\.\w+\(", ast.unparse(value)) for value in made)
        loop = code.loop_around(call.node)
        if is_optimizer and loop and any(code.loop_around(other.node) is loop for other in code.calls_of("backward")):
            yield call.problem("the gradients of all steps add up: nothing calls `zero_grad`")


@_program_rule(
    "TW641",
    "The loss scale never changes",
    why="`scaler.update()` lowers the scale after a step with infinite gradients. Without it every later step is left "
    "out as well, and a second `step` raises an error.",
    fix="Call `scaler.update()` behind `scaler.step(optimizer)`.",
    source="https://docs.pytorch.org/docs/stable/amp.html#gradient-scaling",
    bad='import torch\nscaler = torch.amp.GradScaler("cuda")\nscaler.scale(loss).backward()\nscaler.step(optimizer)\n',
    good='import torch\nscaler = torch.amp.GradScaler("cuda")\nscaler.scale(loss).backward()\n'
    "scaler.step(optimizer)\nscaler.update()\n",
)
def constant_scale(file: ReviewedFile) -> Iterator[Problem]:
    """`scaler.step(...)` of a GradScaler of the file, without `update` of it."""
    code = file.python
    for call in code.calls_of("step") if any(code.calls_of("GradScaler")) else ():
        owner = call.name.rpartition(".")[0]
        if "scaler" in owner.lower() and call.node.args and f"{owner}.update(" not in code.text:
            yield call.problem(f"`{owner}.step` without `{owner}.update()`")
            return


@_program_rule(
    "TW642",
    "The graph of every step is kept",
    "warning",
    why="The sum of losses refers to the graph of each of them, so memory of the GPU grows with every step.",
    fix="Add `loss.item()`, or `loss.detach()`, which waits for no GPU.",
    source="https://docs.pytorch.org/docs/stable/notes/faq.html#my-model-reports-cuda-runtime-error-2-out-of-memory",
    bad="import torch\ntotal = 0\nfor x in loader:\n    loss = model(x)\n    loss.backward()\n    total += loss\n",
    good="import torch\ntotal = 0\nfor x in loader:\n    loss = model(x)\n    loss.backward()\n"
    "    total += loss.detach()\n",
)
def kept_graph(file: ReviewedFile) -> Iterator[Problem]:
    """`total += loss` of the tensor whose `backward` the same loop calls, where nothing calls `backward` of the sum."""
    code = file.python
    owners = {
        ast.unparse(_unmoved(call.node.func.value)): call
        for call in code.calls_of("backward")
        if isinstance(call.node.func, ast.Attribute)
    }
    for node in code.nodes_of(ast.AugAssign) if owners else ():
        added = _unmoved(node.value)
        value, target = ast.unparse(added), ast.unparse(node.target)
        call = owners.get(value)
        loop = code.loop_around(node)
        same = call is not None and loop is not None and code.loop_around(call.node) is loop
        if same and isinstance(node.op, ast.Add) and isinstance(added, ast.Name) and target not in owners:
            kept = all(
                re.search(r"item\(|float\(|detach|\.data", ast.unparse(each)) is None for each in code.values_of(added)
            )
            if kept and call is not None and call.node.lineno < node.lineno:
                yield Problem(node.lineno, node.col_offset + 1, f"`{target}` keeps the graph of each `{value}`")


def _unmoved(node: ast.expr) -> ast.expr:
    """A tensor without `.cpu()` and `.to(...)` behind it, which keep its graph, and without a scaler around it."""
    while isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        method, arguments = node.func, node.args
        if method.attr not in ("cpu", "to", "scale") or (method.attr == "scale" and not arguments):
            break
        node = arguments[0] if method.attr == "scale" else method.value
    return node


@_program_rule(
    "TW643",
    "PyTorch refuses the saved object",
    why="Since PyTorch 2.6 `torch.load` reads tensors and plain values alone. A model or data set that was saved as an "
    "object raises an UnpicklingError.",
    fix="Save `model.state_dict()`; give `weights_only=False` for a file of your own that holds another object.",
    source="https://docs.pytorch.org/docs/stable/generated/torch.load.html",
    bad="import torch\ntorch.save(dataset, path)\ndataset = torch.load(path)\n",
    good="import torch\ntorch.save(dataset, path)\ndataset = torch.load(path, weights_only=False)\n",
    holds_for=Releases("torch", since="2.6"),
)
def refused_object(file: ReviewedFile) -> Iterator[Problem]:
    """`torch.load` of a path to which the file saves a model or a data set itself."""
    code = file.python
    whole = re.compile(r"(?:\w+\.)*\w*(?:model|net|dataset)", re.IGNORECASE)
    saves = [c.node.args for c in code.calls_of("save") if c.name == "torch.save" and len(c.node.args) > 1]
    paths = {ast.unparse(args[1]) for args in saves if whole.fullmatch(ast.unparse(args[0]))}
    others = {ast.unparse(args[1]) for args in saves if not whole.fullmatch(ast.unparse(args[0]))}
    for call in code.calls_of("load") if paths else ():
        given = any(each.arg in (None, "weights_only", "pickle_module") for each in call.node.keywords)
        path = ast.unparse(call.node.args[0]) if call.node.args else ""
        if call.name == "torch.load" and path in paths - others and not given:
            yield call.problem(f"`{path}` holds an object, and not the values of one")
