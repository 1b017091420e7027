"""What tells a snapshot that is being made: a file in its folder, and markers in the logs of its groups.

Whoever makes a snapshot puts the file :data:`CREATING` into its folder first and deletes it last. It holds a
random token and then :func:`note_suffix`: workers write only where they find what they were told, and the
folder of one whose maker died is known for what it was to be.
"""

from __future__ import annotations

CREATING = "creating"
"""Name of the file that marks a snapshot as unfinished: a token of its maker, and which snapshot it is."""
MARKER_PREFIX = b"snapshot/"
"""How the name of a marker begins that a snapshot set; the rest of it is a token."""


def note_suffix(module: str, name: str) -> str:
    """Return how the note in the folder of an unfinished snapshot ends."""
    return f" {module}/{name}"
