"""Rows in bulk: every row once, in order, in pages of a bounded size; and keys that cut them evenly."""

from __future__ import annotations

import random
import struct
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import lmdb
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stretto.errors import StorageError
from stretto.pstate import btree, ordered
from stretto.pstate.btree import Tree, map_pages
from stretto.pstate.ordered import EVERYTHING
from stretto.pstate.pages import NO_ROWS, Page, read_page, read_pages
from stretto.pstate.splits import splits

KEYS = st.binary(min_size=1, max_size=20).map(lambda data: b"\x30" + data)


@pytest.fixture(scope="module")
def env(tmp_path_factory: pytest.TempPathFactory) -> Iterator[lmdb.Environment]:
    folder = tmp_path_factory.mktemp("pages")
    with lmdb.open(str(folder), max_dbs=4, map_size=1 << 28) as env:
        yield env


def filled(env: lmdb.Environment, rows: dict[bytes, bytes], name: bytes = b"pstate/rows") -> lmdb._Database:
    database = env.open_db(name)
    with env.begin(write=True) as txn:
        txn.drop(database, delete=False)
        txn.cursor(database).putmulti(rows.items())
    return database


def rows_of(page: Page) -> list[tuple[bytes, bytes]]:
    def parts(data: bytes, packed: bytes) -> list[bytes]:
        ends = struct.unpack(f"<{page.count}I", packed)
        return [data[start:end] for start, end in zip((0, *ends), ends, strict=False)]

    return list(zip(parts(page.keys, page.key_ends), parts(page.values, page.value_ends), strict=True))


@settings(max_examples=60, deadline=None)
@given(
    rows=st.dictionaries(KEYS, st.binary(max_size=200), max_size=300),
    start=st.one_of(st.just(b""), KEYS),
    end=st.one_of(st.just(b"\xff"), KEYS),
    max_bytes=st.integers(1, 5_000),
)
def test_pages_hold_exactly_the_rows_of_a_range(
    env: lmdb.Environment, rows: dict[bytes, bytes], start: bytes, end: bytes, max_bytes: int
) -> None:
    database = filled(env, rows)
    with env.begin() as txn:
        pages = list(read_pages(txn, database, start, end, max_bytes))
    found = [row for page in pages for row in rows_of(page)]
    assert found == sorted((key, value) for key, value in rows.items() if start <= key < end)
    for page in pages:
        *others, last = rows_of(page)
        assert page.last_key == last[0]
        assert sum(len(key) + len(value) for key, value in others) <= max_bytes


def tree_of(env: lmdb.Environment, txn: lmdb.Transaction[bytes], name: str = "pstate/rows") -> Tree:
    return Tree(txn, name, map_pages(Path(env.path()) / "data.mdb", env.stat()["psize"]))


def pages_of(tree: Tree, start: bytes, end: bytes, max_bytes: int) -> list[Page]:
    """None of them may be empty if there is more."""
    pages: list[Page] = []
    after, more = False, True
    while more:
        found = tree.read_page(start, end, after=after, max_bytes=max_bytes)
        assert found is not None
        page, more = found
        if page.count:
            pages.append(page)
            start, after = page.last_key, True
        assert page.count or not more
    return pages


@settings(max_examples=60, deadline=None)
@given(
    rows=st.dictionaries(KEYS, st.binary(max_size=300), max_size=300),
    start=st.one_of(st.just(b""), KEYS),
    end=st.one_of(st.just(b"\xff"), KEYS),
    max_bytes=st.integers(1, 50_000),
)
def test_pages_of_the_tree_are_those_of_the_cursor(
    env: lmdb.Environment, rows: dict[bytes, bytes], start: bytes, end: bytes, max_bytes: int
) -> None:
    filled(env, rows)
    with env.begin() as txn:
        pages = pages_of(tree_of(env, txn), start, end, max_bytes)
    found = [row for page in pages for row in rows_of(page)]
    assert found == sorted((key, value) for key, value in rows.items() if start <= key < end)


def test_a_tree_of_many_levels_that_was_written_and_deleted_at_random_is_read_whole(
    env: lmdb.Environment,
) -> None:
    chance = random.Random(7)
    rows = {b"\x30" + chance.randbytes(chance.randrange(1, 200)): chance.randbytes(20) for _ in range(20_000)}
    database = filled(env, rows)
    for _ in range(5):
        with env.begin(write=True) as txn:
            for key in chance.sample(sorted(rows), 1_500):
                txn.delete(key, db=database)
                del rows[key]
    with env.begin() as txn:
        assert txn.stat(database)["depth"] > 2
        pages = pages_of(tree_of(env, txn), b"", b"\xff", 1 << 16)
    assert len(pages) > 10
    assert dict(row for page in pages for row in rows_of(page)) == rows
    assert sum(page.count for page in pages) == len(rows)


def test_a_value_that_lies_beside_the_tree_is_left_to_the_cursor(env: lmdb.Environment) -> None:
    filled(env, {ordered.encode(1): b"short", ordered.encode(2): bytes(10_000)})
    with env.begin() as txn:
        tree = tree_of(env, txn)
        assert tree.read_page(b"", b"\xff") is None
        assert tree_of(env, txn, "pstate/none").read_page(b"", b"\xff") == (NO_ROWS, False)


