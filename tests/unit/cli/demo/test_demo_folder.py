"""What the demo leaves behind: nothing, unless there is something to look at."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import pytest

from stretto.cli.demo import demo as command
from stretto.errors import StrettoError, UsageError


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where folders are made that nobody asked to keep."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def runs(monkeypatch: pytest.MonkeyPatch, ends: bool | Exception) -> None:
    """Let the demo end in this way: with a verdict, or with what went wrong."""

    def run(cluster: Any, _: float) -> bool:
        (cluster.folder / "logs").mkdir()
        if isinstance(ends, Exception):
            raise ends
        return ends

    monkeypatch.setattr(command, "_run", run)


def test_a_demo_that_went_well_or_was_asked_for_wrongly_leaves_nothing(
    temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs(monkeypatch, True)
    assert command.demo() == 0
    runs(monkeypatch, UsageError("port 7400 is in use"))
    with pytest.raises(UsageError):
        command.demo()
    assert list(temporary.iterdir()) == []


def test_a_demo_that_failed_leaves_its_logs_and_says_where(
    temporary: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    runs(monkeypatch, StrettoError("the cluster does not answer"))
    with pytest.raises(StrettoError) as failed:
        command.demo()
    [folder] = temporary.iterdir()
    assert (folder / "logs").is_dir()
    assert str(failed.value) == f"the cluster does not answer; its data and logs are in {folder}"
    runs(monkeypatch, StrettoError(f"see the logs in {folder}/logs"))
    with pytest.raises(StrettoError, match=r"^see the logs in .*/logs"):
        command.demo(data_dir=folder.parent / "kept")
    runs(monkeypatch, False)
    assert command.demo() == 1
    [lost] = set(temporary.iterdir()) - {folder, folder.parent / "kept"}
    assert capsys.readouterr().out.endswith(f"Its data and logs are in {lost}\n")
