"""Messages for tests in which their kind alone matters."""

from __future__ import annotations

from typing import Any


def some(kind: Any, **fields: Any) -> Any:
    """Return a message of a kind; fields that are not given are 0."""
    return kind(**{**dict.fromkeys(kind.__struct_fields__, 0), **fields})
