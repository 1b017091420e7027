"""Logs of daemons, page by page from their end."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from stretto.control import Log, LogLevel, LogPage
from stretto.errors import StrettoError
from stretto.process import log_pages
from stretto.process.logs import Recent

TIME = "2026-01-01T00:00:00Z"


def said(number: int, level: str = "info", **fields: object) -> bytes:
    line = {"event": f"event_{number}", "level": level, "timestamp": TIME, **fields}
    return msgspec.json.encode(line) + b"\n"


def events(page: LogPage) -> list[str]:
    return [line.event for line in page.lines]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "w.log"


def test_pages_go_back_to_the_beginning_and_no_line_is_missed_or_told_twice(file: Path) -> None:
    file.write_bytes(b"".join(said(number) for number in range(95)))
    found: list[str] = []
    before: int | None = None
    while True:
        page = log_pages.of_file(file, Log(before=before, lines_max=10))
        found = events(page) + found
        before = page.earlier
        if before is None:
            break
    assert found == [f"event_{number}" for number in range(95)]


def test_a_span_that_begins_inside_a_line_loses_none(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_pages, "SPAN_BYTES", 250)
    file.write_bytes(b"".join(said(number) for number in range(20)))
    found: list[str] = []
    before: int | None = None
    for _ in range(20):
        page = log_pages.of_file(file, Log(before=before))
        found = events(page) + found
        before = page.earlier
        if before is None:
            break
    assert found == [f"event_{number}" for number in range(20)]


def test_a_level_hides_what_is_below_it_but_never_a_traceback(file: Path) -> None:
    crash = b"Traceback (most recent call last):\nKeyError: 'x'\n"
    file.write_bytes(said(1, "info") + said(2, "warning", group="M/1/0", epoch=3) + crash + said(3, "error"))
    page = log_pages.of_file(file, Log(level=LogLevel.WARNING))
    assert [line.event or line.text for line in page.lines] == [
        "event_2",
        "Traceback (most recent call last):",
        "KeyError: 'x'",
        "event_3",
    ]
    assert page.lines[0].text == "group=M/1/0 epoch=3"
    assert page.lines[0].at == TIME
    assert [line.level for line in page.lines] == [LogLevel.WARNING, None, None, LogLevel.ERROR]
    assert page.earlier is None


def test_a_line_that_is_being_written_is_not_told_yet(file: Path) -> None:
    file.write_bytes(said(1) + said(2)[:-10])
    assert events(log_pages.of_file(file, Log())) == ["event_1"]


def test_a_log_that_was_cut_meanwhile_is_read_from_its_end(file: Path) -> None:
    file.write_bytes(said(1))
    assert events(log_pages.of_file(file, Log(before=1_000_000))) == ["event_1"]


def test_a_log_that_is_not_there_is_told(file: Path) -> None:
    with pytest.raises(StrettoError, match=r"there is no log w\.log here"):
        log_pages.of_file(file, Log())


def test_a_daemon_remembers_the_end_of_what_it_said_and_positions_stay() -> None:
    recent = Recent(bytes_max=1_000)
    for number in range(100):
        event = {"event": f"event_{number}", "level": "info", "timestamp": TIME}
        assert recent(None, "info", event) == event
    first = log_pages.of_memory(recent, Log(lines_max=4))
    assert events(first) == [f"event_{number}" for number in range(96, 100)]
    recent(None, "info", {"event": "later", "level": "info", "timestamp": TIME})
    second = log_pages.of_memory(recent, Log(before=first.earlier, lines_max=100))
    assert events(second)[-1] == "event_95"
    assert second.earlier is None
    assert log_pages.of_memory(recent, Log(before=0)).lines == ()
