"""Answers of the guard to bad steps; apart from the run file, so that the command line imports them quickly."""

from __future__ import annotations

from typing import Literal

OnNonfinite = Literal["skip", "rollback", "stop"]
OnSpike = Literal["ignore", "skip", "rollback"]
