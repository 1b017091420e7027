"""People who follow each other and post, one JSON object a line, the same ones for the same seed.

    python examples/timeline/events.py follows 1000
    python examples/timeline/events.py posts 1000

A few people are followed by very many, and most by a few.
"""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Iterator
from itertools import count, islice
from typing import Any

PEOPLE = 1_000


def follows(seed: int = 0, people: int = PEOPLE) -> Iterator[dict[str, Any]]:
    """Without end. One in twenty takes back what came before."""
    chance = random.Random(seed)  # noqa: S311 - the same data for everybody is what is wanted
    made: list[tuple[str, str]] = []
    while True:
        if made and chance.random() < 0.05:
            user, whom = made.pop(chance.randrange(len(made)))
            yield {"user": user, "whom": whom, "stop": True}
            continue
        user, whom = f"person-{chance.randrange(people)}", f"person-{int(people ** chance.random()) - 1}"
        if user != whom:
            made.append((user, whom))
            yield {"user": user, "whom": whom}


def posts(seed: int = 0, people: int = PEOPLE) -> Iterator[dict[str, Any]]:
    """Without end; each has a number of its own."""
    chance = random.Random(seed)  # noqa: S311
    for number in count(1):
        author = f"person-{int(people ** chance.random()) - 1}"
        yield {"user": author, "number": number, "text": f"{author} says something, for the {number}th time"}


if __name__ == "__main__":
    kind = sys.argv[1] if len(sys.argv) > 1 else "posts"
    events = follows() if kind == "follows" else posts()
    for event in islice(events, int(sys.argv[2]) if len(sys.argv) > 2 else 10):
        print(json.dumps(event))
