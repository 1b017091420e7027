"""stretto: task groups replicated through ZooKeeper, in Python."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from stretto.client import connect, connect_async
    from stretto.module.functions import microbatch, query, step, stream
    from stretto.module.module import Depot, Module, PState
    from stretto.module.partition import GLOBAL, RANDOM, Partitioner, hash_by

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
    "GLOBAL": "stretto.module.partition",
    "RANDOM": "stretto.module.partition",
    "Depot": "stretto.module.module",
    "Module": "stretto.module.module",
    "PState": "stretto.module.module",
    "Partitioner": "stretto.module.partition",
    "connect": "stretto.client",
    "connect_async": "stretto.client",
    "hash_by": "stretto.module.partition",
    "microbatch": "stretto.module.functions",
    "query": "stretto.module.functions",
    "step": "stretto.module.functions",
    "stream": "stretto.module.functions",
}


def __getattr__(name: str) -> Any:
    """Client and module API are imported when they are asked for: most commands need neither."""
    home = _HOME.get(name)
    if home is None:
        raise AttributeError(f"module 'stretto' has no attribute {name!r}")
    return getattr(import_module(home), name)
