"""A scan process over the files of a replica, without a cluster: what a pin shows, until when, to whom."""

from __future__ import annotations

import os
import signal
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from msgspec.structs import replace

from stretto.client.reading.scan import PinnedGroup, Scanner
from stretto.errors import PinLost, RetriableError, StrettoError, UsageError
from stretto.network.keys import ClusterKey
from stretto.pstate import ordered
from stretto.pstate.changes import Changes
from stretto.state.applied import AppliedState
from stretto.vocabulary.records import RecordBatch
from stretto.wire.scans import Size
from stretto.worker.scans.pins import PINS_MAX, READ_MS, NoPin, Pins
from stretto.worker.scans.process import ScanProcess
from stretto.worker.scans.protocol import Open
from tests.support.entries import TASKS, Log

LONG_MS = 600_000
SECONDS = 20.0


class Replica:
    """A state that is written here, and scanned there."""

    def __init__(self, folder: Path, process: ScanProcess, key: ClusterKey | None = None) -> None:
        self.folder = folder
        self.process = process
        self.key = key
        self.log = Log()
        self.state = AppliedState.open(folder, TASKS)
        self.applied = 0

    def put(self, task: int, pstate: str, rows: dict[int, bytes]) -> None:
        puts = [(ordered.encode(key), value) for key, value in rows.items()]
        self.log.state(Changes(puts=tuple(puts)), task=task, pstate=pstate)

    def apply(self) -> None:
        self.state.apply(self.log.frames[self.applied :])
        self.applied = len(self.log.frames)

    def pin(self, name: str = "p", *, idle_ms: int = LONG_MS, max_age_ms: int = LONG_MS) -> PinnedGroup:
        with self.state.held(SECONDS) as offset:
            message = Open(0, name, "m/1/0", str(self.folder), TASKS, offset, "a test", idle_ms, max_age_ms)
            self.process.open(message, SECONDS)
        return PinnedGroup(
            pin=name,
            module="m",
            group="m/1/0",
            worker="w0",
            address=self.process.address,
            offset=offset,
            epoch=1,
            version=1,
            tasks=TASKS,
        )

    def scan(self, pinned: PinnedGroup) -> Scanner:
        return Scanner(pinned, self.key, timeout=SECONDS)


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Replica]]:
    with ExitStack() as closing:

        def start(*, key: ClusterKey | None = None, idle_ms: int = LONG_MS) -> Replica:
            process = ScanProcess("w0", "127.0.0.1", key, idle_ms)
            closing.callback(process.end)
            replica = Replica(tmp_path / "state", process, key)
            closing.callback(replica.state.close)
            return replica

        yield start


def rows(scanner: Scanner, task: int, pstate: str, **range_: bytes) -> dict[int, bytes]:
    found = {}
    for page in scanner.rows(task, pstate, **range_):
        key_ends = struct.unpack(f"<{page.count}I", page.key_ends)
        value_ends = struct.unpack(f"<{page.count}I", page.value_ends)
        key_at = value_at = 0
        for key_end, value_end in zip(key_ends, value_ends, strict=True):
            found[ordered.decode(page.keys[key_at:key_end])] = page.values[value_at:value_end]
            key_at, value_at = key_end, value_end
    return found


def test_a_pin_shows_one_offset_on_all_tasks_whatever_is_applied_afterwards(
    start: Callable[..., Replica],
) -> None:
    replica = start()
    first = {number: b"%d" % number for number in range(5_000)}
    for task in TASKS:
        replica.put(task, "counts", first)
    replica.log.depot([b"a", b"b"], depot="events", task=1, timestamp_ms=10)
    replica.apply()
    pinned = replica.pin("first")
    for task in TASKS:
        replica.put(task, "counts", dict.fromkeys(range(2_500, 7_500), b"later"))
        replica.put(task, "new", {1: b"new"})
    replica.log.depot([b"c"], depot="events", task=1, timestamp_ms=20)
    replica.apply()
    second = replica.pin("second")
    assert second.offset > pinned.offset
    with replica.scan(pinned) as scanner, replica.scan(second) as later:
        for task in TASKS:
            assert rows(scanner, task, "counts") == first
            assert rows(scanner, task, "new") == {}
            assert len(rows(later, task, "counts")) == 7_500
            assert rows(later, task, "new") == {1: b"new"}
        assert scanner.bounds(1, "events") == (0, 2)
        assert later.bounds(1, "events") == (0, 3)
        some = rows(scanner, 0, "counts", start=ordered.encode(10), end=ordered.encode(20))
        assert sorted(some) == list(range(10, 20))
        assert list(scanner.rows(0, "none")) == []


