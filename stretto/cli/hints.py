"""Lines that a command prints for a person to copy into a shell, quoted for it."""

from __future__ import annotations

import shlex
import shutil
import sys
from pathlib import Path

from stretto.cli.cluster import DEFAULT_BOOTSTRAP


def exports(bootstrap: str, key: Path | None) -> list[str]:
    """Return the lines after which ``stretto`` in another shell is this one and reaches this cluster.

    There are none where the command is on the ``PATH`` and the cluster is where commands look for it.
    """
    lines = []
    command = Path(sys.executable).with_name("stretto")
    on_path = shutil.which("stretto")
    if command.exists() and (on_path is None or not command.samefile(on_path)):
        lines.append(f'export PATH={shlex.quote(str(command.parent))}:"$PATH"')
    reach = f"export STRETTO_BOOTSTRAP={bootstrap}"
    if key is not None:
        lines.append(f"{reach} STRETTO_KEY={shlex.quote(str(key.absolute()))}")
    elif bootstrap != DEFAULT_BOOTSTRAP:
        lines.append(reach)
    return lines
