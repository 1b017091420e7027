"""Page views, one JSON object a line, the same ones for the same seed.

    python examples/pageviews/views.py 1000

A few pages are seen all the time, what is popular changes from hour to hour, and some views arrive late.
"""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from itertools import islice
from typing import Any

PAGES = 2_000
USERS = 5_000
START = datetime(2026, 1, 31, 8, tzinfo=UTC)


def views(seed: int = 0, per_hour: int = 2_000) -> Iterator[dict[str, Any]]:
    """Without end."""
    chance = random.Random(seed)  # noqa: S311 - the same data for everybody is what is wanted
    number = 0
    while True:
        at = START + timedelta(hours=number / per_hour)
        if chance.random() < 0.02:
            at -= timedelta(minutes=chance.random() * 90)
        fashion = (at.hour * 37) % PAGES
        page = (int(PAGES ** chance.random()) - 1 + fashion) % PAGES
        user = int(USERS ** chance.random())
        yield {"type": "view", "page": f"/page/{page}", "user": f"user-{user}", "at": at.isoformat()}
        number += 1


if __name__ == "__main__":
    for view in islice(views(), int(sys.argv[1]) if len(sys.argv) > 1 else 10):
        print(json.dumps(view))
