from __future__ import annotations

import time
from datetime import UTC, datetime

import pytest

from stretto.cli.data.tail import _as_line, _millis
from stretto.errors import UsageError


@pytest.mark.parametrize(("text", "seconds"), [("90s", 90), ("10m", 600), ("1.5h", 5_400), ("2d", 172_800)])
def test_a_time_can_be_how_long_ago_it_was(text: str, seconds: float) -> None:
    before = time.time()
    found = _millis(text) / 1_000
    assert before - seconds - 0.001 <= found <= time.time() - seconds


def test_a_time_with_a_zone_means_that_moment_and_without_one_it_is_local() -> None:
    assert _millis("2026-01-31T12:00:00+01:00") == datetime(2026, 1, 31, 11, tzinfo=UTC).timestamp() * 1_000
    assert _millis("2026-01-31T12:00") == datetime(2026, 1, 31, 12).astimezone().timestamp() * 1_000


@pytest.mark.parametrize("text", ["soon", "10", "10 m", "-5m", "2026-13-01"])
def test_what_is_no_time_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="is no time; write one as"):
        _millis(text)


@pytest.mark.parametrize(
    ("record", "line"),
    [
        (b'{"a":  1.50}', b'{"a":  1.50}'),
        (b'{\n  "a": 1.50\n}', b'{"a":1.50}'),
        (b"two\nlines", b"two\\nlines"),
        (b"\xff\n\xfe", b"\xff\\n\xfe"),
    ],
)
def test_a_record_is_one_line_and_otherwise_as_it_was(record: bytes, line: bytes) -> None:
    assert _as_line(record) == line
