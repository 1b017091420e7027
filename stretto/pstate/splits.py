"""Keys that cut the rows of a database into parts of about the same size, found without reading the rows."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from stretto.pstate.btree import Tree, map_pages
from stretto.pstate.ordered import EVERYTHING

if TYPE_CHECKING:
    import lmdb


def splits(
    txn: lmdb.Transaction[bytes],
    name: str,
    parts: int,
    *,
    file: Path,
    page_bytes: int,
    start: bytes = EVERYTHING[0],
    end: bytes = EVERYTHING[1],
) -> list[bytes]:
    """Return keys that cut a database into parts of about the same size, as :meth:`Tree.splits` does.

    ``file`` is the ``data.mdb`` that the transaction is on.
    """
    return Tree(txn, name, map_pages(file, page_bytes)).splits(parts, start, end)
