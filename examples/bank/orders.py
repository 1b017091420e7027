"""Orders for the bank, one JSON object a line, the same ones for the same seed.

    python examples/bank/orders.py 1000

Every account is opened with a deposit. Then money moves: a few accounts move most of it, most transfers are
small, and some are more than the account holds.
"""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Iterator
from itertools import islice
from typing import Any

ACCOUNTS = 500
OPENING = 100_00


def orders(seed: int = 0, accounts: int = ACCOUNTS) -> Iterator[dict[str, Any]]:
    """Without end."""
    chance = random.Random(seed)  # noqa: S311 - the same data for everybody is what is wanted
    for number in range(accounts):
        yield {"type": "deposit", "account": f"account-{number}", "amount": OPENING}
    while True:
        source, target = (f"account-{int(accounts ** chance.random()) - 1}" for _ in range(2))
        amount = int(1 + 10 ** (chance.random() * 4.3))
        if chance.random() < 0.05:
            yield {"type": "deposit", "account": target, "amount": amount}
        else:
            yield {"type": "transfer", "account": source, "to": target, "amount": amount}


if __name__ == "__main__":
    for order in islice(orders(), int(sys.argv[1]) if len(sys.argv) > 1 else 10):
        print(json.dumps(order))
