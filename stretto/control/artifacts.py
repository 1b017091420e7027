"""Module code, piece by piece. Asked of supervisors."""

from __future__ import annotations

from stretto.control.call import Call


class HasArtifact(Call[bool], frozen=True, kw_only=True):
    digest: str


class HeldOfArtifact(Call[int], frozen=True, kw_only=True):
    """How many bytes of it are there, from its beginning: where an upload goes on."""

    digest: str


class PutArtifact(Call[bool], frozen=True, kw_only=True):
    """A piece of an artifact, in the body of the message; True once it is whole and its digest is right."""

    digest: str
    offset: int
    size: int
    """Of the whole."""


class GetArtifact(Call[int], frozen=True, kw_only=True):
    """A piece comes in the body; returns the size of the whole."""

    digest: str
    offset: int
