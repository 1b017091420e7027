"""The examples on real workers come to what they come to in memory, also when leaders are killed."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Iterable
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

import stretto.testing
from stretto.client.api import Client
from stretto.examples.bank.bank import Bank
from stretto.examples.bank.orders import orders
from stretto.examples.pageviews.pageviews import PageViews
from stretto.examples.pageviews.views import views
from stretto.examples.timeline.events import follows, posts
from stretto.examples.timeline.timeline import Timeline
from stretto.examples.wordcount.sentences import sentences
from stretto.examples.wordcount.wordcount import WordCount
from stretto.module.module import Depot, Module, declarations
from stretto.module.partition import Partitioner
from tests.support.cluster import MODULE, Cluster, Code
from tests.support.waiting import wait_until

EXAMPLES = Path(__file__).resolve().parents[3] / "examples"
TASKS = 4
SETTLED_SECONDS = 240

pytestmark = [pytest.mark.soak, pytest.mark.timeout(590)]


@pytest.fixture
def run(start: Callable[..., Cluster], tmp_path: Path) -> Callable[[str, type[Module]], Cluster]:
    def begin(source: str, module: type[Module]) -> Cluster:
        code = Code(tmp_path / "code", (EXAMPLES / source).read_text("utf-8"), module.__name__)
        return start(code=code, tasks=TASKS, groups=2)

    return begin


def append(
    client: Client,
    depot: Depot[Any],
    records: Iterable[Any],
    while_at_it: Callable[[int], None] = lambda _: None,
) -> None:
    place = Partitioner(depot, TASKS).place
    with client.producer(MODULE, depot.name, batch_records=100) as producer:
        for number, value in enumerate(records):
            record, task = place(value)
            _ack = producer.append(record, task=task)
            while_at_it(number)


def held(client: Client, module: type[Module], name: str) -> dict[Any, Any]:
    of = declarations(module).pstates[name].annotation
    return dict(client.pstate(MODULE, name, of=of).items())


def check_settles(client: Client, module: type[Module], expected: dict[str, dict[Any, Any]]) -> None:
    """That these PStates come to be what they are in memory, and stay it."""

    def differing(name: str) -> dict[Any, Any]:
        found, whole = held(client, module, name), expected[name]
        keys = found.keys() | whole.keys()
        return {key: (found.get(key), whole.get(key)) for key in keys if found.get(key) != whole.get(key)}

    def is_settled(name: str) -> bool:
        return not differing(name)

    for name in expected:
        with contextlib.suppress(AssertionError):
            wait_until("it is as in memory", partial(is_settled, name), SETTLED_SECONDS)
        assert differing(name) == {}
    for name, whole in expected.items():
        assert held(client, module, name) == whole


def test_words_are_counted(run: Callable[..., Cluster]) -> None:
    cluster = run("wordcount/wordcount.py", WordCount)
    given = list(islice(sentences(), 5_000))
    with stretto.testing.module(WordCount, tasks=TASKS) as m:
        m.append("sentences", *given)
        m.run()
        client = cluster.connect()
        append(client, WordCount.sentences, given)
        check_settles(client, WordCount, {"counts": dict(m.counts.items())})
    cluster.check_replicas_agree()


def test_page_views_are_ranked(run: Callable[..., Cluster]) -> None:
    cluster = run("pageviews/pageviews.py", PageViews)
    given = list(islice(views(), 3_000))
    with stretto.testing.module(PageViews, tasks=TASKS) as m:
        m.append("views", *given)
        m.run()
        client = cluster.connect()
        append(client, PageViews.views, given)
        names = ("hours", "ranking", "visitors")
        check_settles(client, PageViews, {name: dict(m.pstate(name).items()) for name in names})

        last = max(hour for hour, _ in m.hours.keys())  # noqa: SIM118
        expiry = {"type": "expiry", "before": last.isoformat()}
        m.append("expiries", expiry)
        m.run()
        append(client, PageViews.expiries, [expiry])
        check_settles(client, PageViews, {name: dict(m.pstate(name).items()) for name in names})
    cluster.check_replicas_agree()


def test_a_timeline_is_right_although_leaders_are_killed(run: Callable[..., Cluster]) -> None:
    """What it does may happen twice, and changes nothing the second time."""
    cluster = run("timeline/timeline.py", Timeline)
    made, written = list(islice(follows(people=60), 300)), list(islice(posts(people=60), 1_000))

    def kill_leaders(number: int) -> None:
        if number in (100, 200):
            cluster.leader(number // 200).kill()
            cluster.heal()

    with stretto.testing.module(Timeline, tasks=TASKS) as m:
        m.append("follows", *made)
        m.run()
        client = cluster.connect()
        append(client, Timeline.follows, made, kill_leaders)
        names = ("followers", "following")
        check_settles(client, Timeline, {name: dict(m.pstate(name).items()) for name in names})

        m.append("posts", *written)
        m.run()
        append(client, Timeline.posts, written, kill_leaders)
        check_settles(
            client, Timeline, {name: dict(m.pstate(name).items()) for name in ("timelines", "written")}
        )
    cluster.check_replicas_agree()


def test_a_bank_books_every_order_once_although_leaders_are_killed(run: Callable[..., Cluster]) -> None:
    cluster = run("bank/bank.py", Bank)
    given = list(islice(orders(accounts=100), 3_000))

    def kill_leaders(number: int) -> None:
        if number in (1_000, 2_000):
            cluster.leader(number // 1_000 - 1).kill()
            cluster.heal()

    client = cluster.connect()
    append(client, Bank.orders, given, kill_leaders)
    paid_in = Counter[str]()
    for order in given:
        if order["type"] == "deposit":
            paid_in[order["account"]] += order["amount"]

    def booked() -> tuple[dict[str, int], dict[str, int]]:
        """The balances, and what they would be if all were booked but what is refused."""
        balances, refused = held(client, Bank, "balances"), held(client, Bank, "refused")
        expected = Counter(paid_in)
        for order in given:
            if order["type"] == "transfer":
                expected[order["account"]] -= order["amount"]
                expected[order["to"]] += order["amount"]
        for transfer in (each for listed in refused.values() for each in listed):
            expected[transfer.account] += transfer.amount
            expected[transfer.to] -= transfer.amount
        return balances, dict(expected)

    def is_booked() -> bool:
        balances, expected = booked()
        return balances == expected

    wait_until("every order is booked", is_booked, SETTLED_SECONDS)
    found = booked()
    assert held(client, Bank, "deposited") == paid_in
    assert sum(found[0].values()) == sum(paid_in.values())
    assert min(found[0].values()) >= 0
    cluster.check_replicas_agree()
