"""The examples load as they are, and come to what plain Python comes to with the same data."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter, defaultdict
from datetime import datetime, timedelta
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from pyarrow import parquet

import stretto.testing
from stretto import Module
from stretto.artifact import load
from stretto.artifact.importing import manifest
from stretto.examples.bank.bank import Bank
from stretto.examples.bank.orders import orders
from stretto.examples.pageviews.pageviews import PageViews
from stretto.examples.pageviews.views import views
from stretto.examples.sections.pages import SECTIONS, Page, pages
from stretto.examples.sections.sections import Sections
from stretto.examples.timeline.events import follows, posts
from stretto.examples.timeline.timeline import Timeline
from stretto.examples.wordcount.sentences import sentences
from stretto.examples.wordcount.wordcount import WordCount
from stretto.module.partition import Partitioner

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


@pytest.mark.parametrize(
    ("source", "topologies"),
    [
        ("wordcount/wordcount.py:WordCount", {"split": ("counts",)}),
        ("bank/bank.py:Bank", {"book": ("balances", "deposited", "refused")}),
        ("pageviews/pageviews.py:PageViews", {"take": ("hours", "ranking", "visitors")}),
        ("sections/sections.py:Sections", {"take": ("hours",)}),
        (
            "timeline/timeline.py:Timeline",
            {"follow": ("followers", "following"), "post": ("timelines", "written")},
        ),
    ],
)
def test_an_example_can_be_packed_and_its_readme_launches_it(
    source: str, topologies: dict[str, tuple[str, ...]], tmp_path: Path
) -> None:
    _, manifest = load(f"{EXAMPLES}/{source}", tmp_path)
    assert manifest.name == source.rpartition(":")[2]
    assert {each.name: each.pstates for each in manifest.topologies} == topologies
    readme = (EXAMPLES / source).parent.joinpath("README.md").read_text("utf-8")
    assert f"stretto deploy launch --module examples/{source}" in readme


@pytest.mark.parametrize(
    ("generator", "events"),
    [
        (["wordcount/sentences.py"], sentences()),
        (["bank/orders.py"], orders()),
        (["pageviews/views.py"], views()),
        (["timeline/events.py", "follows"], follows()),
        (["timeline/events.py", "posts"], posts()),
    ],
    ids=lambda each: "-".join(each) if isinstance(each, list) else "",
)
def test_data_is_printed_as_lines_of_json_and_the_same_each_time(generator: list[str], events: Any) -> None:
    command = [sys.executable, str(EXAMPLES / generator[0]), *generator[1:], "20"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert [json.loads(line) for line in done.stdout.splitlines()] == list(islice(events, 20))


def test_every_user_of_the_word_count_has_one_task_and_every_task_has_work() -> None:
    partitioner = Partitioner(WordCount.sentences, 8)
    task_of_user: dict[str, int | None] = {}
    work: Counter[int | None] = Counter()
    for sentence in islice(sentences(), 10_000):
        record, task = partitioner.place(sentence)
        assert json.loads(record) == sentence
        assert task_of_user.setdefault(sentence["user"], task) == task
        work[task] += 1
    assert set(work) == set(range(8))
    assert len(task_of_user) > 500


@pytest.mark.parametrize("seed", [None, 7])
def test_words_are_counted(seed: int | None) -> None:
    given = list(islice(sentences(), 1_000))
    with stretto.testing.module(WordCount, tasks=8, seed=seed) as m:
        m.append("sentences", *given)
        m.run()
        counted = Counter(word for sentence in given for word in sentence["text"].split())
        assert dict(m.counts.items()) == counted
        assert m.query("top", 3) == [[counted[word], word] for word, _ in counted.most_common(3)]


@pytest.mark.parametrize(("seed", "at_most"), [(None, None), (7, 20)])
def test_money_is_neither_made_nor_lost(seed: int | None, at_most: int | None) -> None:
    given = list(islice(orders(accounts=50), 2_000))
    with stretto.testing.module(Bank, tasks=4, seed=seed, microbatch_records=at_most) as m:
        m.append("orders", *given, {"type": "transfer", "account": "account-1", "to": "x", "amount": -5})
        ran = m.run(failures="keep")
        paid_in = sum(order["amount"] for order in given if order["type"] == "deposit")
        assert m.query("totals") == [paid_in, paid_in]
        assert [failed.error for failed in ran.failures] == ["ValueError: an amount of -5 moves no money"]
        assert all(balance >= 0 for _, balance in m.balances.items())
        refused = sum(len(listed) for _, listed in m.refused.items())
        assert 0 < refused < len(given) / 2
        assert m.query("balance", "account-1") == m.balances.get("account-1")


def test_page_views_are_ranked_by_the_hour_and_forgotten() -> None:
    given = list(islice(views(per_hour=400), 1_500))
    hours: dict[datetime, Counter[str]] = defaultdict(Counter)
    visitors: dict[tuple[str, datetime], set[str]] = defaultdict(set)
    for view in given:
        hour = datetime.fromisoformat(view["at"]).replace(minute=0, second=0, microsecond=0)
        hours[hour][view["page"]] += 1
        visitors[view["page"], hour].add(view["user"])
    with stretto.testing.module(PageViews, tasks=4, seed=3) as m:
        m.append("views", *given)
        m.run()
        for hour, counter in hours.items():
            best = sorted(counter.items(), key=lambda item: (-item[1], item[0]))[:5]
            assert m.query("top", hour, 5) == [list(each) for each in best]
        page, hour = max(visitors, key=lambda key: len(visitors[key]))
        assert [hour, len(visitors[page, hour])] in m.query("history", page)

        last = max(hours)
        m.append("expiries", {"type": "expiry", "before": last.isoformat()})
        m.run()
        assert m.query("top", last - timedelta(hours=1)) == []
        assert {moment for (moment, _), _ in m.hours.items()} == {last}
        assert {moment for page in m.visitors.keys() for moment in m.visitors.keys(page)} == {last}  # noqa: SIM118


def test_a_view_without_a_zone_is_refused() -> None:
    with stretto.testing.module(PageViews) as m:
        m.append("views", {"type": "view", "page": "/", "user": "x", "at": "2026-01-31T08:00:00"})
        [failed] = m.run(failures="keep").failures
    assert "Expected `datetime` with a timezone component" in failed.error


def test_posts_reach_all_followers_newest_first_and_not_for_ever() -> None:
    made, written = list(islice(follows(people=40), 120)), list(islice(posts(people=40), 250))
    followers: dict[str, set[str]] = defaultdict(set)
    for follow in made:
        if follow.get("stop"):
            followers[follow["whom"]].discard(follow["user"])
        else:
            followers[follow["whom"]].add(follow["user"])
    timelines: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for post in written:
        for reader in {post["user"], *followers[post["user"]]}:
            timelines[reader].insert(0, post)
    with stretto.testing.module(Timeline, tasks=8) as m:
        m.append("follows", *made)
        m.run()
        assert dict(m.followers.items()) == {whom: users for whom, users in followers.items() if users}
        m.append("posts", *written)
        readers = m.run().results
        assert sum(readers) == sum(len(followers[post["user"]]) for post in written)
        assert set(m.timelines.keys()) == set(timelines)
        busiest = max(timelines, key=lambda reader: len(timelines[reader]))
        assert m.timelines.count(busiest) == min(100, len(timelines[busiest]))
        assert m.query("timeline", busiest, 10) == timelines[busiest][:10]


def test_a_post_that_is_delivered_twice_is_one_post() -> None:
    with stretto.testing.module(Timeline) as m:
        m.append("follows", {"user": "bob", "whom": "ann"})
        m.append("posts", *[{"user": "ann", "number": 1, "text": "hello"}] * 2)
        m.run()
        assert m.timelines.count("bob") == 1


def test_every_page_has_a_section_in_the_table_and_every_section_has_pages(tmp_path: Path) -> None:
    path = tmp_path / "pages.parquet"
    subprocess.run([sys.executable, str(EXAMPLES / "sections/pages.py"), str(path)], check=True)
    table = parquet.read_table(path).to_pylist()
    assert [Page(**row) for row in table] == list(pages())
    seen = {view["page"] for view in islice(views(), 5_000)}
    assert seen <= {row["page"] for row in table}
    assert {row["section"] for row in table} == set(SECTIONS)


def test_a_later_report_of_a_section_takes_the_place_of_an_earlier_one() -> None:
    report = {"section": "arts", "hour": "2026-01-31T08:00:00Z", "views": 7, "pages": 2}
    with stretto.testing.module(Sections) as m:
        m.append("reports", report, {**report, "views": 9}, {**report, "views": 9})
        m.run()
        assert m.query("views_of", "arts") == 9
        assert m.hours.count("arts") == 1


@pytest.mark.parametrize("name", ["wordcount", "bank", "pageviews", "sections", "timeline"])
def test_what_a_readme_shows_runs(name: str) -> None:
    readme = (EXAMPLES / name / "README.md").read_text("utf-8")
    program = readme.partition("```python\n")[2].partition("```")[0]
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    shown = readme.partition("```python\n")[2].partition("```\n\n    ")[2].partition("\n")[0]
    assert done.stdout.strip()
    if name == "wordcount":
        assert done.stdout.strip() == shown


@pytest.mark.parametrize("module", [WordCount, Bank, PageViews, Sections, Timeline])
def test_the_record_that_a_launch_shows_is_taken_by_every_topology(module: type[Module]) -> None:
    """One that had only the field that chooses the task used to be parked."""
    told = manifest(module, "its:entry")
    first = told.depots[0].name
    with stretto.testing.module(module) as m:
        m.append(first, json.loads(told.samples[first]))
        ran = m.run(failures="keep")
    assert (ran.failures, ran.records >= 1) == ([], True)
