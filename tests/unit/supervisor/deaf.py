"""A process that waits to be ended, and may not listen when it is asked to go."""

from __future__ import annotations

import sys

_PROGRAM = """
import signal, sys
if sys.argv[1] == "deaf":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("ready", flush=True)
while True:
    signal.pause()
"""


def command(*, deaf: bool) -> list[str]:
    """It says "ready" once it is deaf to SIGTERM, or is not to be."""
    return [sys.executable, "-I", "-c", _PROGRAM, "deaf" if deaf else "polite"]
