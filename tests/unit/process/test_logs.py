"""Logs of daemons, where they cannot be written, and where peers could fill them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import structlog

from stretto.process.logs import Sparing
from stretto.supervisor import children
from stretto.supervisor.children import bound_logs

_SAYS_SOMETHING = """
import structlog
from stretto.process import logs
logs.configure()
structlog.get_logger().info("something")
print("lives on")
"""


def test_a_daemon_outlives_a_full_disk_that_its_log_is_on() -> None:
    with open("/dev/full", "w") as full:
        ran = subprocess.run(
            [sys.executable, "-c", _SAYS_SOMETHING], stdout=subprocess.PIPE, stderr=full, check=False
        )
    assert ran.stdout == b"lives on\n"


def test_a_log_that_is_being_written_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(children, "LOG_BYTES_MAX", 1_000)
    small = tmp_path / "small.log"
    small.write_text("short\n")
    with (tmp_path / "worker.log").open("ab", buffering=0) as log:
        log.write(b"before\n" * 200)
        bound_logs(tmp_path)
        log.write(b"after\n")
        assert (tmp_path / "worker.log").read_bytes() == b"after\n"
    assert (tmp_path / "worker.log.1").read_bytes() == b"before\n" * 200
    assert small.read_text() == "short\n"


def test_a_log_is_bounded_although_nothing_of_it_can_be_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(children, "LOG_BYTES_MAX", 1_000)
    (tmp_path / "worker.log").write_bytes(b"before\n" * 200)
    # A full disk, of which a page may be there but no more.
    (tmp_path / "worker.log.1").symlink_to("/dev/full")
    bound_logs(tmp_path)
    assert (tmp_path / "worker.log").read_bytes() == b""


def test_what_peers_can_repeat_is_logged_once_in_a_while_with_how_often() -> None:
    with structlog.testing.capture_logs() as lines:
        patient, hasty = Sparing(structlog.get_logger(), 1_000), Sparing(structlog.get_logger(), 0)
        for _ in range(3):
            patient.warning("connection_shut", why="a")
        patient.warning("malformed_message")
        for _ in range(2):
            hasty.warning("not_for_us")
    told = [(line["event"], line["times"]) for line in lines]
    assert told == [("connection_shut", 1), ("malformed_message", 1), ("not_for_us", 1), ("not_for_us", 1)]
