"""Images of a stack: recipes are locked by digest and hash, and those that are not are refused."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from trainworks.api.deploying import render_stack
from trainworks.errors import RunFileError

EXAMPLE = Path("examples/cluster/stack.yaml")
HASH = "--hash=sha256:" + "ab" * 32
LOCK = f"""# uv pip compile --generate-hashes
numpy==2.3.5 \\
    {HASH} \\
    {HASH.replace("ab", "cd")}
torch==2.13.0+cpu {HASH}
"""
BASE = "docker.io/library/python:3.12-slim@sha256:" + "12" * 32


def rendered(tmp_path: Path, words: str = "", *, lock: str = LOCK, base: str = BASE) -> Mapping[str, str]:
    """The project of the example with an image of these words."""
    recipe = f"images: [{{name: train, base: '{base}', lock: train.lock{words}}}]\n"
    (tmp_path / "stack.yaml").write_text(EXAMPLE.read_text() + recipe)
    (tmp_path / "train.lock").write_text(lock)
    return render_stack(tmp_path / "stack.yaml")


@pytest.mark.parametrize(
    ("words", "index"),
    [("", "whl/cpu "), (", cuda: '13.0'", "whl/cu130 "), (", rocm: '6.4'", "whl/rocm6.4 ")],
    ids=["cpu", "cuda", "rocm"],
)
def test_an_accelerator_has_its_index_of_wheels(tmp_path: Path, words: str, index: str) -> None:
    text = rendered(tmp_path, words)["images/train/Containerfile"]
    assert index in text
    assert ("NVIDIA_DRIVER_CAPABILITIES" in text, "/dev/kfd" in text) == ("cuda" in words, "rocm" in words)


def test_each_line_of_a_recipe_has_its_reason(tmp_path: Path, golden) -> None:
    files = rendered(tmp_path, ", cuda: '13.0'")
    names = [f"images/train/{name}" for name in ("Containerfile", ".containerignore", "build.sh")]
    golden("deploy_image.txt", "\n".join(f"# --- {name}\n{files[name]}" for name in names))
    assert files["images/train/requirements.lock"] == LOCK


@pytest.mark.parametrize(
    ("change", "place", "message"),
    [
        ({"lock": "torch==2.13.0\n"}, "images.0.lock", "has no version or no hash"),
        ({"lock": f"torch>=2 {HASH}\n"}, "images.0.lock", "has no version or no hash"),
        ({"lock": f"numpy==2.3.5 {HASH}\n"}, "images.0.lock", "has no torch"),
        ({"base": "python:3.12"}, "images.0.base", "text that matches"),
        ({"words": ", cuda: '13.0', rocm: '6.4'"}, "images.0", "for CUDA or for ROCm"),
        ({"words": ", lock: other.lock"}, "", "duplicate key `lock`"),
    ],
    ids=["no hash", "no version", "no torch", "no digest", "two", "twice"],
)
def test_an_image_that_is_not_locked_is_refused(tmp_path: Path, change: dict, place: str, message: str) -> None:
    with pytest.raises(RunFileError) as raised:
        rendered(tmp_path, **change)
    found = [(each.place or "", each.message) for each in raised.value.problems]
    assert any(message in text and place in where for where, text in found), raised.value.render()


def test_a_missing_lock_file_has_its_place(tmp_path: Path) -> None:
    rendered(tmp_path)
    (tmp_path / "train.lock").unlink()
    with pytest.raises(RunFileError, match=r"lock file .*train.lock. not found") as raised:
        render_stack(tmp_path / "stack.yaml")
    assert "images.0.lock" in (raised.value.problems[0].place or "")


def test_the_machine_image_takes_the_roles_of_the_project(golden) -> None:
    golden("deploy_packer.hcl", render_stack("examples/cluster/stack-roce.yaml")["images/machine/node.pkr.hcl"])
