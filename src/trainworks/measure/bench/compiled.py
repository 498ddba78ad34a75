"""Kernels in C, compiled on the node that runs them, for its processor."""

from __future__ import annotations

import hashlib
import os
import shutil
from importlib.resources import files

from trainworks.errors import EnvironmentProblem
from trainworks.host import process
from trainworks.host.folders import cache_folder
from trainworks.host.probe import processor_name

_TIMEOUT_S = 120.0


def compiled(name: str, *, compilers: tuple[str, ...] = ("cc", "gcc", "clang"), flags: tuple[str, ...] = ()) -> str:
    """Path of a compiled kernel; compiled once per source, flags and processor.

    Raises:
        EnvironmentProblem: no compiler is installed, or it fails.
    """
    compiler = next((found for each in compilers if (found := shutil.which(each))), None)
    if compiler is None:
        raise EnvironmentProblem(f"no C compiler: none of {', '.join(compilers)} is installed")
    source = files("trainworks.measure.bench").joinpath("kernels", f"{name}.c").read_text(encoding="utf-8")
    options = ("-O3", "-march=native", *flags)
    key = hashlib.sha256("\0".join((source, compiler, processor_name(), *options)).encode()).hexdigest()[:16]
    program = cache_folder("bench") / f"{name}-{key}"
    if not program.exists():
        program.parent.mkdir(parents=True, exist_ok=True)
        made = program.with_name(f".{program.name}.{os.getpid()}")
        command = [compiler, *options, "-x", "c", "-", "-o", str(made)]
        done = process.run(command, stdin=source, timeout_s=_TIMEOUT_S)
        if done.exit_code:
            raise EnvironmentProblem(f"`{compiler}` cannot compile {name}.c: {done.stderr.strip().splitlines()[-1]}")
        made.replace(program)
    return str(program)
