"""Finding out what an archive declares, by importing it in another process.

The archive is unpacked into a folder of its own and imported from there by :mod:`stretto.artifact.importing`,
with nothing of the person's folder in reach: what would be missing on the cluster is missing here. That
process may print, hang, exit or crash as it likes; its answer comes back in a file.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TypeAlias

import msgspec

from stretto.artifact.archive import unpack
from stretto.control import ModuleManifest
from stretto.errors import ModuleError

TIMEOUT_SECONDS = 30.0
"""How long importing a module may take."""
_LAST_WORDS_BYTES = 4_096


class Described(msgspec.Struct, frozen=True, tag=True):
    """Report of the importing process that it found a module."""

    manifest: ModuleManifest


class NotDescribed(msgspec.Struct, frozen=True, tag=True):
    """Report of the importing process that it found no module, and why."""

    why: str
    traceback: str = ""


Report: TypeAlias = Described | NotDescribed


def describe(
    archive: Path,
    module: str,
    name: str | None,
    *,
    label: str,
    shown_folder: str = "",
    timeout: float = TIMEOUT_SECONDS,
) -> ModuleManifest:
    """Return what class ``name`` of ``module`` declares. Raises ModuleError with a message for its author.

    ``label`` and ``shown_folder`` are how the author knows the code: what to call it, and where its files
    are.
    """
    with tempfile.TemporaryDirectory(prefix="stretto-", ignore_cleanup_errors=True) as folder:
        code = Path(folder).resolve() / "code"
        unpack(archive, code)
        match _import(code, module, name, label, timeout):
            case Described(manifest=manifest):
                return manifest
            case NotDescribed(why=why, traceback=traceback):
                here = f"{code}/"
                raise ModuleError(why.replace(here, shown_folder), traceback.replace(here, shown_folder))


def _import(code: Path, module: str, name: str | None, label: str, timeout: float) -> Report:
    answer = code.parent / "answer"
    words = code.parent / "stderr"
    command = [sys.executable, "-P", "-m", "stretto.artifact.importing"]
    with words.open("wb") as stderr:
        process = subprocess.Popen(
            [*command, str(code), module, name or "", label, str(answer)],
            cwd=code,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=stderr,
            start_new_session=True,
        )
        try:
            code_ = process.wait(timeout)
        except subprocess.TimeoutExpired:
            return NotDescribed(
                f"importing {label} took longer than {timeout:g} s and was stopped; "
                "leave what waits or computes to the module's functions"
            )
        finally:
            # Whatever it started goes with it.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    if not answer.exists():
        last_words = words.read_bytes()[-_LAST_WORDS_BYTES:].decode(errors="replace")
        how = f"signal {-code_}" if code_ < 0 else f"exit code {code_}"
        why = f"importing {label} ended its process ({how}); import it with python to see why"
        return NotDescribed(why, last_words)
    report: Report = msgspec.json.decode(answer.read_bytes(), type=Report)
    return report
