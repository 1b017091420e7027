"""What a lane wrote lies over the rows of the file until it is applied."""

from __future__ import annotations

from typing import Any, cast

import pytest

from stretto.pstate.changes import Changes
from stretto.worker.executors import lanes
from stretto.worker.executors.lanes import _Written


class Stored:
    """The rows of a file."""

    def __init__(self, **rows: bytes) -> None:
        self._rows = {key.encode(): value for key, value in rows.items()}

    def get(self, key: bytes) -> bytes | None:
        return self._rows.get(key)


def read(written: _Written, stored: Stored, keys: str = "abc") -> list[bytes | None]:
    over = written.over(cast(Any, stored))
    return [over.get(key.encode()) for key in keys]


def test_what_is_put_and_deleted_hides_what_is_stored() -> None:
    written = _Written()
    stored = Stored(a=b"1", b=b"2", c=b"3")
    written.add(1, Changes(deletes=(b"a",), puts=((b"b", b"new"),)))
    assert read(written, stored) == [None, b"new", b"3"]
    written.add(2, Changes(deletes=(b"b",), puts=((b"a", b"again"),)))
    assert read(written, stored) == [b"again", None, b"3"]


def test_a_range_that_is_deleted_hides_what_is_in_it_until_it_is_applied() -> None:
    written = _Written()
    stored = Stored(a=b"1", b=b"2", c=b"3")
    written.add(1, Changes(puts=((b"a", b"new"),)))
    written.add(2, Changes(ranges=((b"a", b"c"),), puts=((b"b", b"kept"),)))
    written.add(3, Changes(deletes=(b"c",)))
    assert read(written, stored) == [None, b"kept", None]
    # The first two are in the file by now, and the last one is still to come.
    written.applied(3)
    assert read(written, Stored(b=b"kept", c=b"3")) == [None, b"kept", None]
    assert [batch for batch, _ in written.layers] == [3]


def test_rows_that_are_applied_are_forgotten_when_there_are_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lanes, "KEPT_ROWS_MAX", 2)
    written = _Written()
    for batch, key in ((1, b"a"), (2, b"b"), (3, b"c")):
        written.add(batch, Changes(puts=((key, b"new"),)))
    written.applied(3)
    assert written.rows == {b"c": b"new"}
    written.add(4, Changes(deletes=(b"a",)))
    written.applied(4)
    assert written.rows == {b"c": b"new", b"a": None}, "so few do no harm"
