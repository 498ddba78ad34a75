"""Lock files of three formats become requirements that leave nothing open."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainworks.errors import UsageError
from trainworks.jobs.lock_file import kind_of_lock, read_lock

LINUX = {
    "python_version": "3.12",
    "python_full_version": "3.12.4",
    "sys_platform": "linux",
    "platform_machine": "x86_64",
}
UV = """
version = 1
requires-python = ">=3.11"

[[package]]
name = "mine"
version = "0.1.0"
source = { virtual = "." }
dependencies = [
    { name = "torch", extra = ["opt"] },
    { name = "pywin32", marker = "sys_platform == 'win32'" },
]

[package.dev-dependencies]
dev = [{ name = "pytest" }]

[[package]]
name = "torch"
version = "2.13.0"
source = { registry = "https://download.pytorch.org/whl/cu130" }
dependencies = [{ name = "numpy", version = "2.3.1", marker = "python_full_version >= '3.12'" }]
wheels = [{ url = "https://x/t.whl", hash = "sha256:aa" }, { url = "https://x/t2.whl", hash = "sha256:ab" }]

[package.optional-dependencies]
opt = [{ name = "einops" }]

[[package]]
name = "numpy"
version = "1.26.4"
source = { registry = "https://pypi.org/simple" }
wheels = [{ url = "https://x/n1.whl", hash = "sha256:bb" }]

[[package]]
name = "numpy"
version = "2.3.1"
source = { registry = "https://pypi.org/simple" }
wheels = [{ url = "https://x/n2.whl", hash = "sha256:cc" }]

[[package]]
name = "einops"
version = "0.8.0"
source = { registry = "https://pypi.org/simple" }
sdist = { url = "https://x/e.tar.gz", hash = "sha256:dd" }

[[package]]
name = "pytest"
version = "8"
source = { registry = "https://pypi.org/simple" }

[[package]]
name = "pywin32"
version = "1"
source = { registry = "https://pypi.org/simple" }
"""
PYLOCK = """
lock-version = "1.0"
created-by = "uv"

[[packages]]
name = "numpy"
version = "2.3.1"
index = "https://pypi.org/simple"
wheels = [{ url = "https://x/n.whl", hashes = { sha256 = "cc" } }]

[[packages]]
name = "pywin32"
version = "1"
marker = "sys_platform == 'win32'"
wheels = [{ url = "https://x/w.whl", hashes = { sha256 = "ee" } }]
"""


def lines(kind: str, text: str) -> list[str]:
    """The requirements of a lock file on Linux."""
    return [pin.line for pin in read_lock(kind, text, LINUX).pins]  # type: ignore[arg-type]


def test_a_uv_lock_gives_what_its_project_needs_on_this_machine() -> None:
    found = read_lock("uv", UV, LINUX)
    assert [pin.line for pin in found.pins] == [
        "einops==0.8.0 --hash=sha256:dd",
        "numpy==2.3.1 --hash=sha256:cc",
        "torch==2.13.0 --hash=sha256:aa --hash=sha256:ab",
    ]
    assert found.options == ("--extra-index-url https://download.pytorch.org/whl/cu130",)


def test_a_pylock_gives_the_packages_whose_markers_hold() -> None:
    assert lines("pylock", PYLOCK) == ["numpy==2.3.1 --hash=sha256:cc"]


def test_a_requirements_file_keeps_its_hashes_and_indexes() -> None:
    text = "-i https://a/simple\nNumPy==2.3.1 \\\n  --hash=sha256:cc \\\n  --hash=sha256:bb  # via x\n"
    found = read_lock("requirements", text, LINUX)
    assert (found.text, found.is_hashed) == (
        "-i https://a/simple\nnumpy==2.3.1 --hash=sha256:bb --hash=sha256:cc\n",
        True,
    )


def test_a_marker_that_does_not_hold_leaves_a_line_out() -> None:
    assert lines("requirements", "a==1 ; sys_platform == 'win32'\nb==2\n") == ["b==2"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("numpy>=2\n", "`numpy>=2` leaves its version open"),
        ("numpy\n", "`numpy` leaves its version open"),
        ("numpy==2.*\n", "`numpy==2.*` leaves its version open"),
        ("mine @ git+https://x/mine@main\n", "leaves its version open"),
        ("mine @ https://x/mine.whl\n", "leaves its version open"),
        ("-r other.txt\n", "`-r other.txt`, whose content is not in the file"),
        ("-e .\n", "`-e .`, whose content is not in the file"),
        ("./wheels/a.whl\n", "which is not a requirement with a version"),
        ("a==1 --hash=sha256:aa\nb==2\n", "`b==2` has no hash, and `a` has one"),
    ],
)
def test_a_file_that_leaves_something_open_is_refused(text: str, message: str) -> None:
    with pytest.raises(UsageError) as caught:
        read_lock("requirements", text, LINUX)
    assert message in caught.value.message


@pytest.mark.parametrize(
    "text",
    [
        f"mine @ git+https://x/mine@{'a' * 40}",
        "mine @ https://x/mine.whl#sha256=aa",
        "mine @ https://x/mine.whl --hash=sha256:aa",
    ],
)
def test_an_address_with_a_commit_or_a_hash_is_a_version(text: str) -> None:
    assert lines("requirements", text)[0].startswith("mine @ ")


@pytest.mark.parametrize(
    ("name", "text", "kind"),
    [
        ("requirements.txt", "a==1\n", "requirements"),
        ("requirements.lock", "a==1\n", "requirements"),
        ("uv.lock", UV, "uv"),
        ("pylock.toml", PYLOCK, "pylock"),
        ("pylock.gpu.toml", PYLOCK, "pylock"),
    ],
)
def test_the_content_decides_the_format(name: str, text: str, kind: str) -> None:
    assert kind_of_lock(name, text) == kind


@given(
    st.lists(
        st.tuples(st.from_regex(r"[a-z][a-z0-9]{0,8}", fullmatch=True), st.integers(0, 99)), min_size=1, max_size=8
    )
)
def test_what_a_lock_file_becomes_is_read_as_itself(pins: list[tuple[str, int]]) -> None:
    first = read_lock("requirements", "".join(f"{name}=={version}\n" for name, version in pins), LINUX)
    assert read_lock("requirements", first.text, LINUX) == first
