"""Module code, piece by piece. Asked of supervisors."""

from __future__ import annotations

from stretto.control.call import Call


class HasArtifact(Call[bool], frozen=True, kw_only=True):
    """Whether a node has an artifact."""

    digest: str


class HeldOfArtifact(Call[int], frozen=True, kw_only=True):
    """How many bytes of an artifact are there, from its beginning: where an upload goes on."""

    digest: str


class PutArtifact(Call[bool], frozen=True, kw_only=True):
    """Upload a piece of an artifact, in the body; True once it is whole and its digest is right."""

    digest: str
    offset: int
    size: int
    """Size of the whole artifact."""


class GetArtifact(Call[int], frozen=True, kw_only=True):
    """Fetch a piece of an artifact, which comes in the body; returns the size of the whole."""

    digest: str
    offset: int
