"""How a sentence about an unknown name ends: with the name that was probably meant."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches

_LISTED_MAX = 8


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Ask ``did you mean wordcount?``, or list the known names, if none is near."""
    names = sorted(known)
    if not names:
        return "there are none"
    close = get_close_matches(name, names, n=1)
    if close:
        return f"did you mean {close[0]}?"
    listed = ", ".join(names[:_LISTED_MAX]) + (", ..." if len(names) > _LISTED_MAX else "")
    return f"there is {listed}" if len(names) == 1 else f"there are {listed}"
