"""Exports of a real module: files that any tool reads, which say exactly what they are.

The job runs in the Spark session of the tests, instead of one of its own, except where processes die.
"""

from __future__ import annotations

import csv
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from pyarrow import parquet
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

import stretto.testing
from stretto.cli.data import export as command
from stretto.errors import StrettoError, UsageError
from stretto.examples.wordcount.sentences import sentences
from stretto.examples.wordcount.wordcount import WordCount
from stretto.export import job
from stretto.export.manifest import SUFFIX
from stretto.testing import LaunchedModule
from tests.support.commands import stretto as run

pytestmark = [pytest.mark.soak, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def words() -> Iterator[LaunchedModule]:
    with stretto.testing.cluster(replication_factor=2) as cluster:
        launched = cluster.launch(WordCount, tasks=4, threads=2)
        launched.append("sentences", *islice(sentences(), 300))
        launched.settle()
        yield launched


def arguments(words: LaunchedModule, *args: str) -> list[str]:
    return ["export", "WordCount", *args, "--bootstrap", ",".join(words.cluster.bootstrap)]


@pytest.fixture
def export(words: LaunchedModule, spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """What it printed; on an error, what it said."""

    def run_here(order: job.Order, tell: Callable[[job.Progress], None]) -> job.Done:
        try:
            return job.run(
                order, spark, lambda event: tell(event) if isinstance(event, job.Progress) else None
            )
        except (PySparkException, UsageError) as error:
            failed = job.failure_of(error)
            raise (UsageError if failed.is_usage else StrettoError)(failed.sentence) from None

    monkeypatch.setattr(command, "run_job", run_here)

    def export(*args: str, code: int = 0) -> str:
        done = run(*arguments(words, *args))
        assert done.code == code, done.out + done.err
        return done.err if code else done.out

    return export


def manifest(folder: Path) -> dict[str, Any]:
    read: dict[str, Any] = json.loads(folder.with_name(folder.name + SUFFIX).read_text("utf-8"))
    return read


def test_a_state_is_exported_as_of_one_offset_for_each_group(
    words: LaunchedModule, export: Callable[..., str], tmp_path: Path
) -> None:
    folder = tmp_path / "counts"
    said = export("counts", "--to", str(folder), "--where", "value > 1", "--partition-by", "_task")
    expected = {word: count for word, count in words.counts.items() if count > 1}
    rows = [row for path in folder.rglob("*.parquet") for row in parquet.ParquetFile(path).read().to_pylist()]
    assert {row["key"]: row["value"] for row in rows} == expected
    tasks = {f"_task={task}" for task in range(4)}
    assert {path.name for path in folder.iterdir()} == tasks
    told = manifest(folder)
    assert told["rows"] == len(expected)
    assert f"{len(expected):,} rows" in said
    assert {field["name"] for field in told["schema"]["fields"]} == {"key", "value", "_task", "_apply_offset"}
    offsets = {task["group"]: task["apply_offset"] for task in told["parts"][0]["tasks"]}
    assert {row["_apply_offset"] for row in rows} == set(offsets.values())
    refused = export("counts", "--to", str(folder), "--where", "valu > 1", code=2)
    assert "valu" in refused
    assert len(refused.splitlines()) == 1
    assert manifest(folder) == told
    assert "did you mean counts" in export("cuonts", "--to", str(folder), code=2)


def test_parts_of_a_depot_join_although_leaders_die(
    words: LaunchedModule, export: Callable[..., str], tmp_path: Path
) -> None:
    folder = tmp_path / "sentences"
    args = ("sentences", "--to", str(folder), "--format", "json", "--since", "last")
    export(*args)
    before = manifest(folder)
    words.append("sentences", *islice(sentences(seed=1), 200))
    words.kill_leader()
    words.cluster.heal()
    told = json.loads(export(*args, "--json"))
    assert told == manifest(folder)
    assert [part["rows"] for part in told["parts"]] == [before["rows"], told["rows"] - before["rows"]]
    rows = [json.loads(line) for path in folder.glob("part-*") for line in path.read_text().splitlines()]
    reader = words.client.reader("WordCount", "sentences")
    assert sorted((row["_task"], row["offset"], row["value"]) for row in rows) == sorted(
        (record.task, record.offset, record.data.decode()) for record in reader.read_all()
    )
    for part in told["parts"]:
        assert part["sizes"] == {name: (folder / name).stat().st_size for name in part["files"]}
        assert part["bytes"] == sum(part["sizes"].values())
    assert "no records came since" in export(*args)
    assert manifest(folder) == told
    assert {path.name for path in folder.iterdir()} == {
        name for part in told["parts"] for name in part["files"]
    }
    starts = {task["task"]: task["start"] for task in told["parts"][1]["tasks"]}
    assert starts == {task["task"]: task["end"] for task in before["parts"][0]["tasks"]}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["sentences", f"sentences{SUFFIX}"]


def test_a_snapshot_is_exported_by_its_name(
    words: LaunchedModule, export: Callable[..., str], tmp_path: Path
) -> None:
    name = f"before-{tmp_path.name}"
    to = ("--to", str(tmp_path / "snapshots"), "--name", name)
    made = run("snapshot", "create", "WordCount", *to, "--bootstrap", ",".join(words.cluster.bootstrap))
    assert made.code == 0, made
    before = dict(words.counts.items())
    words.append("sentences", {"user": "ada", "text": "newly"})
    words.settle()
    folder = tmp_path / "counts"
    export("counts", "--to", str(folder), "--at", name, "--where", "key < 'm'")
    rows = parquet.read_table(folder).to_pylist()
    assert {row["key"]: row["value"] for row in rows} == {
        word: count for word, count in before.items() if word < "m"
    }
    told = manifest(folder)
    assert (told["parts"][0]["at"], told["where"]) == (name, "key < 'm'")
    refused = export("counts", "--to", str(folder), "--at", f"{name}s", code=2)
    assert f"has no snapshot {name}s; did you mean {name}?" in refused
    assert len(refused.splitlines()) == 1
    assert manifest(folder) == told


def test_records_become_columns_and_begin_where_a_person_says(
    words: LaunchedModule, export: Callable[..., str], tmp_path: Path
) -> None:
    reader = words.client.reader("WordCount", "sentences")
    records = [record for record in reader.read_all() if record.offset >= 10]
    since = ",".join(f"{task}:10" for task in range(4))
    folder = tmp_path / "sentences"
    args = ("sentences", "--to", str(folder), "--format", "csv", "--since", since)
    export(*args, "--schema", "user STRING, text STRING, _task INT, offset BIGINT")
    with ExitStack() as files:
        rows = [
            row
            for path in folder.glob("*.csv")
            for row in csv.DictReader(files.enter_context(path.open(newline="")))
        ]
    assert sorted(
        (int(row["_task"]), int(row["offset"]), row["user"], row["text"]) for row in rows
    ) == sorted(
        (record.task, record.offset, *(json.loads(record.data)[name] for name in ("user", "text")))
        for record in records
    )
    words.append("sentences", {"user": "ada", "text": "one more"})
    told = manifest(folder)
    more = ("sentences", "--to", str(folder), "--format", "csv", "--since", "last")
    assert "would have _task integer" in export(*more, code=2)
    for schema, why in (
        ("user STRIN", "STRIN"),
        ("user BIGINT, text STRING", "does not fit the schema given"),
    ):
        other = ("sentences", "--to", str(tmp_path / "other"), "--schema", schema)
        refused = export(*other, code=2)
        assert why in refused
        assert len(refused.splitlines()) == 1
    assert manifest(folder) == told
    beyond = export("sentences", "--to", str(tmp_path / "other"), "--since", "0:99999", code=2)
    assert "start is 99999 on task 0, where depot sentences has 0 to" in beyond
    assert sorted(path.name for path in tmp_path.iterdir()) == ["sentences", f"sentences{SUFFIX}"]


def test_an_export_that_is_killed_leaves_the_one_before_and_no_process(
    words: LaunchedModule,
    export: Callable[..., str],
    tmp_path: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    folder = tmp_path / "counts"
    export("counts", "--to", str(folder), "--format", "csv")
    scratch = tmp_path_factory.mktemp("scratch")
    before = manifest(folder)
    line = [
        sys.executable,
        "-m",
        "stretto",
        *arguments(words, "counts", "--to", str(folder), "--format", "csv"),
    ]
    process = subprocess.Popen(
        line, stderr=subprocess.PIPE, start_new_session=True, env={**os.environ, "TMPDIR": str(scratch)}
    )
    beside = tmp_path / ".counts.exporting"
    deadline = time.monotonic() + 600
    while not (beside / "tree").exists() and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.01)
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()
    assert manifest(folder) == before
    stretto.testing.eventually(lambda: not jobs_of(beside), timeout=120, what="the job has ended by itself")
    stretto.testing.eventually(
        lambda: not list(scratch.glob("stretto-export-*")), timeout=60, what="its scratch files are gone"
    )
    export("counts", "--to", str(folder), "--format", "csv")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["counts", f"counts{SUFFIX}"]


def jobs_of(folder: Path) -> list[str]:
    """Orders of jobs that run, if they are to write there."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            line = (entry / "cmdline").read_bytes().decode().split("\0") if entry.name.isdigit() else []
            if "stretto.export.job" in line and str(folder) in Path(line[-2]).read_text():
                found.append(line[-2])
        except OSError:
            continue
    return found
