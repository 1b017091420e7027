"""``append`` and ``tail`` against real workers, without any conductor."""

from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from stretto.module.partition import task_of
from stretto.specs.modules import DepotSpec
from stretto.zk.server.embedded import EmbeddedZooKeeper
from tests.support.cluster import MODULE, Cluster
from tests.support.commands import Done, start, stretto

FRESH = 100
DEPOTS = tuple(
    DepotSpec(name=f"{kind}{number}", partition_by=field)
    for kind, field in {"keyed": "user", "plain": None}.items()
    for number in range(FRESH)
)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory, zookeeper: EmbeddedZooKeeper) -> Iterator[Cluster]:
    folder = tmp_path_factory.mktemp("cluster")
    with Cluster(folder, zookeeper.address, tasks=4, depots=DEPOTS) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def numbers() -> Iterator[int]:
    return iter(range(FRESH))


@pytest.fixture
def keyed(numbers: Iterator[int]) -> str:
    """A depot that nobody has used, partitioned by ``user``."""
    return f"keyed{next(numbers)}"


@pytest.fixture
def plain(numbers: Iterator[int]) -> str:
    """One that is not partitioned."""
    return f"plain{next(numbers)}"


def bootstrap(cluster: Cluster) -> list[str]:
    return ["--bootstrap", ",".join(cluster.addresses())]


def append(cluster: Cluster, *args: str, given: str = "") -> Done:
    return stretto("append", MODULE, *args, *bootstrap(cluster), given=given)


def all_of(cluster: Cluster, depot: str, *args: str) -> list[str]:
    done = stretto("tail", MODULE, depot, "--from-start", "--no-follow", *args, *bootstrap(cluster))
    assert (done.code, done.err) == (0, "")
    return done.lines


def test_a_record_goes_to_the_task_that_its_field_chooses_and_comes_back_as_it_was(
    cluster: Cluster, keyed: str
) -> None:
    record = '{"user": "ann",   "amount": 1.50, "big": 123456789012345678901234567890}'

    done = append(cluster, keyed, record)

    assert (done.code, done.out, done.err) == (0, "appended 1 record\n", "")
    assert all_of(cluster, keyed) == [record]
    [row] = map(json.loads, all_of(cluster, keyed, "--json"))
    assert row["record"] == json.loads(record)
    assert (row["task"], row["offset"]) == (task_of("ann", 4), 0)
    assert all_of(cluster, keyed, "--task", str(row["task"])) == [record]
    assert all_of(cluster, keyed, "--task", str((row["task"] + 1) % 4)) == []


def test_a_file_of_lines_is_appended_whole(cluster: Cluster, plain: str, tmp_path: Path) -> None:
    file = tmp_path / "numbers.ndjson"
    file.write_text("".join(f"{number}\n" for number in range(5_000)) + "\n")

    done = append(cluster, plain, "--file", str(file))

    assert (done.code, done.err) == (0, "")
    assert done.out.startswith("appended 5,000 records in ")
    assert sorted(map(int, all_of(cluster, plain))) == list(range(5_000))
    assert len(all_of(cluster, plain, "--limit", "7")) == 7


def test_a_line_that_is_no_json_is_told_by_number_and_ends_it_there(
    cluster: Cluster, plain: str, tmp_path: Path
) -> None:
    file = tmp_path / "broken.ndjson"
    file.write_text('1\n2\n\n{"three": \n4\n')

    done = append(cluster, plain, "--file", str(file))

    assert (done.code, done.out) == (1, "")
    assert done.err.startswith(f"stretto: line 4 of {file} is not JSON: ")
    assert done.err.endswith("; 2 records before it were appended and nothing from there on\n")
    assert sorted(all_of(cluster, plain)) == ["1", "2"]


def test_a_line_without_the_field_that_partitions_ends_it_too(cluster: Cluster, keyed: str) -> None:
    done = append(cluster, keyed, "-", given='{"user": "ann"}\n{"usr": "bob"}\n{"user": "cid"}\n')

    assert done.code == 1
    assert done.err.startswith("stretto: line 2 of standard input is refused: ")
    assert "partitioned by 'user'" in done.err
    assert "1 record before it was appended" in done.err
    assert all_of(cluster, keyed) == ['{"user": "ann"}']


def test_lines_come_from_a_pipe_and_need_no_acknowledgement(cluster: Cluster, plain: str) -> None:
    done = append(cluster, plain, "-", "--ack", "none", given="".join(f"[{n}]\n" for n in range(300)))

    assert (done.code, done.out, done.err) == (0, "sent 300 records\n", "")
    assert sorted(all_of(cluster, plain), key=json.loads) == [f"[{n}]" for n in range(300)]


