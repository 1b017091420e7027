"""Processes that a test's subject started, told from those that others of this test process did."""

from __future__ import annotations

from pathlib import Path


def children() -> set[int]:
    """Of this process, at this moment."""
    files = Path("/proc/self/task").glob("*/children")
    return {int(pid) for file in files for pid in file.read_text().split()}
