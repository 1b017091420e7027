"""Threads on which handlers wait for the cluster.

What may take long has threads of its own, so that whatever hangs there (appends to a group that is stalled, a
query, a snapshot) leaves the pages, the health and the scrapes alone.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from concurrent.futures import Executor, ThreadPoolExecutor
from functools import partial, wraps
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

SLOW = ThreadPoolExecutor(64, "slow")
"""Threads for data, failures, snapshots, logs, and whatever changes something."""
LOOKS = ThreadPoolExecutor(32, "looks")
"""Threads for what pages ask again and again."""
HEALTH = ThreadPoolExecutor(8, "health")
SCRAPES = ThreadPoolExecutor(2, "scrapes")
"""Threads for what is answered from memory."""


def on(pool: Executor, handler: Callable[P, T]) -> Callable[P, Coroutine[Any, Any, T]]:
    """Make a handler that runs on the threads of a pool."""

    @wraps(handler)
    async def run(*args: P.args, **kwargs: P.kwargs) -> T:
        return await asyncio.get_running_loop().run_in_executor(pool, partial(handler, *args, **kwargs))

    return run
