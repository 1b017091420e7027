"""``stretto replog dump|verify``: what they print, and that they change nothing."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from stretto import cli
from stretto.cli.inspecting.replog import app
from stretto.replog.folder import OsFolder
from stretto.replog.intent import INTENT_NAME, Change, Intent, _encode
from stretto.replog.log import Replog
from stretto.replog.segment import SEGMENT_HEADER_BYTES, segment_name
from stretto.vocabulary.types import Offset
from tests.support.frames import make_frame

FRAME_BYTES = 75
FIRST, SECOND, LAST = (segment_name(Offset(base)) for base in (0, 10, 20))


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """Three segments: [0, 10), [10, 20), [20, 24), two entries per frame, a new epoch at 8 and at 20."""
    log = Replog.open(OsFolder(tmp_path), segment_bytes=400)
    for offset in range(0, 24, 2):
        epoch = 1 + (offset >= 8) + (offset >= 20)
        log.append([make_frame(offset, count=2, epoch=epoch)])
        log.sync()
    log.close()
    return tmp_path


class Stretto:
    """Runs the command in this process."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys
        self.out = ""
        self.err = ""

    def __call__(self, *args: object) -> int:
        with pytest.raises(SystemExit) as stopped:
            cli.main([str(arg) for arg in args])
        self.out, self.err = self._capsys.readouterr()
        assert isinstance(stopped.value.code, int)
        return stopped.value.code


@pytest.fixture
def stretto(capsys: pytest.CaptureFixture[str]) -> Stretto:
    return Stretto(capsys)


def snapshot(directory: Path) -> dict[str, tuple[bytes, int]]:
    return {path.name: (path.read_bytes(), path.stat().st_mtime_ns) for path in directory.iterdir()}


def flip(path: Path, position: int) -> None:
    content = bytearray(path.read_bytes())
    content[position] ^= 4
    path.write_bytes(content)


def test_verify_reports_each_segment(directory: Path, stretto: Stretto) -> None:
    assert stretto("replog", "verify", directory) == 0
    lines = stretto.out.splitlines()
    assert lines[0].split() == ["segment", "offsets", "frames", "entries", "bytes", "state"]
    assert lines[1].split() == [FIRST, "[0,", "10)", "5", "10", "439", "ok"]
    assert lines[3].split() == [LAST, "[20,", "24)", "2", "4", "214", "ok"]
    assert lines[-1] == "12 frames, 24 entries, 1092 bytes in [0, 24): all good"
    assert stretto.err == ""


def test_verify_as_json_is_one_object(directory: Path, stretto: Stretto) -> None:
    assert stretto("replog", "verify", directory, "--json") == 0
    report = json.loads(stretto.out)
    assert (report["ok"], report["start_offset"], report["end_offset"]) == (True, 0, 24)
    assert [segment["epochs"] for segment in report["segments"]] == [[[1, 0], [2, 8]], [], [[3, 20]]]
    assert (report["notes"], report["corruptions"]) == ([], [])


def test_verify_finds_a_flipped_bit_in_a_sealed_segment_with_its_place(
    directory: Path, stretto: Stretto
) -> None:
    flip(directory / SECOND, SEGMENT_HEADER_BYTES + 2 * FRAME_BYTES + 66)
    assert stretto("replog", "verify", directory) == 1
    place = f"segment {SECOND}, offset 14, byte {SEGMENT_HEADER_BYTES + 2 * FRAME_BYTES}"
    assert f"corrupt: {place}: the payload does not match its checksum" in stretto.out
    assert stretto.out.splitlines()[3].endswith("ok"), "the next segment is verified all the same"
    assert stretto("replog", "verify", directory, "--json") == 1
    (found,) = json.loads(stretto.out)["corruptions"]
    assert (found["segment"], found["offset"], found["position"]) == (SECOND, 14, 214)


def test_verify_notes_a_torn_tail_and_exits_with_0(directory: Path, stretto: Stretto) -> None:
    path = directory / LAST
    path.write_bytes(path.read_bytes()[:-5])
    assert stretto("replog", "verify", directory) == 0
    note = (
        f"note: segment {LAST} ends with 70 bytes of an unfinished write at byte 139; the next open cuts them"
    )
    assert note in stretto.out


def test_verify_names_a_missing_segment(directory: Path, stretto: Stretto) -> None:
    (directory / SECOND).unlink()
    assert stretto("replog", "verify", directory) == 1
    assert f"segment {FIRST}, offset 10, byte 439: the next segment begins at offset 20" in stretto.out


def test_verify_names_a_damaged_segment_header(directory: Path, stretto: Stretto) -> None:
    flip(directory / LAST, 3)
    assert stretto("replog", "verify", directory) == 1
    assert f"segment {LAST}, offset 20, byte 0: the segment header" in stretto.out


