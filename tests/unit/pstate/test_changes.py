"""The payload of a STATE entry, and what is refused before it is one."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from stretto.errors import PeerError, UsageError
from stretto.pstate.changes import CHANGES_BYTES_MAX, Changes, check_payload, pack, parse
from stretto.pstate.ordered import EVERYTHING
from stretto.pstate.tree import VALUE_BYTES_MAX

DECLARED = ("counts", "seen")


def test_changes_come_back_as_they_were() -> None:
    changes = {
        "counts": Changes(((b"a", b"b"), EVERYTHING), (b"x", b"y"), ((b"k", b"v"), (b"l", b""))),
        "$progress": Changes(puts=((b"p", b"1"),)),
    }
    payload = pack(changes)
    check_payload(payload, DECLARED)
    assert parse(payload) == changes
    assert parse(memoryview(payload)) == changes


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"count": Changes()}, "there is no PState count; did you mean counts?"),
        ({"counts": Changes(deletes=(b"",))}, "a key of PState counts is empty or longer than 511"),
        (
            {"counts": Changes(puts=((bytes(512), b""),))},
            "a key of PState counts is empty or longer than 511",
        ),
        ({"counts": Changes(puts=((b"", b""),))}, "a key of PState counts is empty"),
        ({"counts": Changes(puts=((b"k", bytes(VALUE_BYTES_MAX + 1)),))}, "beyond the limit of 8388608"),
        ({"counts": Changes(ranges=((b"b", b"b"),))}, "a range of PState counts is empty"),
        ({"counts": Changes(ranges=((b"", b"b"),))}, "a range of PState counts is empty"),
        ({"counts": Changes(ranges=((b"a", b"b" * 512),))}, "ends at more than 511 bytes"),
    ],
)
def test_what_could_not_be_applied_is_refused_before(changes: dict[str, Changes], sentence: str) -> None:
    with pytest.raises(PeerError, match=sentence):
        check_payload(pack(changes), DECLARED)


def test_a_payload_has_its_limit() -> None:
    rows = tuple((b"%d" % number, bytes(VALUE_BYTES_MAX)) for number in range(5))
    with pytest.raises(UsageError, match="make smaller batches"):
        pack({"counts": Changes(puts=rows)})
    with pytest.raises(PeerError, match="send smaller ones"):
        check_payload(bytes(CHANGES_BYTES_MAX + 1), DECLARED)


@settings(deadline=None)
@given(st.binary(max_size=64))
@example(payload=b"\x92\x00\x81\xa2\x00\x80")  # a name that is no UTF-8
def test_any_bytes_are_changes_or_refused(payload: bytes) -> None:
    try:
        check_payload(payload, DECLARED)
    except PeerError:
        return
    assert set(parse(payload)) <= {*DECLARED} | {name for name in parse(payload) if name.startswith("$")}


@pytest.mark.parametrize("payload", [[2, {}], [1], [1, {"counts": [[["a", "b"]]]}], {"version": 1}, 7])
def test_other_versions_and_other_things_are_refused(payload: object) -> None:
    with pytest.raises(PeerError, match="changes of PStates"):
        check_payload(msgspec.msgpack.encode(payload), DECLARED)
