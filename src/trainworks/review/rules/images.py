"""TW708 to TW710, TW712 to TW715: images that do not start or are not the same twice, and secrets in files."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import partial

from trainworks.review.files import ReviewedFile
from trainworks.review.finding import Edit, Problem
from trainworks.review.rule import rule

_image_rule = partial(rule, file="Dockerfile", source="https://docs.docker.com/build/building/best-practices/")
_UBUNTU = re.compile(r"^FROM\s+(?:--\S+\s+)?(?:\S+/)?(?:ubuntu|debian|cuda):\S+", re.IGNORECASE | re.MULTILINE)
_OTHER_PYTHON = re.compile(
    r"python-is-python3|ln -\w*s\w*f?\w* |update-alternatives|conda|mamba|venv|pyenv|\buv\b|/opt/|make install|poetry"
    r"|COPY --from|rocky|centos|redhat|ubi\d"
)
_TOKEN = re.compile(
    r"\b(?:hf_[A-Za-z0-9]{34}|gh[pos]_[A-Za-z0-9]{36}|glpat-[\w-]{20}|AKIA[0-9A-Z]{16}|sk-proj-[\w-]{40,}"
    r"|xox[bp]-[\w-]{24,})(?![\w-])|\bWANDB_API_KEY=[\"']?([0-9a-f]{40})\b"
)
_LEAST_LETTERS = 12
"""Different characters of a token; one that stands for another has few, such as `hf_xxxx`."""
_EXAMPLE = "hf" + "_" + "aB3dE5fG7hJ9kL1mN2pQ4rS6tU8vW0xYzA"


@_image_rule(
    "TW708",
    "The image has no python",
    why="Debian and Ubuntu install the interpreter as `python3`, and `python` only with `python-is-python3`: the "
    "container ends at once with `executable file not found`.",
    fix='Write `["python3", ...]`.',
    bad='FROM ubuntu:24.04\nRUN apt-get update && apt-get install -y python3\nCMD ["python", "train.py"]\n',
    good='FROM ubuntu:24.04\nRUN apt-get update && apt-get install -y python3\nCMD ["python3", "train.py"]\n',
)
def missing_python(file: ReviewedFile) -> Iterator[Problem]:
    """`CMD` or `ENTRYPOINT` with `python` in an image of Debian or Ubuntu that installs `python3` from it."""
    if file.kind != "dockerfile" or len(re.findall(r"^FROM\s", file.text, re.I | re.M)) != 1:
        return
    if not _UBUNTU.search(file.text) or "python3" not in file.text or _OTHER_PYTHON.search(file.text):
        return
    for number, line in enumerate(file.lines, start=1):
        if re.match(r'(?:CMD|ENTRYPOINT)\s+(?:\[\s*"python"|python\s)', line):
            yield Problem(number, 1, "`python` is not installed, and `python3` is")


@_image_rule(
    "TW709",
    "Another PyTorch at each build",
    "warning",
    why="A nightly build is another program every day, and its index keeps each for some weeks: the image of a later "
    "build differs, and the present one cannot be built again.",
    fix="Pin a release, or the date of the nightly build: `torch==2.9.0.dev20250801`.",
    source="https://github.com/pytorch/pytorch/blob/main/RELEASE.md",
    bad="FROM python:3.12\nRUN pip install --pre torch --index-url https://download.pytorch.org/whl/nightly/cu128\n",
    good="FROM python:3.12\nRUN pip install torch==2.9.1 --index-url https://download.pytorch.org/whl/cu128\n",
)
def moving_build(file: ReviewedFile) -> Iterator[Problem]:
    """Pip in an image that takes torch without a version from the index of nightly builds."""
    for command in file.commands if file.kind == "dockerfile" else ():
        texts = command.texts
        index = any("download.pytorch.org/whl/nightly" in text for text in texts)
        for word in command.words if index else ():
            if word.text == "torch":
                yield word.problem("the newest nightly build, whichever that is")


@rule(
    "TW710",
    "A secret in a file",
    why="Who reads the repository has the token, also in its history: a commit that removes the line leaves it there.",
    fix="Revoke the token, and read a new one from the environment, a file outside the repository or a secret store.",
    source="https://docs.github.com/en/code-security/secret-scanning/introduction/about-secret-scanning",
    bad=f"export HF_TOKEN={_EXAMPLE}\n",
    good='export HF_TOKEN=$(cat "$HOME/.cache/huggingface/token")\n',
    reads_any_code=True,
)
def committed_secret(file: ReviewedFile) -> Iterator[Problem]:
    """A token of a known form; one with few different characters, or with a word for an example, stands for another."""
    for number, line in enumerate(file.lines, start=1):
        for found in _TOKEN.finditer(line):
            token = found[1] or found[0]
            if len(set(token)) >= _LEAST_LETTERS and not re.search("example|abcdef|123456", token, re.IGNORECASE):
                yield Problem(number, found.start() + 1, f"a token that begins with `{token[:4]}`")


@_image_rule(
    "TW712",
    "The version goes into a file",
    "warning",
    why="Without quotes the shell reads `>` as a redirection: pip installs any version, and its output is written to a "
    "file with the name of the version, such as `=1.0`.",
    fix='Put the requirement in quotes: `"package>=1.0"`.',
    source="https://pip.pypa.io/en/stable/reference/requirement-specifiers/",
    bad="FROM python:3.12\nRUN pip install datasets>=2.0\n",
    good='FROM python:3.12\nRUN pip install "datasets>=2.0"\n',
)
def redirected_version(file: ReviewedFile) -> Iterator[Problem]:
    """A requirement with `>` or `<` outside of quotes, of `pip install` in shell code."""
    for command in file.commands if file.kind in ("shell", "dockerfile", "yaml") else ():
        texts = command.texts
        at = texts.index("install") if "install" in texts and any(re.fullmatch(r"pip3?|uv", t) for t in texts) else 0
        for word in command.words[at + 1 :] if at else ():
            if re.match(r"[A-Za-z][\w.-]*(?:\[[\w,-]+\])?[<>]=?\d", word.raw):
                yield word.problem(f"the shell reads `{word.raw}` as a redirection")


@_image_rule(
    "TW713",
    "The next instruction has another shell",
    "warning",
    why="Each `RUN` starts a shell of its own. A variable, a folder or an environment that one sets is gone in the "
    "next.",
    fix="Use `ENV` or `WORKDIR`, or join the commands with `&&`.",
    source="https://docs.docker.com/reference/dockerfile/#run",
    bad="FROM python:3.12\nRUN export CUDA_HOME=/usr/local/cuda\nRUN pip install flash-attn==2.8.3\n",
    good="FROM python:3.12\nENV CUDA_HOME=/usr/local/cuda\nRUN pip install flash-attn==2.8.3\n",
)
def lost_setting(file: ReviewedFile) -> Iterator[Problem]:
    """A `RUN` that does nothing but `export`, `cd`, `source` or `conda activate`."""
    for script in file.scripts if file.kind == "dockerfile" else ():
        code = script.text.strip()
        if re.fullmatch(r"(?:export \w+=\S+|cd \S+|(?:source|\.) \S+|(?:conda|source) activate \S+)", code):
            yield Problem(script.first_line, 1, f"`{code}` ends with its instruction")


@_image_rule(
    "TW714",
    "The package is not installed",
    why="With `-s` apt-get prints what it would do, and installs nothing.",
    fix="Remove `-s`.",
    source="https://manpages.debian.org/stable/apt/apt-get.8.en.html",
    bad="FROM ubuntu:24.04\nRUN apt-get update && apt-get install -s -y libibverbs-dev\n",
    good="FROM ubuntu:24.04\nRUN apt-get update && apt-get install -y libibverbs-dev\n",
)
def simulated_install(file: ReviewedFile) -> Iterator[Problem]:
    """`apt-get install -s` in an image."""
    for command in file.commands if file.kind == "dockerfile" else ():
        if command.words[0].text in ("apt-get", "apt") and "install" in command.texts:
            for word in command.words:
                if word.text in ("-s", "--simulate", "--dry-run"):
                    yield word.problem(f"`{word.text}` installs nothing")


_OF_NGC = re.compile(
    r"(?:FROM\s+(?:--\S+\s+)?|image:\s*[\"']?)(?:docker\.io/)?(nvidia/(?:pytorch|tensorflow|nemo|tritonserver)):", re.I
)


@_image_rule(
    "TW715",
    "The image is in another registry",
    why="NVIDIA publishes its images with frameworks on nvcr.io. Without a registry the name means Docker Hub, which "
    "has no such image: the pull is denied.",
    fix="Write the registry: `nvcr.io/nvidia/pytorch:25.10-py3`.",
    source="https://catalog.ngc.nvidia.com/orgs/nvidia/containers/pytorch",
    bad="FROM nvidia/pytorch:25.10-py3\n",
    good="FROM nvcr.io/nvidia/pytorch:25.10-py3\n",
)
def image_without_registry(file: ReviewedFile) -> Iterator[Problem]:
    """Such an image in a Dockerfile or a manifest."""
    for number, line in enumerate(file.lines if file.kind in ("dockerfile", "yaml") else (), start=1):
        found = None if line.lstrip().startswith("#") else _OF_NGC.search(line)
        if found:
            edits = (Edit(number, found.start(1) + 1, 0, "nvcr.io/"),)
            yield Problem(number, found.start(1) + 1, f"Docker Hub has no `{found[1]}`", edits)
