"""Jobs to be written in other languages, and what runs them."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

from trainworks.config.run_file import RunFile
from trainworks.jobs.formats.manifest import KubernetesJob
from trainworks.jobs.program import program_of
from trainworks.jobs.spec_of_run import spec_of

HOSTILE = st.one_of(
    st.sampled_from(
        [
            "yes", "NO", "on", "~", "null", "1e3", "0x1F", "1_000", "12:30:45", ".5", "-.inf", "=", "<<", "2001-01-01",
            "a: b", "a #b", "#", "-n", "--help", "- a", "[a", "{a", "*a", "&a", "!a", "|", ">", "%a", "@a", "`id`",
            "$(id)", "$((1+1))", "$$", "$$(HOME)", "$(HOME)", "$HOME", "${HOME}", "'", '"', "''", "\\", "\\n", "a\\",
            "a\nb", "\na", "a\n", "  a\n b", "a\n\n\n", "\t", " ", "é", "\u2028", "日本\u0085", "END_OF_PROGRAM",
            "a\nEND_OF_PROGRAM\nb", "EOF", "!x", "a\x07b",
        ]
    ),
    st.text(st.sampled_from(list("a$(){}'\"\\\n `!#:-&*é ")), max_size=14),
    st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0\r"), max_size=14),
)  # fmt: skip
"""What breaks a text that is not quoted for the language it is in."""


def run_file(**keys: Any) -> RunFile:
    """A command with an image."""
    kubernetes = {"image": "ghcr.io/ada/train:1"} | keys.pop("kubernetes", {})
    cluster = {"engine": "kubernetes", "kubernetes": kubernetes} | keys.pop("cluster", {})
    return RunFile.model_validate({"name": "demo", "run": "python train.py", "cluster": cluster, **keys})


def pods(*, command: tuple[str, ...] = (), **keys: Any) -> KubernetesJob:
    """The same as Kubernetes is told of it."""
    asked = run_file(**keys)
    spec = spec_of(asked, run_id=f"{asked.name}-1", working_folder="/")
    program, where = program_of(asked, command=command), asked.cluster
    return KubernetesJob(spec=spec, program=program, cluster=where.kubernetes, autoscale=where.autoscale)


def expanded(text: str, env: dict[str, str]) -> str:
    """What a kubelet makes of `command`, `args` and a variable's value (third_party/forked/golang/expansion)."""
    done, at = "", 0
    while at < len(text):
        if text[at] != "$" or at + 1 == len(text):
            done, at = done + text[at], at + 1
        elif text[at + 1] == "$":
            done, at = done + "$", at + 2
        elif text[at + 1] == "(" and ")" in text[at + 2 :]:
            name = text[at + 2 : text.index(")", at + 2)]
            done, at = done + env.get(name, f"$({name})"), at + 3 + len(name)
        else:
            done, at = done + text[at : at + 2], at + 2
    return done


def run(argv: list[str], folder: Path, **env: str) -> subprocess.CompletedProcess[str]:
    """Run it to its end in a folder, with nothing in its environment but a path."""
    return subprocess.run(
        argv,
        cwd=folder,
        env={"PATH": os.environ["PATH"]} | env,
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
    )


def run_container(container: dict[str, Any], folder: Path, node: int = 0) -> subprocess.CompletedProcess[str]:
    """As a kubelet runs it, on a machine without Kubernetes."""
    env = {"JOB_COMPLETION_INDEX": str(node), "RESTARTS": "0", "HOME": "/home/of-the-pod"}
    for item in container.get("env", []):
        env |= {item["name"]: expanded(item["value"], env)} if "value" in item else {}
    return run([expanded(word, env) for word in container["command"]], folder, **env)
