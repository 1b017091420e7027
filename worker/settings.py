"""What a worker process is started with, from ``stretto worker``, which reads it, to the process itself."""

from __future__ import annotations

import sys
from pathlib import Path

import msgspec

from stretto.types import WorkerId


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
        """Of the process that goes by these."""
        return [
            sys.executable,
            "-P",
            "-m",
            "stretto.worker",
            msgspec.json.encode(self, enc_hook=str).decode(),
        ]

    @classmethod
    def decode(cls, text: str) -> WorkerSettings:
        return msgspec.json.decode(text, type=cls, dec_hook=lambda kind, value: kind(value))