@pytest.mark.parametrize(
    ("intent", "entries"),
    [
        (Intent(change=Change.TRUNCATE, offset=Offset(14), position=214), 14),
        (Intent(change=Change.CUT, offset=Offset(20)), 4),
        (Intent(change=Change.RESET, offset=Offset(90)), 0),
    ],
    ids=["truncate", "cut", "reset"],
)
def test_verify_notes_an_interrupted_change_and_looks_at_what_it_leaves(
    directory: Path, stretto: Stretto, intent: Intent, entries: int
) -> None:
    (directory / INTENT_NAME).write_bytes(_encode(intent))
    if intent.change is not Change.CUT:
        (directory / LAST).unlink()
    assert stretto("replog", "verify", directory) == 0
    kind = intent.change.name.lower()
    note = f"note: a {kind} at offset {intent.offset} was interrupted; the next open finishes it"
    assert note in stretto.out
    assert f"{entries} entries" in stretto.out


def test_dump_lists_the_frames(directory: Path, stretto: Stretto) -> None:
    assert stretto("replog", "dump", directory) == 0
    lines = stretto.out.splitlines()
    assert lines[0] == f"segment {FIRST}"
    assert lines[1].split() == [
        "offsets", "epoch", "kind", "task", "producer", "sequence", "bytes", "time",
    ]  # fmt: skip
    assert lines[2].split() == [
        "[0,", "2)", "1", "depot", "3", "77", "0", "75", "2023-11-14", "22:13:20.000Z",
    ]  # fmt: skip
    assert sum(line.startswith("  [") for line in lines) == 12


def test_dump_begins_with_the_frame_that_holds_the_offset_and_stops_at_the_limit(
    directory: Path, stretto: Stretto
) -> None:
    assert stretto("replog", "dump", directory, "--from", 9, "--limit", 3, "--json") == 0
    rows = [json.loads(line) for line in stretto.out.splitlines()]
    assert [row["offset"] for row in rows] == [8, 10, 12]
    assert rows[1] == {
        "segment": SECOND,
        "position": SEGMENT_HEADER_BYTES,
        "bytes": FRAME_BYTES,
        "offset": 10,
        "end_offset": 12,
        "epoch": 2,
        "kind": "depot",
        "task": 3,
        "producer": 77,
        "sequence": 10,
        "timestamp_ms": 1_700_000_000_000,
    }
    assert stretto("replog", "dump", directory, "--from", 24) == 0
    assert stretto.out == ""


def test_dump_stops_at_corruption_with_its_place(directory: Path, stretto: Stretto) -> None:
    flip(directory / FIRST, SEGMENT_HEADER_BYTES + FRAME_BYTES + 1)
    assert stretto("replog", "dump", directory) == 1
    assert "[0, 2)" in stretto.out
    assert f"segment {FIRST} is corrupt at byte 139 (entry offset 2)" in stretto.err
    assert len(stretto.err.splitlines()) == 1


@pytest.mark.parametrize("verb", ["dump", "verify"])
def test_looking_changes_nothing(directory: Path, stretto: Stretto, verb: str) -> None:
    path = directory / LAST
    path.write_bytes(path.read_bytes()[:-5])
    (directory / f"{LAST}.tmp").touch()
    (directory / INTENT_NAME).write_bytes(_encode(Intent(change=Change.CUT, offset=Offset(10))))
    before = snapshot(directory)
    assert stretto("replog", verb, directory) == 0
    assert snapshot(directory) == before


@pytest.mark.parametrize("verb", ["dump", "verify"])
def test_a_folder_that_is_missing_or_no_replog_is_told_in_one_sentence(
    tmp_path: Path, stretto: Stretto, verb: str
) -> None:
    for directory, what in ((tmp_path / "absent", "is not a folder"), (tmp_path, "there is no replog")):
        assert stretto("replog", verb, directory) == 1
        assert what in stretto.err
        assert len(stretto.err.splitlines()) == 1
        assert stretto.out == ""


def test_bad_usage_exits_with_2(directory: Path, stretto: Stretto) -> None:
    assert stretto("replog", "verify") == 2
    assert stretto("replog", "dump", directory, "--limit", 0) == 2
    assert stretto("replog", "dump", directory, "--from", "x") == 2


def test_verify_runs_as_an_app_of_its_own(directory: Path) -> None:
    result = CliRunner().invoke(app, ["verify", str(directory)])
    assert result.exit_code == 0
    assert "all good" in result.output


def test_verify_runs_as_a_command(directory: Path) -> None:
    flip(directory / LAST, -1)
    command = [sys.executable, "-m", "stretto", "replog", "verify", str(directory)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert f"corrupt: segment {LAST}, offset 22, byte 139" in done.stdout
    assert done.stderr == ""
