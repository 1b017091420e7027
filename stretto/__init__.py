"""stretto: task groups replicated through ZooKeeper, in Python."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from stretto.client import connect, connect_async
    from stretto.module import Depot, Module, PState
    from stretto.partition import GLOBAL, RANDOM, Partitioner, hash_by
    from stretto.topology.functions import microbatch, query, step, stream

__version__ = "0.1.0"
__all__ = [
    "GLOBAL",
    "RANDOM",
    "Depot",
    "Module",
    "PState",
    "Partitioner",
    "__version__",
    "connect",
    "connect_async",
    "hash_by",
    "microbatch",
    "query",
    "step",
    "stream",
]


_HOME = {
    "GLOBAL": "stretto.partition",
    "RANDOM": "stretto.partition",
    "Depot": "stretto.module",
    "Module": "stretto.module",
    "PState": "stretto.module",
    "Partitioner": "stretto.partition",
    "connect": "stretto.client",
    "connect_async": "stretto.client",
    "hash_by": "stretto.partition",
    "microbatch": "stretto.topology.functions",
    "query": "stretto.topology.functions",
    "step": "stretto.topology.functions",
    "stream": "stretto.topology.functions",
}


def __getattr__(name: str) -> Any:
    """Client and module API are imported when they are asked for: most commands need neither."""
    home = _HOME.get(name)
    if home is None:
        raise AttributeError(f"module 'stretto' has no attribute {name!r}")
    return getattr(import_module(home), name)
