"""NVIDIA's library with the answers of `gpu_answers`, for processes that have this folder in PYTHONPATH."""

import sys
from importlib.machinery import PathFinder
from pathlib import Path

import gpu_answers

_elsewhere = [place for place in sys.path if place != str(Path(__file__).parent)]
_real = PathFinder.find_spec("pynvml", _elsewhere)
exec(compile(Path(_real.origin).read_text(encoding="utf-8"), _real.origin, "exec"))
globals().update(gpu_answers.answers(sys.modules[__name__]))
