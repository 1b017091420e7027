"""What a round is cut into, and what tells one content from another."""

from __future__ import annotations

import pytest

from stretto.client.appending import rounds
from stretto.client.appending.rounds import cut, digest
from stretto.vocabulary.types import TaskId

A, B = TaskId(0), TaskId(1)


def test_what_fits_is_one_batch_and_the_rest_is_cut_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rounds, "WHOLE_BYTES", 20)
    assert cut([b"aaaa", b"bbbb"]) == [[b"aaaa", b"bbbb"]]
    assert cut([b"aaaa", b"bbbb", b"cccc"]) == [[b"aaaa", b"bbbb"], [b"cccc"]]
    assert cut([b"a" * 30, b"b"]) == [[b"a" * 30], [b"b"]]


def test_the_order_within_one_batch_does_not_count() -> None:
    assert digest({A: [[b"a", b"b", b"a"]]}) == digest({A: [[b"b", b"a", b"a"]]})


def test_the_order_of_what_is_cut_does() -> None:
    assert digest({A: [[b"a", b"b"], [b"c"]]}) != digest({A: [[b"b", b"a"], [b"c"]]})


@pytest.mark.parametrize(
    "other",
    [
        {A: [[b"a", b"b"]]},
        {A: [[b"a", b"b", b"b"]]},
        {A: [[b"ab", b"a"]]},
        {A: [[b"a", b"a"]], B: [[b"b"]]},
        {B: [[b"a", b"a", b"b"]]},
        {},
    ],
)
def test_other_records_or_other_tasks_are_another_content(other: dict[TaskId, list[list[bytes]]]) -> None:
    found = digest({A: [[b"a", b"a", b"b"]]})
    assert digest(dict(other)) != found
    assert 0 <= found < 1 << 31