def test_depots_are_read_by_offset_and_found_by_time(start: Callable[..., Replica]) -> None:
    replica = start()
    for number in range(300):
        replica.log.depot(
            [b"%d" % number, bytes(40_000)], depot="events", task=2, timestamp_ms=1_000 + number
        )
    replica.apply()
    with replica.scan(replica.pin()) as scanner:
        batches = list(scanner.batches(2, "events"))
        assert [batch.base for batch in batches] == list(range(0, 600, 2))
        records = [RecordBatch.parse(batch.payload).records()[0] for batch in batches]
        assert records == [b"%d" % number for number in range(300)]
        assert [batch.base for batch in scanner.batches(2, "events", 11, 15)] == [10, 12, 14]
        assert list(scanner.batches(2, "events", 600)) == []
        assert list(scanner.batches(0, "events")) == []
        assert scanner.bounds(2, "events") == (0, 600)
        assert scanner.offset_at(2, "events", 1_100) == 200
        assert scanner.offset_at(2, "events", 9_999) == 600
        assert scanner.offset_at(0, "events", 0) == 0


def test_sizes_and_splits_are_told_without_reading_rows(start: Callable[..., Replica]) -> None:
    replica = start()
    replica.put(0, "counts", {number: bytes(30) for number in range(40_000)})
    replica.apply()
    with replica.scan(replica.pin()) as scanner:
        sizes = scanner.sizes()
        assert sizes[1].pstates == {}
        assert sizes[0].depots == {}
        assert isinstance(sizes[0].pstates["counts"], Size)
        assert sizes[0].pstates["counts"].rows == 40_000
        assert sizes[0].pstates["counts"].bytes > 40_000 * 30
        cuts = scanner.splits(0, "counts", 4)
        assert len(cuts) == 3
        parts = [
            len(rows(scanner, 0, "counts", start=a, end=b))
            for a, b in zip([b"", *cuts], [*cuts, b"\xff"], strict=True)
        ]
        assert sum(parts) == 40_000
        assert min(parts) > 5_000
        assert scanner.splits(1, "counts", 4) == []
        with pytest.raises(StrettoError, match=r"task 9 is not in group m/1/0, which has \[0, 1, 2\]"):
            scanner.splits(9, "counts", 4)


def test_a_scan_that_is_given_up_leaves_the_connection_usable(start: Callable[..., Replica]) -> None:
    replica = start()
    replica.put(0, "counts", {number: bytes(500) for number in range(10_000)})
    replica.apply()
    with replica.scan(replica.pin()) as scanner:
        scan = scanner.rows(0, "counts")
        assert next(scan).count > 1
        assert scanner.bounds(0, "events") == (0, 0)
        scanner.part_read(0, 2)
        assert next(scan).count > 1
        del scan
        assert len(rows(scanner, 0, "counts")) == 10_000


def test_a_pin_that_nobody_reads_ends_and_says_so(start: Callable[..., Replica]) -> None:
    replica = start()
    replica.put(0, "counts", {1: b"x"})
    replica.apply()
    kept, left = replica.pin("kept", idle_ms=1_000), replica.pin("left", idle_ms=1_000)
    with replica.scan(kept) as scanner, replica.scan(left) as forgotten:
        until = time.monotonic() + SECONDS
        while "left" in (pins := {each.pin for each in replica.process.list(SECONDS)}):
            assert rows(scanner, 0, "counts") == {1: b"x"}
            assert time.monotonic() < until
        assert pins == {"kept"}
        with pytest.raises(
            PinLost,
            match=r"pin left of group m/1/0 on worker w0 is lost: nobody read it for 1 s, "
            r"as long as pin\.idle\.timeout\.millis allows",
        ):
            rows(forgotten, 0, "counts")


