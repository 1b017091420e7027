"""What a worker process is started with, from ``stretto worker``, which reads it, to the process itself."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import msgspec

from stretto.vocabulary.types import WorkerId


class WorkerSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Words as they were given, except that files and limits have their types."""

    worker: WorkerId
    module: str
    data_dir: Path
    zookeeper: str
    address: str
    """Where it listens."""
    advertise: str | None
    """Where others reach it, if that is not where it listens: HOST or HOST:PORT."""
    node: str
    cluster: str
    root: str
    key_file: Path | None
    credentials_file: Path | None
    """Of the metastore."""
    session_timeout_ms: int
    artifacts: Path | None
    """Where the node keeps module code, unpacked under its digest. None: there is none here."""
    launch: str
    """What its supervisor knows this process by; see WorkerRegistration."""
    node_dir: Path | None
    """What the workers of its node share; None: it is alone there."""

    def command(self) -> list[str]:
        """Of the process that goes by these, and finds this package where this process found it."""
        # ``python -m`` looks in the folder that it is started in, ``stretto`` does not.
        path = [] if sys.path[0] == str(Path.cwd()) else ["-P"]
        # Not msgspec's JSON: a file name is any bytes, of which those that are no UTF-8 are surrogates here.
        words = json.dumps(msgspec.to_builtins(self, enc_hook=str), separators=(",", ":"))
        return [sys.executable, *path, "-m", "stretto.worker", words]

    @classmethod
    def decode(cls, words: str) -> WorkerSettings:
        return msgspec.convert(json.loads(words), cls, dec_hook=lambda kind, value: kind(value))
