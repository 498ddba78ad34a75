"""Wheels of our own and lock files that name them, so that no test needs an index."""

from __future__ import annotations

import base64
import hashlib
import zipfile
from collections.abc import Sequence
from pathlib import Path


def make_wheel(folder: Path, name: str, version: str, *, code: str = "", needs: Sequence[str] = ()) -> tuple[Path, str]:
    """A wheel with one module, `NAME.py`; returns its path and the SHA-256 of its content."""
    info = f"{name}-{version}.dist-info"
    files = {
        f"{name}.py": f'__version__ = "{version}"\n{code}',
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
        + "".join(f"Requires-Dist: {one}\n" for one in needs),
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    rows = [f"{path},sha256={_digest(text)},{len(text.encode())}" for path, text in files.items()]
    files[f"{info}/RECORD"] = "\n".join([*rows, f"{info}/RECORD,,"]) + "\n"
    folder.mkdir(exist_ok=True)
    wheel = folder / f"{name}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for path, text in files.items():
            archive.writestr(zipfile.ZipInfo(path), text)
    return wheel, hashlib.sha256(wheel.read_bytes()).hexdigest()


def _digest(text: str) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode()


def write_lock(folder: Path, *pins: tuple[str, str, str], hashed: bool = True, name: str = "requirements.lock") -> Path:
    """A lock file of wheels in `folder/wheels`: name, version and digest of each."""
    lines = ["--no-index", f"--find-links {folder / 'wheels'}"]
    for package, version, digest in pins:
        lines.append(f"{package}=={version}" + (f" \\\n    --hash=sha256:{digest}" if hashed else ""))
    lock = folder / name
    lock.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return lock
