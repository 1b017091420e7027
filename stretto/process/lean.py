"""Import this before anything that logs, in a process of which there are many on a machine.

structlog loads rich, to show tracebacks in colour, wherever that is installed. A worker whose log is a file
never shows any, and does without these 3.5 MB. Whoever wants rich after this gets it.
"""

from __future__ import annotations

import importlib
import sys

if not sys.stderr.isatty() and "rich" not in sys.modules:
    sys.modules["rich"] = None  # type: ignore[assignment] # An import of it fails now.
    importlib.import_module("structlog")
    del sys.modules["rich"]
