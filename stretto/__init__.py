"""stretto: task groups replicated through ZooKeeper, in Python."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from stretto.client import connect, connect_async
    from stretto.module import Depot, Module, PState
    from stretto.topology.functions import microbatch, query, step, stream

__version__ = "0.1.0"
__all__ = [
    "Depot",
    "Module",
    "PState",
    "__version__",
    "connect",
    "connect_async",
    "microbatch",
    "query",
    "step",
    "stream",
]


def __getattr__(name: str) -> Any:
    """Client and module API are imported when they are asked for: most commands need neither."""
    if name in ("connect", "connect_async"):
        import stretto.client  # noqa: PLC0415

        return getattr(stretto.client, name)
    if name in ("Depot", "Module", "PState"):
        import stretto.module  # noqa: PLC0415

        return getattr(stretto.module, name)
    if name in ("microbatch", "query", "step", "stream"):
        import stretto.topology.functions  # noqa: PLC0415

        return getattr(stretto.topology.functions, name)
    raise AttributeError(f"module 'stretto' has no attribute {name!r}")
