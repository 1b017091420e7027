"""stretto: task groups replicated through ZooKeeper, in Python."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from stretto.client import connect, connect_async

__version__ = "0.1.0"
__all__ = ["__version__", "connect", "connect_async"]


def __getattr__(name: str) -> Any:
    """The client is imported when it is asked for: most commands never need it."""
    if name in ("connect", "connect_async"):
        import stretto.client  # noqa: PLC0415

        return getattr(stretto.client, name)
    raise AttributeError(f"module 'stretto' has no attribute {name!r}")
