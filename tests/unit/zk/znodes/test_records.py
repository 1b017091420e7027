from __future__ import annotations

from typing import Any

import msgspec
import pytest

from stretto.replog.core.record import GroupRecord, Member
from stretto.specs.assignments import Assignment, PlacedWorker
from stretto.specs.modules import ModuleSpec, ModuleState
from stretto.vocabulary.groups import GroupKey
from stretto.vocabulary.types import Epoch, Incarnation, StorageId, WorkerId
from stretto.zk.znodes.records import (
    NodeRegistration,
    ResignRequest,
    WorkerRegistration,
    ZnodeDamaged,
    decode,
    encode,
)

A, B = WorkerId("a"), WorkerId("b")
GROUP = GroupKey("counts", 1, 4)

RECORDS: list[Any] = [
    GroupRecord(
        epoch=Epoch(3),
        leader=A,
        leader_incarnation=Incarnation("i"),
        isr=(Member(A, StorageId("s")),),
        osr=(B,),
        unclean_epoch=Epoch(2),
    ),
    GroupRecord(epoch=Epoch(0), leader=None, leader_incarnation=None, isr=()),
    NodeRegistration(
        node="n", incarnation=Incarnation("i"), address="10.0.0.1:7000", folder="f", labels={"rack": "r1"}
    ),
    WorkerRegistration(
        worker=A,
        incarnation=Incarnation("i"),
        node="n",
        address="10.0.0.1:7001",
        launch="l",
        members={str(GROUP): StorageId("s")},
    ),
    ModuleSpec(
        artifact="sha256:00",
        tasks=8,
        threads=4,
        workers=2,
        replication_factor=3,
        state=ModuleState.LEADERSHIP_BALANCING,
    ),
    Assignment(
        generation=1,
        tasks=4,
        workers=(PlacedWorker(A, "n"), PlacedWorker(B, "m")),
        groups=((0, 1), (1, 0)),
    ),
    ResignRequest(epoch=Epoch(3), target=B),
]


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: type(record).__name__)
def test_a_record_is_read_as_it_was_written(record: Any) -> None:
    data = encode(record)
    assert decode(data, type(record), "/p") == record
    assert len(data) < 512


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: type(record).__name__)
def test_what_a_later_version_adds_is_ignored(record: Any) -> None:
    fields = msgspec.json.decode(encode(record)) | {"added_later": [1, 2]}
    assert decode(msgspec.json.encode(fields), type(record), "/p") == record


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (b"", "Input data was truncated"),
        (b"\xff\xfe", "malformed"),
        (b"[]", "Expected `object`"),
        (b'{"epoch": 1}', "missing required field `leader`"),
        (b'{"epoch": "1", "leader": null, "leader_incarnation": null, "isr": []}', r"`\$\.epoch`"),
        (b'{"epoch": 1, "leader": null, "leader_incarnation": null, "isr": [["a"]]}', r"`\$\.isr\[0\]`"),
    ],
)
def test_a_damaged_znode_is_told_with_its_path_and_the_problem(data: bytes, problem: str) -> None:
    with pytest.raises(ZnodeDamaged, match=f"the znode /stretto/x is damaged: .*{problem}") as damage:
        decode(data, GroupRecord, "/stretto/x")
    assert damage.value.path == "/stretto/x"


def test_a_registration_knows_the_storage_of_its_groups_only() -> None:
    registration = next(record for record in RECORDS if isinstance(record, WorkerRegistration))
    assert registration.storage_of(GROUP) == "s"
    assert registration.storage_of(GroupKey("counts", 1, 40)) is None
    assert registration.storage_of(GroupKey("counts", 2, 4)) is None


def test_an_assignment_tells_workers_nodes_and_tasks_by_name() -> None:
    assignment = next(record for record in RECORDS if isinstance(record, Assignment))
    assert assignment.replicas == ((A, B), (B, A))
    assert assignment.nodes == {A: "n", B: "m"}
    assert [list(assignment.tasks_of(group)) for group in range(2)] == [[0, 1], [2, 3]]


def test_tasks_that_do_not_divide_make_runs_that_differ_by_one() -> None:
    assignment = Assignment(generation=1, tasks=8, workers=(PlacedWorker(A, "n"),), groups=((0,), (0,), (0,)))
    assert [list(assignment.tasks_of(group)) for group in range(3)] == [[0, 1, 2], [3, 4, 5], [6, 7]]


@pytest.mark.parametrize("index", [2, -1])
def test_an_assignment_that_names_no_worker_is_damaged(index: int) -> None:
    fields = {"generation": 1, "tasks": 1, "workers": [["a", "n"], ["b", "m"]], "groups": [[0, index]]}
    with pytest.raises(ZnodeDamaged, match="a group names a worker beyond the 2 there are"):
        decode(msgspec.json.encode(fields), Assignment, "/p")
