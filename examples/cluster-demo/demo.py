"""Six throw-away Debian machines, the stack of `stack.yaml` on them, and a training over it: `make cluster-demo`."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from trainworks.config.stack import Stack, load_stack
from trainworks.deploy.hardware import hardware_of

HERE = Path(__file__).parent
HALL = Path(os.environ.get("HALL", "/run/hall"))


def software() -> list[str]:
    """Folders of this Python and of Trainworks, which every machine sees under the same path."""
    folders = [Path(sys.base_prefix), Path(sys.prefix), *(Path(entry).resolve() for entry in sys.path if entry)]
    kept: list[Path] = []
    for folder in folders:
        if folder.is_dir() and not any(folder.is_relative_to(each) for each in kept):
            kept.append(folder)
    return [str(folder) for folder in kept]


def boot(stack: Stack) -> None:
    """Start every machine of the stack, and wait until all answer over ssh."""
    environment = os.environ | {"ADMIN": stack.admin, "SHARED_SOFTWARE": " ".join(software())}
    for group in stack.nodes:
        accelerators = hardware_of(group).accelerators if "compute" in group.roles else None
        gpus = accelerators.partition(":")[2] if accelerators else "0"
        for name, address in group.addresses.items():
            (HALL / "disks" / name / "export").mkdir(parents=True)
            command = [HERE / "node.sh", name, f"{address}/{stack.network.prefixlen}", gpus]
            with (HALL / f"{name}.log").open("wb") as log:
                subprocess.Popen(
                    command, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
                )


def main() -> None:
    stack, source = load_stack(HERE / "stack.yaml")
    boot(stack)
    key = (HALL / "key.pub").read_text().strip()
    (HALL / "stack.yaml").write_text(source.text.replace(stack.admin_keys[0], key))
    if sys.argv[1:] == ["shell"]:
        subprocess.run(["sleep", "infinity"], check=False)


if __name__ == "__main__":
    main()
