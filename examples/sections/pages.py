"""The dimension table: to which section each page belongs, as a Parquet file, the same one each time.

python examples/sections/pages.py pages.parquet
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

PAGES = 2_000
SECTIONS = ("arts", "business", "politics", "science", "sports")


class Page(NamedTuple):
    page: str
    section: str
    title: str


def pages() -> Iterator[Page]:
    for number in range(PAGES):
        section = SECTIONS[number * number % 23 % len(SECTIONS)]
        yield Page(f"/page/{number}", section, f"{section.title()}, part {number}")


def write(path: str) -> None:
    table = pa.Table.from_pylist([page._asdict() for page in pages()])
    pq.write_table(table, path)


if __name__ == "__main__":
    write(sys.argv[1] if len(sys.argv) > 1 else "pages.parquet")
