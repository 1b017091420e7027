"""Sentences for the word count, one JSON object a line, the same ones for the same seed.

    python examples/wordcount/sentences.py 1000

Users and words are as uneven as they are in life: a few are heard all the time, most of them hardly ever.
"""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Iterator
from itertools import accumulate, islice

_TEXT = """
the of and a to in is it that was for on as with his they at be this from or had by but not what all
were we when there can an your which their said if do will each about how up out them then she many
some so these would other into has more her two like him see time could no make than first been its
who now people my made over did down only way find use may water long little very after words called
just where most know fugue voice subject answer countersubject episode stretto entry exposition coda
pedal canon theme
"""
WORDS = _TEXT.split()
USERS = 1_000


def sentences(seed: int = 0) -> Iterator[dict[str, str]]:
    """Without end."""
    chance = random.Random(seed)  # noqa: S311 - the same data for everybody is what is wanted
    shares = list(accumulate(1 / rank for rank in range(1, len(WORDS) + 1)))
    while True:
        user = f"user-{int(USERS ** chance.random())}"
        words = chance.choices(WORDS, cum_weights=shares, k=chance.randint(3, 12))
        yield {"user": user, "text": " ".join(words)}


if __name__ == "__main__":
    for sentence in islice(sentences(), int(sys.argv[1]) if len(sys.argv) > 1 else 10):
        print(json.dumps(sentence))
