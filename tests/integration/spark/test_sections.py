"""The example pipeline on a real cluster comes to what plain Python comes to, while a leader is killed."""

from __future__ import annotations

from collections import Counter, defaultdict
from datetime import datetime
from itertools import islice
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import stretto.testing
from stretto.examples.pageviews.pageviews import PageViews, hour_of
from stretto.examples.pageviews.views import views
from stretto.examples.sections import pages, pipeline
from stretto.examples.sections.sections import Counted, Sections

pytestmark = [pytest.mark.soak, pytest.mark.timeout(900)]


def test_views_are_summed_up_by_section_and_reported_back(spark: SparkSession, tmp_path: Path) -> None:
    given = list(islice(views(per_hour=300), 1_000))
    section_of = {each.page: each.section for each in pages.pages()}
    counts: dict[tuple[str, datetime], Counter[str]] = defaultdict(Counter)
    for view in given:
        hour = hour_of(datetime.fromisoformat(view["at"]))
        counts[section_of[view["page"]], hour][view["page"]] += 1
    table = str(tmp_path / "pages.parquet")
    pages.write(table)
    with stretto.testing.cluster(replication_factor=2) as cluster:
        seen = cluster.launch(PageViews, tasks=4, threads=2)
        sections = cluster.launch(Sections, tasks=2, threads=1)
        seen.append("views", *given)
        seen.settle()
        for _ in range(2):
            pipeline.run(spark, table, ",".join(cluster.bootstrap))
            sections.settle()
            found = {
                (section, hour): counted
                for section in sections.hours.keys()  # noqa: SIM118 - a reader, no dict
                for hour, counted in sections.hours.items(section)
            }
            assert found == {
                where: Counted(counter.total(), len(counter)) for where, counter in counts.items()
            }
            sections.kill_leader()
        total = sum(counter.total() for (section, _), counter in counts.items() if section == "arts")
        assert sections.query("views_of", "arts") == total
