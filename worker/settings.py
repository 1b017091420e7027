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
    advertise: str | None
    node: str
    cluster: str
    root: str
    key: Path | None
    credentials: Path | None
    session_timeout_ms: int
    artifacts: Path | None
    launch: str
    node_dir: Path | None

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
