"""A user's Python file: found, executed, checked, and blamed by line."""

from __future__ import annotations

import importlib.util
import inspect
import sys
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from trainworks.errors import UsageError

_NAME = "trainworks_user_module"
_user_code = {_NAME}
"""Names of the modules that are blamed for exceptions."""
_REQUIRED = ("build_model", "build_dataset")
_OPTIONAL = ("build_eval_dataset", "loss", "num_items_in_batch", "blocks", "build_optimizer")


class UserModule:
    """A user's module file."""

    def __init__(self, module: ModuleType) -> None:
        self._module = module
        self.build_model: Callable[[], nn.Module] = module.build_model
        self.build_dataset: Callable[[], Any] = module.build_dataset
        self.build_eval_dataset: Callable[[], Any] | None = getattr(module, "build_eval_dataset", None)
        self.loss: Callable[[nn.Module, Any], Any] | None = getattr(module, "loss", None)
        self.num_items_in_batch: Callable[[Any], Tensor | int] | None = getattr(module, "num_items_in_batch", None)
        self.build_optimizer: Callable[[Sequence[nn.Parameter]], Optimizer] | None = getattr(
            module, "build_optimizer", None
        )

    def blocks(self, model: nn.Module) -> list[nn.Module]:
        """Layers to gather, recompute and compile one by one: the file's `blocks`, else the longest list of modules
        with parameters; empty without such a list.
        """
        if (own := getattr(self._module, "blocks", None)) is not None:
            return list(own(model))
        lists = [list(each) for each in model.modules() if isinstance(each, nn.ModuleList | nn.Sequential)]
        whole = [each for each in lists if all(any(True for _ in block.parameters()) for block in each)]
        return max(whole, key=len, default=[])

    def place_of(self, name: str) -> str:
        """`file:line` of one of its functions."""
        return place_of(getattr(self._module, name), str(self._module.__file__))


def place_of(function: Callable[..., Any], file: str | None = None) -> str:
    """`file:line` of a function; a file is named for what has no code of its own."""
    code = getattr(inspect.unwrap(function), "__code__", None)
    return f"{file or (code.co_filename if code else function)}:{code.co_firstlineno if code else 1}"


def search_first(folder: Path | None) -> None:
    """Look in a folder for modules before the installed packages."""
    if folder is not None and str(folder) not in sys.path:
        sys.path.insert(0, str(folder))


def load_user_module(path: Path) -> UserModule:
    """Execute a file, which may import from its own folder.

    Raises:
        UsageError: the file does not exist, cannot be executed, or it lacks a function; with file and line.
    """
    spec = importlib.util.spec_from_file_location(_NAME, path)
    if spec is None or spec.loader is None or not path.is_file():
        raise UsageError(f"`{path}` is not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[_NAME] = module  # dataclasses look their module up
    sys.path.insert(0, str(path.parent))
    try:
        spec.loader.exec_module(module)
    except SyntaxError as error:
        raise UsageError(f"SyntaxError: {error.msg}", place=f"{error.filename}:{error.lineno}") from error
    except Exception as error:
        raise blamed(error, f"{path}:1") from error
    for name in (*_REQUIRED, *_OPTIONAL):
        if not callable(getattr(module, name, None)) and (name in _REQUIRED or hasattr(module, name)):
            raise UsageError(
                f"`{path.name}` has no function `{name}`",
                place=f"{path}:1",
                hint="it needs `build_model()` and `build_dataset()`; see docs/guides/your-own-model.md",
            )
    return UserModule(module)


def import_user_module(name: str) -> ModuleType:
    """Import a user's module by its name; exceptions in its code are then blamed on it.

    Raises:
        UsageError: the module cannot be found, or its code fails; with file and line.
    """
    _user_code.add(name)
    try:
        return importlib.import_module(name)
    except SyntaxError as error:
        raise UsageError(f"SyntaxError: {error.msg}", place=f"{error.filename}:{error.lineno}") from error
    except ModuleNotFoundError as error:
        if error.name is not None and f"{name}.".startswith(f"{error.name}."):
            hint = "modules are found in the folder that the run was started in, and among installed packages"
            raise UsageError(f"module `{error.name}` not found", hint=hint) from None
        raise blamed(error, name) from error
    except Exception as error:
        raise blamed(error, name) from error


def place_in_user_code(error: BaseException) -> str | None:
    """`file:line` of the innermost call that a user's file made; None if it made none."""
    place = None
    for frame, line in traceback.walk_tb(error.__traceback__):
        if frame.f_globals.get("__name__") in _user_code:
            place = f"{frame.f_code.co_filename}:{line}"
    return place


def blamed(error: BaseException, place: str) -> UsageError:
    """The error of a user's code, at its innermost line there; at `place` where that is not known."""
    found = place_in_user_code(error) or place
    text = (str(error).strip() or "no message").splitlines()[0]
    is_missing = isinstance(error, ModuleNotFoundError) and error.name is not None
    hint = f"install the package that has it: `{sys.executable} -m pip install ...`" if is_missing else None
    return UsageError(f"{type(error).__name__}: {text}", place=found, hint=hint)