def test_who_reads_one_pin_keeps_the_others_of_its_process(start: Callable[..., Replica]) -> None:
    replica = start()
    replica.put(0, "counts", {1: b"x"})
    replica.apply()
    read, waiting = (replica.pin(name, idle_ms=1_000) for name in ("read", "waiting"))
    replica.pin("left", idle_ms=1_000)

    def kept() -> dict[str, int]:
        return {each.pin: each.age_ms for each in replica.process.list(SECONDS)}

    with replica.scan(read) as scanner:
        until = time.monotonic() + SECONDS
        while (ages := kept()).get("waiting", 0) < 2_500:
            scanner.renew(("read", "waiting", "gone"))
            assert time.monotonic() < until
    assert ages.keys() == {"read", "waiting"}
    with replica.scan(waiting) as scanner:
        assert rows(scanner, 0, "counts") == {1: b"x"}


def test_an_old_pin_ends_although_it_is_read(start: Callable[..., Replica]) -> None:
    replica = start()
    replica.put(0, "counts", {1: b"x"})
    replica.apply()
    with replica.scan(replica.pin(max_age_ms=1_000)) as scanner:
        until = time.monotonic() + SECONDS

        def read_on() -> None:
            while time.monotonic() < until:
                rows(scanner, 0, "counts")

        with pytest.raises(PinLost, match=r"it was kept for 1 s, as long as pin\.max\.age\.millis allows"):
            read_on()


@pytest.fixture
def pins(tmp_path: Path) -> Pins:
    AppliedState.open(tmp_path, TASKS).close()
    return Pins()


def opening(folder: Path, name: str, *, idle_ms: int = LONG_MS, max_age_ms: int = LONG_MS) -> Open:
    return Open(0, name, "m/1/0", str(folder), TASKS, 0, "a test", idle_ms, max_age_ms)


def test_a_pin_whose_parts_were_all_read_ends_soon(pins: Pins, tmp_path: Path) -> None:
    pins.open(opening(tmp_path, "read"), now=0)
    pins.open(opening(tmp_path, "begun"), now=0)
    for part in (0, 1, 1):
        pins.find("read", 1_000).part_read(part, 2, 1_000)
        pins.find("begun", 1_000).part_read(0, 2, 1_000)
    assert pins.expire(1_000 + READ_MS - 1) == []
    [(ended, why)] = pins.expire(1_000 + READ_MS)
    assert (ended.opened.pin, why) == ("read", "all its parts were read, and nobody read it for 15 s since")
    assert pins.find("begun", LONG_MS - 1).opened.pin == "begun"


def test_a_pin_that_took_long_to_read_waits_as_long_for_a_second_pass(pins: Pins, tmp_path: Path) -> None:
    pins.open(opening(tmp_path, "p", idle_ms=120_000), now=0)
    pins.find("p", 60_000).part_read(0, 1, 60_000)
    assert pins.expire(119_999) == []
    # What is read again does not prolong that: it is the time of the first pass.
    pins.find("p", 119_999).part_read(0, 1, 119_999)
    assert pins.expire(179_998) == []
    assert [ended.opened.pin for ended, _ in pins.expire(179_999)] == ["p"]
    pins.open(opening(tmp_path, "short", idle_ms=5_000), now=0)
    pins.find("short", 0).part_read(0, 1, 4_000)
    assert [ended.opened.pin for ended, _ in pins.expire(5_000)] == ["short"]


def test_a_pin_that_is_renewed_lasts_although_nobody_reads_it_and_no_longer_than_it_may(
    pins: Pins, tmp_path: Path
) -> None:
    pins.open(opening(tmp_path, "p", idle_ms=2_000, max_age_ms=5_000), now=0)
    for now in range(1_000, 5_000, 1_000):
        assert pins.renew(("p", "gone"), now) == ("gone",)
        assert pins.expire(now + 999) == []
    [(_, why)] = pins.expire(5_000)
    assert why == "it was kept for 5 s, as long as pin.max.age.millis allows"
    pins.renew(("p",), 5_001)
    assert len(pins) == 0


