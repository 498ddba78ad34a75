"""A file system of a few megabytes, to see what happens when it is full."""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


@contextmanager
def mounted(options: str) -> Iterator[Path]:
    """Mount a tmpfs with these options; skips the test, loudly, where that is not permitted.

    Not below pytest's own folder: a session that is killed leaves the mount, and the next one could not clean up.
    """
    folder = Path(tempfile.mkdtemp(prefix="trainworks-small-disk-"))
    try:
        command = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder)]
        if os.geteuid() != 0 or subprocess.run(command, capture_output=True, check=False).returncode != 0:
            pytest.skip("NOT TESTED: a full disk; needs root and permission to mount a tmpfs")
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], capture_output=True, check=False)
        folder.rmdir()