@pytest.mark.parametrize(
    ("args", "sentence"),
    [
        (("plain_9", "1"), f"module {MODULE} has no depot plain_9; did you mean plain9?"),
        (("{plain}", "{"), "the record is not JSON: Input data was truncated"),
        (("keyed0", "7"), "the record is refused: depot keyed0 is partitioned by 'user'"),
        (("{plain}",), "give one of: a record, --file F.ndjson, or - to read lines from standard input"),
        (("{plain}", "1", "--file", "f"), "give one of: a record"),
        (("{plain}", "1", "--ack", "most"), "--ack: 'most' is not one of"),
    ],
)
def test_what_cannot_be_appended_is_bad_usage(
    cluster: Cluster, plain: str, args: tuple[str, ...], sentence: str
) -> None:
    done = append(cluster, *(arg.replace("{plain}", plain) for arg in args))

    assert (done.code, done.out) == (2, "")
    assert done.err.startswith(f"stretto: {sentence}")
    assert done.err.count("\n") == 1
    assert all_of(cluster, plain) == []


def test_an_unknown_module_is_refused_with_the_nearest(cluster: Cluster) -> None:
    done = stretto("tail", "count", "events", *bootstrap(cluster))
    assert (done.code, done.err) == (2, f"stretto: there is no module count; did you mean {MODULE}?\n")


@pytest.mark.parametrize(
    ("args", "sentence"),
    [
        (("--task", "4"), f"module {MODULE} has tasks 0 to 3, not 4"),
        (("--since", "soon"), "'soon' is no time; write one as "),
        (("--since", "1h", "--from-start"), "give one of --from-start, --from-offset and --since"),
        (("--no-follow", "--uncommitted"), "--uncommitted shows what is on its way"),
    ],
)
def test_what_cannot_be_shown_is_bad_usage(
    cluster: Cluster, plain: str, args: tuple[str, ...], sentence: str
) -> None:
    done = stretto("tail", MODULE, plain, *args, *bootstrap(cluster))

    assert (done.code, done.out) == (2, "")
    assert done.err.startswith(f"stretto: {sentence}")


def test_records_are_followed_as_they_become_visible_until_ctrl_c(cluster: Cluster, plain: str) -> None:
    append(cluster, plain, '"before"')
    tail = start("tail", MODULE, plain, "--from-start", *bootstrap(cluster))
    try:
        assert read_line(tail) == '"before"'
        append(cluster, plain, '"after"')
        assert read_line(tail) == '"after"'
        tail.send_signal(signal.SIGINT)
        out, err = tail.communicate(timeout=30)
    finally:
        tail.kill()
        tail.communicate()
    assert (tail.returncode, out, err) == (0, "", "")


def test_a_tail_whose_reader_has_enough_ends_without_a_word(cluster: Cluster, plain: str) -> None:
    append(cluster, plain, "1")
    tail = start("tail", MODULE, plain, "--from-start", *bootstrap(cluster))
    assert tail.stdout is not None
    assert tail.stderr is not None
    try:
        read_line(tail)
        tail.stdout.close()
        while tail.poll() is None:  # each record is one more line that nobody reads
            append(cluster, plain, "2")
        assert (tail.returncode, tail.stderr.read()) == (0, "")
    finally:
        tail.kill()
        tail.stderr.close()
        tail.wait()


def test_a_place_to_begin_is_an_offset_or_a_time(cluster: Cluster, keyed: str) -> None:
    user = '{"user": "zoe", "n": %d}'
    for number in range(3):
        append(cluster, keyed, user % number)
    task = str(task_of("zoe", 4))
    rows = [json.loads(line) for line in all_of(cluster, keyed, "--task", task, "--json")]
    mine = [row for row in rows if row["record"]["user"] == "zoe"]

    def shown(*place: str) -> list[str]:
        args = ("--task", task, "--no-follow", *place, *bootstrap(cluster))
        return stretto("tail", MODULE, keyed, *args).lines

    assert shown("--from-offset", str(mine[1]["offset"])) == [user % 1, user % 2]
    assert shown("--since", "1d")[-3:] == [user % 0, user % 1, user % 2]
    assert shown("--since", "2999-01-01T00:00:00Z") == []
    assert shown() == []


def test_records_that_are_no_json_stay_on_one_line(cluster: Cluster, plain: str) -> None:
    client = cluster.connect()
    producer = client.producer(MODULE, plain)
    for data in (b"two\nlines", b"\xff\x00", b'{\n "a": 1\n}'):
        producer.append(data, task=0).result(30)

    rows = [json.loads(line) for line in all_of(cluster, plain, "--json")]
    assert [(row.get("text"), row.get("base64"), row.get("record")) for row in rows] == [
        ("two\nlines", None, None),
        (None, "/wA=", None),
        (None, None, {"a": 1}),
    ]
    lines = stretto("tail", MODULE, plain, "--from-start", "--limit", "1", *bootstrap(cluster)).lines
    assert lines == ["two\\nlines"]


def test_uncommitted_records_are_shown_too(cluster: Cluster, plain: str) -> None:
    args = ("--from-start", "--uncommitted", "--limit", "2", *bootstrap(cluster))
    append(cluster, plain, "-", given="1\n2\n")
    assert len(stretto("tail", MODULE, plain, *args).lines) == 2


def read_line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().rstrip("\n")