def test_a_pin_that_is_held_lasts_although_all_of_it_was_read(pins: Pins, tmp_path: Path) -> None:
    held = replace(opening(tmp_path, "p", idle_ms=2_000, max_age_ms=90_000), hold_ms=60_000)
    pins.open(held, now=0)
    assert pins.expire(59_999) == []
    pins.find("p", 1_000).part_read(0, 1, 1_000)
    assert pins.expire(60_999) == []
    [(_, why)] = pins.expire(61_000)
    assert why == "all its parts were read, and nobody read it for 60 s since"


def test_pins_that_nobody_reads_give_way_before_those_that_are_read_or_held(
    pins: Pins, tmp_path: Path
) -> None:
    for number in range(PINS_MAX):
        opened = opening(tmp_path, f"p{number}", idle_ms=60_000)
        pins.open(replace(opened, hold_ms=60_000 if number == 0 else 0), now=number)
    active = tuple(f"p{number}" for number in range(1, PINS_MAX) if number != 9)
    pins.renew(active, 31_000)
    pins.open(opening(tmp_path, "one more"), now=31_000)
    with pytest.raises(NoPin, match="nobody read it for a while, and others came"):
        pins.find("p9", 31_000)
    with pytest.raises(StrettoError, match=f"has {PINS_MAX} pins here"):
        pins.open(opening(tmp_path, "too many"), now=31_000)


def test_when_there_are_too_many_pins_only_those_that_were_read_give_way(pins: Pins, tmp_path: Path) -> None:
    def open_(number: int) -> None:
        pins.open(opening(tmp_path, f"p{number}"), now=0)

    for number in range(PINS_MAX):
        open_(number)
    with pytest.raises(StrettoError, match=f"group m/1/0 has {PINS_MAX} pins here, and takes no other"):
        open_(PINS_MAX)
    pins.find("p7", 1).part_read(0, 1, 1)
    open_(PINS_MAX)
    with pytest.raises(NoPin, match="all its parts were read, and others came"):
        pins.find("p7", 2)
    assert len(pins) == PINS_MAX


def test_a_pin_that_was_released_or_never_was_is_named(start: Callable[..., Replica]) -> None:
    replica = start()
    replica.put(0, "counts", {1: b"x"})
    replica.apply()
    pinned = replica.pin()
    with replica.scan(pinned) as scanner:
        assert [each.holder for each in replica.process.list(SECONDS)] == ["a test"]
        scanner.release()
        scanner.release()
        assert replica.process.list(SECONDS) == ()
        with pytest.raises(PinLost, match="pin p of group m/1/0 on worker w0 is lost: it was released"):
            scanner.sizes()
    replica.pin("forgotten")
    replica.process.forget("m/1/0", "its replica moved to another worker", SECONDS)
    with (
        replica.scan(replace(pinned, pin="forgotten")) as scanner,
        pytest.raises(PinLost, match="its replica moved to another worker; load it again"),
    ):
        scanner.sizes()
    with (
        replica.scan(replace(pinned, pin="unknown")) as scanner,
        pytest.raises(PinLost, match="the process that kept it has been started anew"),
    ):
        scanner.sizes()


def test_a_pin_is_lost_with_its_process(start: Callable[..., Replica]) -> None:
    replica = start()
    replica.put(0, "counts", {number: bytes(500) for number in range(10_000)})
    replica.apply()
    with replica.scan(replica.pin()) as scanner:
        scan = scanner.rows(0, "counts")
        next(scan)
        os.kill(replica.process.pid, signal.SIGKILL)
        with pytest.raises(
            PinLost, match=r"pin p .* nobody answers at 127\.0\.0\.1:\d+; its process has ended"
        ):
            list(scan)


