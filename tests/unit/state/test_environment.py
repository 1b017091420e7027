from __future__ import annotations

import errno
import os
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING

import lmdb
import pytest

from stretto.errors import StorageError
from stretto.state import environment as environment_module
from stretto.state.applied import AppliedState
from stretto.state.environment import Environment, NoSpace, StateCorrupt, WouldWait
from stretto.vocabulary.records import DepotOffset, RecordBatch
from stretto.vocabulary.types import TaskId
from tests.support.entries import Log

if TYPE_CHECKING:
    from stretto.state.environment import Database

MAP_BYTES = 128 * 1024
DEADLINE_S = 30


@pytest.fixture
def environment(tmp_path: Path) -> Iterator[Environment]:
    environment = Environment(tmp_path / "env", map_bytes=MAP_BYTES)
    yield environment
    environment.close()


def put(environment: Environment, key: bytes, value: bytes) -> Database:
    def change(txn: lmdb.Transaction[bytes]) -> Database:
        database = environment.open_db("things", txn)
        txn.put(key, value, db=database)
        return database

    return environment.write(change, size_bytes=len(value))


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.001)


@contextmanager
def running(target: Callable[[], object]) -> Iterator[threading.Thread]:
    thread = threading.Thread(target=target)
    thread.start()
    yield thread
    thread.join(DEADLINE_S)
    assert not thread.is_alive()