def test_pages_of_another_lmdb_are_left_to_it(env: lmdb.Environment, monkeypatch: pytest.MonkeyPatch) -> None:
    filled(env, {ordered.encode(number): b"value" for number in range(10_000)})
    with env.begin() as txn:
        tree = tree_of(env, txn)
        assert tree.splits(2)
        monkeypatch.setattr(btree, "IS_KNOWN", False)
        assert tree.read_page(b"", b"\xff") is None
        assert tree.splits(2) == []


def test_a_page_that_is_not_the_one_the_tree_names_is_refused(env: lmdb.Environment) -> None:
    filled(env, {ordered.encode(number): b"value" for number in range(10_000)})
    with env.begin() as txn:
        pages = map_pages(Path(env.path()) / "data.mdb", env.stat()["psize"]).copy()
        Tree(txn, "pstate/rows", pages).read_page(b"", b"\xff")
        leaves = (pages.view("<u2")[:, 5] & 0x02).nonzero()[0]
        pages[leaves] = pages[leaves[::-1]]
        with pytest.raises(StorageError, match="no leaf of its tree"):
            Tree(txn, "pstate/rows", pages).read_page(b"", b"\xff")


def test_a_page_is_bounded_although_its_rows_become_large(env: lmdb.Environment) -> None:
    rows = {ordered.encode(number): bytes(8) for number in range(5_000)}
    rows |= {ordered.encode(number): bytes(300_000) for number in range(5_000, 5_020)}
    database = filled(env, rows)
    with env.begin() as txn:
        pages = list(read_pages(txn, database, max_bytes=1 << 20))
    assert sum(page.count for page in pages) == len(rows)
    assert max(len(page.values) for page in pages) < (1 << 20) + 300_000


def test_going_on_behind_the_longest_key_needs_no_longer_one(env: lmdb.Environment) -> None:
    longest = b"\x30" + bytes([7]) * 510
    database = filled(env, {longest: b"a", b"\x31": b"b"})
    with env.begin() as txn:
        page, more = read_page(txn.cursor(database), longest, EVERYTHING[1], after=True)
    assert rows_of(page) == [(b"\x31", b"b")]
    assert not more


@pytest.mark.parametrize("parts", [2, 3, 8, 32])
def test_splits_cut_rows_into_about_equal_parts(env: lmdb.Environment, parts: int) -> None:
    keys = [ordered.encode(f"word-{number:06}") for number in range(60_000)]
    database = filled(env, {key: bytes(30) for key in keys})
    path, page_bytes = Path(env.path()) / "data.mdb", env.stat()["psize"]
    with env.begin() as txn:
        cuts = splits(txn, "pstate/rows", parts, file=path, page_bytes=page_bytes)
        edges = [b"", *cuts, b"\xff"]
        counts = [
            sum(page.count for page in read_pages(txn, database, start, end))
            for start, end in pairwise(edges)
        ]
    assert cuts == sorted(set(cuts))
    assert len(cuts) == parts - 1
    assert sum(counts) == len(keys)
    assert max(counts) < 1.5 * len(keys) / parts
    assert min(counts) > 0.5 * len(keys) / parts


def test_splits_lie_within_the_range_that_is_to_be_cut(env: lmdb.Environment) -> None:
    keys = [ordered.encode(number) for number in range(60_000)]
    filled(env, {key: bytes(30) for key in keys})
    start, end = ordered.encode(10_000), ordered.encode(20_000)
    path = Path(env.path()) / "data.mdb"
    with env.begin() as txn:
        cuts = splits(txn, "pstate/rows", 4, file=path, page_bytes=env.stat()["psize"], start=start, end=end)
    assert len(cuts) == 3
    assert all(start < cut < end for cut in cuts)
    wanted = [12_500, 15_000, 17_500]
    for cut, about in zip(cuts, wanted, strict=True):
        assert abs(ordered.decode(cut) - about) < 1_500


def test_few_rows_are_not_cut_and_what_is_not_there_has_no_splits(env: lmdb.Environment) -> None:
    filled(env, {ordered.encode(number): b"x" for number in range(10)})
    path, page_bytes = Path(env.path()) / "data.mdb", env.stat()["psize"]
    with env.begin() as txn:
        assert splits(txn, "pstate/rows", 8, file=path, page_bytes=page_bytes) == []
        assert splits(txn, "pstate/none", 8, file=path, page_bytes=page_bytes) == []


def test_splits_are_those_of_the_transaction_while_others_write(env: lmdb.Environment) -> None:
    database = filled(env, {ordered.encode(number): bytes(30) for number in range(60_000)})
    path, page_bytes = Path(env.path()) / "data.mdb", env.stat()["psize"]
    with env.begin() as txn:
        before = splits(txn, "pstate/rows", 8, file=path, page_bytes=page_bytes)
        for round_ in range(3):
            with env.begin(write=True) as writing:
                writing.drop(database, delete=False)
                rows = ((ordered.encode(-number), bytes(60)) for number in range(30_000 * round_ + 1))
                writing.cursor(database).putmulti(rows)
        assert splits(txn, "pstate/rows", 8, file=path, page_bytes=page_bytes) == before
