"""``select`` against real workers: keys as text, values as JSON."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date
from typing import Any

import pytest

from stretto.pstate.types import describe
from stretto.specs.modules import DepotSpec, PStateSpec
from stretto.zk.server.embedded import EmbeddedZooKeeper
from tests.support.cluster import MODULE, Cluster
from tests.support.commands import Done, stretto
from tests.support.states import change, put


@dataclass
class Account:
    owner: str
    balance: int


SHAPES: dict[str, Any] = {
    "counts": dict[str, int],
    "accounts": dict[int, Account],
    "views": dict[str, dict[date, int]],
    "logs": dict[str, list[str]],
    "words": set[str],
    "pairs": dict[tuple[str, int], bool],
}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory, zookeeper: EmbeddedZooKeeper) -> Iterator[Cluster]:
    specs = tuple(PStateSpec(name=name, type=describe(shape)) for name, shape in SHAPES.items())
    folder = tmp_path_factory.mktemp("cluster")
    depots = (DepotSpec(name="events"),)
    with Cluster(folder, zookeeper.address, tasks=4, depots=depots, pstates=specs) as cluster:
        put(cluster, "counts", SHAPES["counts"], {"ant": 1, "bee": 2, "been": 3, "two\nlines": 4})
        put(cluster, "accounts", SHAPES["accounts"], {7: Account("ann", 3), -1: Account("bob", 0)})
        put(cluster, "views", SHAPES["views"], {"/": {date(2026, 1, day): day for day in range(1, 10)}})
        put(cluster, "logs", SHAPES["logs"], {"today": ["first", "second", "third"]})
        put(cluster, "pairs", SHAPES["pairs"], {("de", 1): True, ("de", 2): False, ("fr", 1): True})
        change(cluster, "words", SHAPES["words"], {"yes": lambda editor: editor.add("yes")})
        yield cluster


def select(cluster: Cluster, *args: str) -> Done:
    return stretto("select", MODULE, *args, "--bootstrap", ",".join(cluster.addresses()))


@pytest.mark.parametrize(
    ("args", "lines"),
    [
        (("counts", "bee"), ["2"]),
        (("counts",), ["ant\t1", "bee\t2", "been\t3", '"two\\nlines"\t4']),
        (("counts", "--prefix", "bee"), ["bee\t2", "been\t3"]),
        (("counts", "--from", "b", "--to", "been"), ["bee\t2"]),
        (("counts", "--count"), ["4"]),
        (("counts", "--count", "--prefix", "bee"), ["2"]),
        (("counts", "--count", "--from", "b", "--to", "been"), ["1"]),
        (("counts", "--after", "bee"), ["been\t3", '"two\\nlines"\t4']),
        (("counts", "--after", "bee", "--count"), ["2"]),
        (("accounts", "7"), ['{"owner":"ann","balance":3}']),
        (("accounts", "--to", "0"), ['-1\t{"owner":"bob","balance":0}']),
        (("views", "/", "2026-01-03"), ["3"]),
        (("views", "/", "--from", "2026-01-08"), ['"2026-01-08"\t8', '"2026-01-09"\t9']),
        (("views", "/", "--count"), ["9"]),
        (("logs", "today"), ["0\tfirst", "1\tsecond", "2\tthird"]),
        (("logs", "today", "1"), ["second"]),
        (("logs", "today", "--from", "1", "--to", "2"), ["1\tsecond"]),
        (("logs", "today", "--after", "0"), ["1\tsecond", "2\tthird"]),
        (("words",), ["yes"]),
        (("words", "yes"), ["true"]),
        (("words", "no"), ["false"]),
        (("pairs", '["de", 2]'), ["false"]),
        (("pairs", "--prefix", '["de"]'), ['["de",1]\ttrue', '["de",2]\tfalse']),
    ],
)
def test_what_is_there_is_shown(cluster: Cluster, args: tuple[str, ...], lines: list[str]) -> None:
    done = select(cluster, *args)
    assert (done.code, done.err, done.lines) == (0, "", lines)


def test_json_has_a_line_for_each_entry(cluster: Cluster) -> None:
    rows = [json.loads(line) for line in select(cluster, "accounts", "--json").lines]
    assert rows == [
        {"key": -1, "value": {"owner": "bob", "balance": 0}},
        {"key": 7, "value": {"owner": "ann", "balance": 3}},
    ]
    assert json.loads(select(cluster, "views", "/", "2026-01-03", "--json").out) == {
        "path": ["/", "2026-01-03"],
        "value": 3,
    }
    assert [json.loads(line) for line in select(cluster, "words", "--json").lines] == [{"key": "yes"}]
    [row] = [json.loads(line) for line in select(cluster, "views", "--json").lines]
    assert row["value"][0] == ["2026-01-01", 1]


def test_more_than_the_limit_is_told(cluster: Cluster) -> None:
    done = select(cluster, "counts", "--limit", "2")
    assert (done.code, done.lines) == (0, ["ant\t1", "bee\t2"])
    assert done.err == "stretto: there are more than 2; see them with --limit or --after\n"
    assert select(cluster, "counts", "--limit", "4").err == ""


def test_a_key_that_is_not_there_is_a_failure(cluster: Cluster) -> None:
    done = select(cluster, "counts", "cow")
    assert (done.code, done.out, done.err) == (1, "", "stretto: counts has nothing under cow\n")


@pytest.mark.parametrize(
    ("args", "sentence"),
    [
        (("count", "x"), f"module {MODULE} has no PState count; did you mean counts?"),
        (("accounts", "seven"), "'seven' is no int: "),
        (("views", "/", "soon"), "'soon' is no date: "),
        (("counts", "ant", "more"), "'more' leads nowhere"),
        (("counts", "ant", "--prefix", "a"), "--prefix, --from, --to and --after choose among keys"),
        (("logs", "today", "--count", "--from", "1"), "only dicts and sets have keys"),
        (("logs", "today", "--prefix", "1"), "the positions of a list have no prefix"),
        (("accounts", "--prefix", "1"), "1 is no beginning of a key here: no int begins like that"),
        (("pairs", "--prefix", "de"), "'de' is no beginning of a tuple[str, int], as a JSON list"),
        (("counts", "x" * 600), "a key of 602 bytes is beyond the limit of 511"),
    ],
)
def test_what_cannot_be_asked_is_bad_usage(cluster: Cluster, args: tuple[str, ...], sentence: str) -> None:
    done = select(cluster, *args)
    assert (done.code, done.out) == (2, "")
    assert done.err.startswith(f"stretto: {sentence}")
    assert done.err.count("\n") == 1
