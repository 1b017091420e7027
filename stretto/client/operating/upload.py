"""Bringing module code to a cluster: an artifact goes to as many nodes as its replicas will need.

Pieces are put one after the other; a node tells how much it has, so that an interrupted upload goes on where
it stopped. A node checks the digest of the whole, so nothing else has to be right.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import TypeAlias

from stretto import control
from stretto.artifact.archive import PIECE_BYTES, Artifact
from stretto.errors import StrettoError
from stretto.network.asking import ask
from stretto.network.routing import Network

PIECE_SECONDS = 60.0
"""How long a node may take to answer to a piece: it hashes the whole before it answers to the last."""

Progress: TypeAlias = Callable[[str, int, int], None]
"""Called with a node's address, the bytes that it has, and the size of the whole."""


def upload(
    network: Network,
    addresses: Sequence[str],
    artifact: Artifact,
    *,
    copies: int,
    progress: Progress = lambda _address, _held, _size: None,
) -> list[str]:
    """Put ``artifact`` on at least ``copies`` of these supervisors; returns those that keep it.

    Nodes that have it count, and are tried first; one that fails is passed over. Raises StrettoError with
    every reason if too few are left.
    """
    keeping: list[str] = []
    lacking: list[str] = []
    reasons: list[str] = []
    for address in addresses:
        try:
            has = ask(network, address, control.HasArtifact(digest=artifact.digest))
            (keeping if has else lacking).append(address)
        except StrettoError as error:
            reasons.append(f"{address}: {error}")
    for address in lacking:
        if len(keeping) >= copies:
            break
        try:
            _send_resumed(network, address, artifact, progress)
            keeping.append(address)
        except StrettoError as error:
            reasons.append(f"{address}: {error}")
    if len(keeping) < copies:
        why = f" ({'; '.join(reasons)})" if reasons else ""
        raise StrettoError(
            f"the module's code is on {len(keeping)} of the {copies} nodes that it needs{why}; "
            "start more nodes, or mend those, then try again"
        )
    return keeping


def _send_resumed(network: Network, address: str, artifact: Artifact, progress: Progress) -> None:
    held = ask(network, address, control.HeldOfArtifact(digest=artifact.digest))
    try:
        _send(network, address, artifact, held if held < artifact.size else 0, progress)
    except StrettoError:
        if not held:
            raise
        # What the node had may be what is wrong: once more, with all of it.
        _send(network, address, artifact, 0, progress)


def _send(network: Network, address: str, artifact: Artifact, offset: int, progress: Progress) -> None:
    size = artifact.size
    with artifact.path.open("rb", buffering=0) as file:
        is_whole = False
        while not is_whole:
            piece = os.pread(file.fileno(), PIECE_BYTES, offset)
            if not piece:
                raise StrettoError(f"{artifact.path} ends before its {size:,} bytes; pack it again")
            call = control.PutArtifact(digest=artifact.digest, offset=offset, size=size)
            is_whole = ask(network, address, call, (piece,), timeout=PIECE_SECONDS)
            offset += len(piece)
            progress(address, size if is_whole else offset, size)
