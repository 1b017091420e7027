"""Page views: how often each page was seen in each hour, and which pages were seen most."""

from __future__ import annotations

import zlib
from datetime import UTC, datetime
from heapq import nsmallest
from itertools import islice
from typing import Annotated

import msgspec

from stretto import GLOBAL, Depot, Module, PState, query, step, stream

PARTS = 16
"""Of an hour: each is on a task of its own, so that a busy hour is the work of many."""


Moment = Annotated[datetime, msgspec.Meta(tz=True)]
"""A time with a zone: without one, a record is refused."""


class View(msgspec.Struct, tag="view"):
    page: str
    user: str
    at: Moment


class Expiry(msgspec.Struct, tag="expiry"):
    before: Moment
    """Hours before this are forgotten."""


class PageViews(Module):
    views = Depot(View, partition_by="page")
    expiries = Depot(Expiry, partition_by=GLOBAL)

    hours = PState(dict[tuple[datetime, int], dict[str, int]])
    """By hour and part: how often a page was seen."""
    ranking = PState(dict[tuple[datetime, int], set[tuple[int, str]]])
    """The same, with the most seen first: minus the count, and the page."""
    visitors = PState(dict[str, dict[datetime, set[str]]])
    """By page and hour: who saw it."""

    @stream(views, expiries)
    def take(self, record: View | Expiry) -> None:
        if isinstance(record, Expiry):
            self.forget.everywhere()(hour_of(record.before))
            return
        hour, part = hour_of(record.at), part_of(record.page)
        self.visitors.add(record.page, hour, record.user)
        self.count.at((hour, part))(hour, part, record.page)

    @step
    def count(self, hour: datetime, part: int, page: str) -> None:
        count = self.hours.increment((hour, part), page)
        self.ranking.discard((hour, part), (1 - count, page))
        self.ranking.add((hour, part), (-count, page))

    @step
    def forget(self, before: datetime) -> None:
        """On every task, all that it has of hours before this one."""
        for key in list(self.hours.keys(end=(before, 0))):
            self.hours.delete(key)
            self.ranking.delete(key)
        for page in list(self.visitors.keys()):
            for hour in list(self.visitors.keys(page, end=before)):
                self.visitors.delete(page, hour)

    @query
    def top(self, hour: datetime, limit: int = 10) -> list[tuple[int, str]]:
        """Minus the count and the page, the most seen first; of every part only its beginning is read."""
        parts = list(self.ranking.keys(start=(hour, 0), end=(hour, PARTS)))
        return nsmallest(limit, (each for part in parts for each in islice(self.ranking.keys(part), limit)))

    @top.combine
    def top_of_all(
        self,
        parts: list[list[tuple[int, str]]],
        hour: datetime,
        limit: int,
    ) -> list[tuple[str, int]]:
        first = nsmallest(limit, (each for part in parts for each in part))
        return [(page, -count) for count, page in first]

    @query(key="page")
    def history(self, page: str) -> list[tuple[datetime, int]]:
        """How many people saw a page, hour by hour."""
        return [(hour, self.visitors.count(page, hour)) for hour in self.visitors.keys(page)]


def hour_of(moment: datetime) -> datetime:
    return moment.astimezone(UTC).replace(minute=0, second=0, microsecond=0)


def part_of(page: str) -> int:
    """Python's own hash() differs from process to process, and would not do."""
    return zlib.crc32(page.encode()) % PARTS
