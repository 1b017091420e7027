"""``stretto snapshot`` without a cluster, and what it shows."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from stretto import control
from stretto.cli.deploying.snapshot import render
from stretto.snapshot.manifest import MANIFEST, file_of
from stretto.vocabulary.types import TaskId
from tests.support.commands import stretto
from tests.unit.cli.test_inspecting import shown
from tests.unit.snapshot.snapshots import made


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made(tmp_path / "bank" / "one", tmp_path / "state")
    return tmp_path / "bank" / "one"


def test_a_folder_is_verified_without_a_cluster(folder: Path) -> None:
    done = stretto("snapshot", "verify", str(folder))
    assert (done.code, done.err) == (0, "")
    assert "bank/one: all 2 tasks are as they were cut" in done.out
    told = json.loads(stretto("snapshot", "verify", str(folder), "--json").out)
    assert [(task["task"], task["why"]) for task in told["tasks"]] == [(0, ""), (1, "")]


def test_damage_is_told_by_task_and_exits_1(folder: Path) -> None:
    file_of(folder, TaskId(1)).unlink()
    done = stretto("snapshot", "verify", str(folder))
    assert done.code == 1
    assert "! task 1: its file is missing" in done.out
    assert "good" in done.out
    (folder / MANIFEST).unlink()
    done = stretto("snapshot", "verify", str(folder))
    assert (done.code, "is no snapshot: it has no manifest.json" in done.err) == (1, True)


@pytest.mark.parametrize(
    ("args", "code", "sentence"),
    [
        (("verify", "/nowhere/at/all"), 2, "there is no folder /nowhere/at/all; check the path"),
        (("restore", "some/other/folder"), 2, "there is no folder some/other/folder"),
        (("create", "bank"), 2, "'stretto snapshot create' needs --to DIR: a folder that all nodes"),
        (("create", "bank", "--to", ".", "--retain", "0"), 2, "--retain"),
    ],
)
def test_what_cannot_be_is_refused_in_a_sentence(args: tuple[str, ...], code: int, sentence: str) -> None:
    done = stretto("snapshot", *args, "--bootstrap", "127.0.0.1:1")
    assert (done.code, sentence in done.err) == (code, True), done


def test_snapshots_are_listed_with_where_they_are() -> None:
    views = [
        control.SnapshotView(
            module="bank", name="one", folder="/b/bank/one", state=state, at_ms=0, tasks=4, size_bytes=65_536
        )
        for state in ("complete", "creating")
    ]
    lines = shown(render(views)).splitlines()
    assert lines[0].split() == ["module", "name", "made", "at", "state", "tasks", "bytes", "folder"]
    assert lines[2].split()[4:] == ["complete", "4", "65,536", "/b/bank/one"]
    assert lines[3].split()[4:] == ["creating", "4", "-", "/b/bank/one"]
    assert "stretto snapshot create M --to DIR" in shown(render([]))