@contextmanager
def other_process(folder: Path, code: str) -> Iterator[subprocess.Popen[str]]:
    """Runs ``code`` with ``env`` open: it has run when the block begins, and is killed when it ends."""
    setup = f"import lmdb, sys\nenv = lmdb.open({str(folder)!r}, max_dbs=4, map_size={MAP_BYTES})\n"
    tail = "\nprint('ready', flush=True)\nsys.stdin.read()"
    with subprocess.Popen(
        [sys.executable, "-c", setup + code + tail],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        yield process
        process.send_signal(signal.SIGKILL)


# Growth.


def test_a_full_map_grows_until_the_transaction_fits(environment: Environment) -> None:
    runs: list[int] = []

    def change(txn: lmdb.Transaction[bytes]) -> None:
        runs.append(1)
        txn.put(b"key", bytes(10 * MAP_BYTES))

    environment.write(change)
    assert len(runs) > 2
    with environment.reading() as txn:
        assert bytes(txn.get(b"key", b"")) == bytes(10 * MAP_BYTES)


def test_a_map_is_opened_with_room_to_grow(tmp_path: Path) -> None:
    environment = Environment(tmp_path / "env", map_bytes=MAP_BYTES)
    put(environment, b"key", bytes(10 * MAP_BYTES))
    environment.close()
    environment = Environment(tmp_path / "env", map_bytes=MAP_BYTES)
    assert environment._map_bytes() >= 20 * MAP_BYTES
    environment.close()


def test_growth_waits_for_readers_and_comes_before_those_that_come_later(environment: Environment) -> None:
    database = put(environment, b"key", b"old")
    later: list[bytes] = []
    begun = threading.Event()

    def read_later() -> None:
        begun.set()
        with environment.reading() as txn:
            later.append(bytes(txn.get(b"key", b"", db=database)))

    with ExitStack() as first:
        txn = first.enter_context(environment.reading())
        with running(lambda: put(environment, b"key", bytes(4 * MAP_BYTES))) as writer:
            wait_for(lambda: environment._gate._alone == 1)
            with running(read_later) as reader:
                begun.wait(DEADLINE_S)
                # The map cannot change under the first reader, who sees what it saw.
                assert bytes(txn.get(b"key", b"", db=database)) == b"old"
                assert environment._map_bytes() == MAP_BYTES
                assert writer.is_alive()
                assert reader.is_alive()
                assert later == []
                first.close()
    # Growth went first, but the transaction that needed it did not have to.
    assert later in ([b"old"], [bytes(4 * MAP_BYTES)])
    with environment.reading() as txn:
        assert bytes(txn.get(b"key", b"", db=database)) == bytes(4 * MAP_BYTES)


def test_maps_grow_under_concurrent_readers_who_always_see_whole_states(tmp_path: Path) -> None:
    task = TaskId(0)
    state = AppliedState.open(tmp_path, [task], map_bytes=64 * 1024)
    log = Log()
    done = threading.Event()
    failures: list[BaseException] = []
    seen = [0, 0, 0]

    def read(reader: int) -> None:
        try:
            while not done.is_set():
                _, end = state.depot_bounds(task, "events")
                got = state.read_depot(task, "events", DepotOffset(0), max_bytes=1 << 40, max_records=end)
                found = [r for batch in got.batches for r in RecordBatch.parse(batch.payload).records()]
                assert found == [b"%0200d" % number for number in range(got.end)]
                assert end >= seen[reader]
                seen[reader] = end
                state.digest(task)
        except BaseException as error:  # noqa: BLE001 - shown by the test
            failures.append(error)

    threads = [threading.Thread(target=read, args=(reader,)) for reader in range(3)]
    # The depot is there before anybody reads: a digest is of a moment between two calls of apply(), and knows
    # no database that was made since it began.
    state.apply([log.depot([b"%0200d" % number for number in range(100)])])
    for thread in threads:
        thread.start()
    for number in range(100, 4_000, 100):
        state.apply([log.depot([b"%0200d" % (number + index) for index in range(100)])])
    wait_for(lambda: bool(failures) or min(seen) > 0)
    done.set()
    for thread in threads:
        thread.join(DEADLINE_S)
    assert failures == []
    assert state._tasks[task].environment._map_bytes() >= 1024 * 1024
    assert state.depot_bounds(task, "events") == (0, 4000)
    state.close()


def test_a_long_read_first_makes_room_for_as_much_again(environment: Environment) -> None:
    put(environment, b"key", bytes(MAP_BYTES * 3 // 5))
    with environment.reading(long=True):
        assert environment._map_bytes() == 2 * MAP_BYTES
        put(environment, b"other", bytes(MAP_BYTES // 2))


@pytest.mark.parametrize("first", ["read", "write"])
def test_a_map_that_another_process_grew_is_adopted(environment: Environment, first: str) -> None:
    database = put(environment, b"key", b"old")
    grow = (
        f"env.set_mapsize({64 * MAP_BYTES})\n"
        "with env.begin(write=True) as txn:\n"
        f"    txn.put(b'key', bytes({20 * MAP_BYTES}), db=env.open_db(b'things', txn=txn))\n"
    )
    with other_process(environment.folder, grow):
        if first == "write":
            put(environment, b"other", b"value")
        with environment.reading() as txn:
            assert bytes(txn.get(b"key", b"", db=database)) == bytes(20 * MAP_BYTES)
        put(environment, b"key", b"new")
        with environment.reading() as txn:
            assert bytes(txn.get(b"key", b"", db=database)) == b"new"


def test_a_map_that_cannot_grow_fails_for_good_with_a_sentence(environment: Environment) -> None:
    for _ in range(2):
        with pytest.raises(StorageError, match=r"cannot grow to \d+ bytes .*; raise the limit of address"):
            environment._resize(1 << 60)
    with pytest.raises(StorageError, match="cannot grow"), environment.reading():
        pass


# Readers that died.

_HOLD_A_READ = "txn = env.begin()\ntxn.get(b'key')\n"


def reader_pids(environment: Environment) -> set[int]:
    lines = environment._env.readers().splitlines()[1:]
    return {int(line.split()[0]) for line in lines if line.strip()}


def test_the_slot_of_a_killed_reader_is_cleared_by_the_next_sync(environment: Environment) -> None:
    with other_process(environment.folder, _HOLD_A_READ) as process:
        environment.sync()
        assert process.pid in reader_pids(environment)
    assert process.pid in reader_pids(environment)
    environment.sync()
    assert process.pid not in reader_pids(environment)


def test_the_slot_of_a_killed_reader_is_cleared_when_the_file_is_opened(tmp_path: Path) -> None:
    folder = tmp_path / "env"
    Environment(folder).close()
    # Another process keeps the lock file in use, else LMDB would begin a new one.
    with other_process(folder, "") as keeper:
        with other_process(folder, _HOLD_A_READ) as process:
            pass
        raw = lmdb.open(str(folder))
        assert str(process.pid) in raw.readers()
        raw.close()
        environment = Environment(folder)
        assert process.pid not in reader_pids(environment)
        environment.close()
        assert keeper.poll() is None


def test_slots_of_killed_readers_are_cleared_when_there_is_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(environment_module, "MAX_READERS", 2)
    environment = Environment(tmp_path / "env")
    with (
        other_process(environment.folder, _HOLD_A_READ + "other = env.begin()\n"),
        pytest.raises(StorageError, match="all 2 readers it may have"),
        environment.reading(),
    ):
        pass
    with environment.reading():
        pass
    environment.close()


# Errors.


def test_a_full_disk_is_told_before_anything_is_written_and_may_be_tried_again(
    environment: Environment, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(environment_module, "PLENTY_BYTES", 1 << 60)
    database = put(environment, b"key", b"old")
    with monkeypatch.context() as patch:
        patch.setattr(os, "statvfs", lambda _: SimpleNamespace(f_bavail=4096, f_frsize=4096))
        with pytest.raises(NoSpace, match=r"is full \(16777216 bytes left\); free some space"):
            put(environment, b"key", b"new")
        with environment.reading() as txn:
            assert bytes(txn.get(b"key", b"", db=database)) == b"old"
    put(environment, b"key", b"new")


def test_where_there_was_plenty_of_space_a_moment_ago_it_is_not_looked_at_for_each_write(
    environment: Environment, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks: list[float] = []

    def look(_: Path) -> SimpleNamespace:
        looks.append(time.monotonic())
        return SimpleNamespace(f_bavail=environment_module.PLENTY_BYTES, f_frsize=2)

    monkeypatch.setattr(os, "statvfs", look)
    began = time.monotonic()
    while len(looks) < 3:
        put(environment, b"key", b"value")
    assert time.monotonic() - began >= 2 * environment_module.PLENTY_SECONDS
    environment.write(lambda _: None, size_bytes=environment_module.SPARE_BYTES)
    assert len(looks) == 4, "a large write is not made without a look"


def test_a_failed_write_is_not_tried_again(environment: Environment) -> None:
    put(environment, b"key", b"old")
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (MAP_BYTES // 2, hard))
    try:
        with pytest.raises(StorageError, match="failed to write"):
            put(environment, b"key", bytes(MAP_BYTES * 3 // 4))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, handler)
    with pytest.raises(StorageError, match="failed to write"):
        put(environment, b"key", b"new")


def test_what_the_transaction_raises_undoes_it(environment: Environment) -> None:
    database = put(environment, b"key", b"old")

    def change(txn: lmdb.Transaction[bytes]) -> None:
        txn.put(b"key", b"new", db=database)
        raise ValueError

    with pytest.raises(ValueError):  # noqa: PT011 - ours
        environment.write(change)
    with environment.reading() as txn:
        assert bytes(txn.get(b"key", b"", db=database)) == b"old"


@pytest.mark.parametrize(
    ("error", "kind", "sentence"),
    [
        (lmdb.CorruptedError("x"), StateCorrupt, "is damaged"),
        (lmdb.InvalidError("x"), StateCorrupt, "is damaged"),
        (lmdb.DiskError("x"), NoSpace, "is full; free some space"),
        (lmdb.ReadonlyError("x"), StorageError, "is read-only; make it writable"),
        (OSError(errno.EROFS, "x"), StorageError, "is read-only; make it writable"),
        (lmdb.VersionMismatchError("x"), StorageError, "has a format of another LMDB"),
        (lmdb.DbsFullError("x"), StorageError, "has all 1024 databases"),
        (OSError(errno.EIO, "x"), StorageError, "failed to open"),
    ],
)
def test_an_error_at_opening_is_a_sentence(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    error: Exception,
    kind: type[StorageError],
    sentence: str,
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(lmdb, "open", refuse)
    with pytest.raises(kind, match=sentence):
        Environment(tmp_path / "env")


def test_a_file_that_is_no_state_is_damage(tmp_path: Path) -> None:
    (tmp_path / "env").mkdir()
    (tmp_path / "env" / "data.mdb").write_bytes(b"nonsense" * 2000)
    with pytest.raises(StateCorrupt, match=r"is damaged: .*not an LMDB file"):
        Environment(tmp_path / "env")


def test_who_must_not_wait_is_sent_away_while_the_map_is_to_change(environment: Environment) -> None:
    database = put(environment, b"key", b"old")

    def look_up() -> list[bytes | None]:
        return environment.look_up([b"key"], database, (b"none", database), max_bytes=1, wait=False)[1]

    with ExitStack() as first:
        first.enter_context(environment.reading())
        assert look_up() == [b"old"]
        with running(lambda: put(environment, b"key", bytes(4 * MAP_BYTES))):
            wait_for(lambda: environment._gate._alone == 1)
            with pytest.raises(WouldWait):
                look_up()
            first.close()
    assert look_up() == [bytes(4 * MAP_BYTES)]


def test_what_fills_a_look_up_is_the_last_of_it(environment: Environment) -> None:
    database = put(environment, b"a", b"123")
    put(environment, b"b", b"456")
    keys = (b"a", b"none", b"b", b"a")
    for max_bytes, expected in ((1, [b"123"]), (3, [b"123"]), (4, [b"123", None, b"456"])):
        for wait in (False, True):
            found = environment.look_up(keys, database, (b"b", database), max_bytes=max_bytes, wait=wait)
            assert found == (b"456", expected)


def test_a_folder_inside_a_file_cannot_be_opened(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StorageError, match="failed to open"):
        Environment(tmp_path / "file" / "env")


def test_closing_waits_for_the_reads_that_are_running(tmp_path: Path) -> None:
    environment = Environment(tmp_path / "env", map_bytes=MAP_BYTES)
    database = put(environment, b"key", b"value")
    with environment.reading() as txn:
        closing = threading.Thread(target=environment.close)
        closing.start()
        wait_for(lambda: environment._gate._alone == 1)
        assert bytes(txn.get(b"key", b"", db=database)) == b"value"
    closing.join(DEADLINE_S)
    assert not closing.is_alive()
    with pytest.raises(StorageError, match="is closed"), environment.reading():
        pass


def test_a_file_that_stands_is_one_state_however_much_is_written_meanwhile(tmp_path: Path) -> None:
    """Pages that were free may be written to while the file is copied; those of the state are not."""
    environment = Environment(tmp_path / "env")
    keys = [b"%03d" % number for number in range(200)]
    for _ in range(3):
        for key in keys:
            put(environment, key, b"old" * 100)
    with environment.standing() as file:
        for value in (b"new", b"newer", b"newest"):
            for key in keys:
                put(environment, key, value * 100)
        content = file.path.read_bytes()
    environment.close()
    copied = tmp_path / "copied"
    copied.mkdir()
    (copied / "data.mdb").write_bytes(file.head + content[len(file.head) : file.size_bytes])
    verified = subprocess.run(
        [sys.executable, "-m", "lmdb", "verify", "-e", str(copied)], capture_output=True, check=False
    )
    assert verified.returncode == 0, verified.stdout
    with lmdb.open(str(copied), max_dbs=10, readonly=True) as env, env.begin() as txn:
        database = env.open_db(b"things", txn=txn, create=False)
        assert list(txn.cursor(database)) == [(key, b"old" * 100) for key in keys]


def test_a_file_that_stands_waits_for_who_writes(environment: Environment) -> None:
    """Its first pages are read when nobody is about to change them."""
    begun, go_on, sizes = threading.Event(), threading.Event(), []

    def change(txn: lmdb.Transaction[bytes]) -> None:
        begun.set()
        assert go_on.wait(DEADLINE_S)
        txn.put(b"key", b"value", db=environment.open_db("things", txn))

    def stand() -> None:
        with environment.standing() as file:
            sizes.append(file.size_bytes)

    with running(lambda: environment.write(change)):
        assert begun.wait(DEADLINE_S)
        with running(stand):
            go_on.set()
    assert sizes == [environment.size_bytes]


def test_who_comes_while_a_state_is_closed_does_not_wait_for_who_still_reads(tmp_path: Path) -> None:
    """An image is copied for minutes; the threads that apply and read have other groups to serve."""
    state = AppliedState.open(tmp_path, [TaskId(0)])
    log = Log()
    log.depot([b"a"])
    state.apply(log.frames)
    environment = state._task(TaskId(0)).environment
    gate, meta = environment._gate, state._task(TaskId(0))._meta
    with ExitStack() as closing, environment.reading():
        closing.enter_context(running(state.close))
        wait_for(lambda: gate._alone == 1)
        log.depot([b"b"])
        for late in (
            lambda: state.apply(log.frames[1:]),
            state.checkpoint,
            state.clear_readers,
            lambda: state.transaction(TaskId(0)),
            lambda: state.depot_bounds(TaskId(0), "events"),
            lambda: environment.look_up((), meta, (b"", meta), max_bytes=1, wait=False),
            state.hold,
        ):
            with pytest.raises(StorageError, match="is closed"):
                late()


def test_who_waits_for_a_map_that_grows_is_told_when_it_is_closed(environment: Environment) -> None:
    database = put(environment, b"k", b"v")
    refused: list[str] = []

    def read() -> None:
        with pytest.raises(StorageError, match="is closed"), environment.reading() as txn:
            txn.get(b"k", db=database)
        refused.append("read")

    with ExitStack() as others, environment.reading():
        others.enter_context(running(lambda: grow(environment)))
        wait_for(lambda: environment._gate._alone == 1)
        others.enter_context(running(read))
        others.enter_context(running(environment.close))
        wait_for(lambda: refused == ["read"])


def grow(environment: Environment) -> None:
    with pytest.raises(StorageError, match="is closed"):
        environment._resize(MAP_BYTES * 2)