def test_a_process_that_hangs_costs_the_pin_and_applying_goes_on(start: Callable[..., Replica]) -> None:
    replica = start()
    replica.put(0, "counts", {1: b"x"})
    replica.apply()
    os.kill(replica.process.pid, signal.SIGSTOP)
    try:
        message = Open(0, "p", "m/1/0", str(replica.folder), TASKS, 0, "", LONG_MS, LONG_MS)
        with (
            pytest.raises(RetriableError, match=r"did not answer within 0\.2 s"),
            replica.state.held(SECONDS),
        ):
            replica.process.open(message, 0.2)
        replica.put(0, "counts", {1: b"y"})
        replica.apply()
    finally:
        os.kill(replica.process.pid, signal.SIGCONT)
    replica.process.close("p", "it was never handed out", SECONDS)
    with replica.scan(replica.pin("q")) as scanner:
        assert rows(scanner, 0, "counts") == {1: b"y"}
    assert [each.pin for each in replica.process.list(SECONDS)] == ["q"]


def test_a_process_without_pins_ends_by_itself(start: Callable[..., Replica]) -> None:
    replica = start(idle_ms=1_000)
    replica.apply()
    replica.pin(idle_ms=1_000)
    ended = os.waitid(os.P_PID, replica.process.pid, os.WEXITED | os.WNOWAIT)
    assert ended is not None
    assert ended.si_status == 0
    with pytest.raises(RetriableError, match="the scan process has ended"):
        replica.process.list(SECONDS)


def test_only_holders_of_the_cluster_key_can_read(start: Callable[..., Replica]) -> None:
    key = ClusterKey.generate()
    replica = start(key=key)
    replica.put(0, "counts", {number: bytes(500) for number in range(10_000)})
    replica.apply()
    pinned = replica.pin()
    with replica.scan(pinned) as scanner:
        assert len(rows(scanner, 0, "counts")) == 10_000
    for wrong in (ClusterKey.generate(), None):
        with Scanner(pinned, wrong, timeout=2.0) as scanner, pytest.raises(PinLost):
            scanner.sizes()


def test_away_from_loopback_a_key_is_needed(start: Callable[..., Replica]) -> None:
    replica = start()
    replica.apply()
    away = replace(replica.pin(), address="10.0.0.1:7000")
    with pytest.raises(UsageError, match="needs the cluster key"):
        Scanner(away)
    with pytest.raises(StrettoError, match="needs the cluster key"):
        ScanProcess("w0", "10.0.0.1", None, LONG_MS)


def test_nothing_is_applied_while_a_state_is_held(start: Callable[..., Replica]) -> None:
    replica = start()
    began, done = threading.Event(), threading.Event()
    replica.put(0, "counts", {1: b"x"})

    def apply() -> None:
        began.set()
        replica.apply()
        done.set()

    thread = threading.Thread(target=apply)
    with replica.state.held(SECONDS) as offset:
        thread.start()
        assert began.wait(SECONDS)
        with pytest.raises(RetriableError), replica.state.held(0.05):
            pass
        assert not done.is_set()
        assert replica.state.applied == offset
    thread.join(SECONDS)
    assert replica.state.applied > offset


def test_who_applies_without_a_pause_does_not_keep_others_from_holding(
    start: Callable[..., Replica],
) -> None:
    replica = start()
    stopped = threading.Event()

    def apply() -> None:
        while not stopped.is_set():
            replica.put(0, "counts", {1: b"x"})
            replica.apply()

    thread = threading.Thread(target=apply)
    thread.start()
    try:
        offsets = []
        for _ in range(20):
            with replica.state.held(SECONDS) as offset:
                offsets.append(offset)
    finally:
        stopped.set()
        thread.join(SECONDS)
    assert offsets == sorted(offsets)


def test_files_that_are_not_there_are_named(tmp_path: Path) -> None:
    with pytest.raises(StrettoError, match="task-0 cannot be opened for a scan"):
        Pins().prepare("m/1/0", str(tmp_path), (0,))
    with pytest.raises(NoPin):
        Pins().find("p", 0)
