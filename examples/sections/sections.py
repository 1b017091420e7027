"""Sections: what a Spark job makes of the page views, back in a module, where it can be looked up."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

import msgspec

from stretto import Depot, Module, PState, query, stream


class Report(msgspec.Struct):
    """Of one section in one hour, as it was when the job looked."""

    section: str
    hour: Annotated[datetime, msgspec.Meta(tz=True)]
    views: int
    pages: int
    """How many different ones were seen."""


class Counted(msgspec.Struct):
    views: int
    pages: int


class Sections(Module):
    reports = Depot(Report, partition_by="section")
    hours = PState(dict[str, dict[datetime, Counted]])

    @stream(reports)
    def take(self, report: Report) -> None:
        """A later report takes the place of an earlier one, and the same report twice changes nothing."""
        self.hours.set(report.section, report.hour, value=Counted(report.views, report.pages))

    @query(key="section")
    def views_of(self, section: str) -> int:
        """In all hours."""
        return sum(counted.views for _, counted in self.hours.items(section))
