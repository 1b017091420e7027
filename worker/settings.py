"""What a worker process is started with, from ``stretto worker``, which reads it, to the process itself."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import msgspec

from stretto.vocabulary.types import WorkerId


class WorkerSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of a worker: words as they were given, except that files and limits have their types."""

    worker: WorkerId
    module: str
    data_dir: Path
    zookeeper: str
    address: str
    """The address where the worker listens."""
    advertise: str | None
    """The address where others reach the worker, if that is not where it listens: HOST or HOST:PORT."""
    node: str
    cluster: str
    root: str
    key_file: Path | None
    credentials_file: Path | None
    """The file with the credentials for the metastore."""
    session_timeout_ms: int
    artifacts: Path | None
    """The folder where the node keeps module code, unpacked under its digest; None if there is none here."""
    launch: str
    """The id by which its supervisor knows this process; see WorkerRegistration."""
    node_dir: Path | None
    """The folder that the workers of its node share; None if this one is alone there."""

    def command(self) -> list[str]:
        """Return the command of a process with these settings, which finds this package where this process
        found it."""
        # ``python -m`` looks in the folder that it is started in, ``stretto`` does not.
        path = [] if sys.path[0] == str(Path.cwd()) else ["-P"]
        # Not msgspec's JSON: a file name is any bytes, of which those that are no UTF-8 are surrogates here.
        words = json.dumps(msgspec.to_builtins(self, enc_hook=str), separators=(",", ":"))
        return [sys.executable, *path, "-m", "stretto.worker", words]

    @classmethod
    def decode(cls, words: str) -> WorkerSettings:
        """Read the settings from the words of a command."""
        return msgspec.convert(json.loads(words), cls, dec_hook=lambda kind, value: kind(value))
