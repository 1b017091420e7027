"""What may change in an update, and what is refused with what to do."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from stretto.conductor.planning.compatibility import check_update, depots_of, writers_of
from stretto.control import ModuleDescription, ModuleManifest
from stretto.errors import UsageError
from stretto.pstate.types import describe
from stretto.specs.modules import DepotSpec, ModuleSpec, ModuleState, PStateSpec, TopologySpec


@dataclass
class Account:
    owner: str


def with_more() -> Any:
    @dataclass
    class Account:
        owner: str
        balance: int = 0

    return Account


SPEC = ModuleSpec(
    artifact="a",
    tasks=4,
    threads=2,
    workers=1,
    replication_factor=3,
    state=ModuleState.RUNNING,
    depots=(DepotSpec(name="orders", partition_by="customer"), DepotSpec(name="notes")),
    pstates=(
        PStateSpec(name="totals", type=describe(dict[str, int])),
        PStateSpec(name="accounts", type=describe(dict[str, Account])),
    ),
    topologies=(TopologySpec(name="count", kind="stream", depots=("orders",), pstates=("totals",)),),
)
SAME = ModuleManifest(
    name="m", entry="m:M", depots=SPEC.depots, pstates=SPEC.pstates, topologies=SPEC.topologies
)


def manifest(**changes: Any) -> ModuleManifest:
    return msgspec.structs.replace(SAME, **changes)


def typed(name: str, annotation: Any) -> tuple[PStateSpec, ...]:
    return tuple(
        PStateSpec(name=name, type=describe(annotation)) if each.name == name else each
        for each in SPEC.pstates
    )


def test_code_may_change_objects_may_come_and_records_may_get_fields_with_defaults() -> None:
    check_update(SPEC, SAME, ())
    more = manifest(
        depots=(*SPEC.depots, DepotSpec(name="more")),
        pstates=typed("accounts", dict[str, with_more()]),  # type: ignore[misc]
    )
    check_update(SPEC, more, ())


def test_a_new_topology_may_write_what_none_wrote_and_an_old_one_what_another_did() -> None:
    other = TopologySpec(name="other", kind="stream", depots=("notes",))
    new = TopologySpec(name="new", kind="microbatch", depots=("orders",), pstates=("accounts",))
    before = msgspec.structs.replace(SPEC, topologies=(*SPEC.topologies, other))
    moved = msgspec.structs.replace(other, pstates=("totals",))
    check_update(before, manifest(topologies=(moved, new)), ("count",))


def test_what_is_named_may_go() -> None:
    less = manifest(depots=SPEC.depots[:1], pstates=SPEC.pstates[:1], topologies=())
    check_update(SPEC, less, ("notes", "accounts", "count"))


def updated(spec: ModuleSpec, after: ModuleManifest, *delete: str) -> ModuleSpec:
    check_update(spec, after, delete)
    writers = writers_of(after, writers_of(spec, spec.writers))
    return msgspec.structs.replace(
        spec, pstates=after.pstates, depots=after.depots, topologies=after.topologies, writers=writers
    )


def test_a_microbatch_topology_goes_only_while_the_module_is_paused() -> None:
    book = TopologySpec(name="book", kind="microbatch", depots=("orders",), pstates=("accounts",))
    before = msgspec.structs.replace(SPEC, topologies=(*SPEC.topologies, book))
    with pytest.raises(UsageError, match=r"of book may be under way, .* pause the module first"):
        check_update(before, SAME, ("book",))
    check_update(msgspec.structs.replace(before, state=ModuleState.PAUSED), SAME, ("book",))


@pytest.mark.parametrize("name", ["count", "count_again"])
def test_no_chain_of_updates_lets_a_topology_begin_anew_on_what_was_written(name: str) -> None:
    without = updated(SPEC, manifest(topologies=()), "count")
    again = manifest(topologies=(msgspec.structs.replace(SPEC.topologies[0], name=name),))
    with pytest.raises(UsageError, match=f"totals was written by count, .* by {name}, .* declare another"):
        check_update(without, again, ())
    # The code that was launched knew nothing of it: what matters is who wrote.
    bare = updated(without, manifest(topologies=(), depots=(*SPEC.depots, DepotSpec(name="more"))))
    with pytest.raises(UsageError, match="totals was written by count"):
        check_update(bare, again, ("more",))
    gone = updated(bare, manifest(topologies=(), pstates=SPEC.pstates[1:]), "totals", "more")
    assert updated(gone, again).writers == {"totals": name}


@pytest.mark.parametrize(
    ("after", "delete", "sentence"),
    [
        (
            manifest(depots=SPEC.depots[:1]),
            (),
            "does not declare depot notes, whose data would be lost; .* add --delete notes",
        ),
        (
            manifest(pstates=SPEC.pstates[1:]),
            ("notes",),
            "notes is to be deleted, and the new code declares it",
        ),
        (manifest(pstates=SPEC.pstates[1:]), (), "does not declare PState totals, .* add --delete totals"),
        (SAME, ("total",), "there is no depot, PState or topology total to delete; did you mean totals?"),
        (
            manifest(
                depots=SPEC.depots[:1],
                pstates=(*SPEC.pstates, PStateSpec(name="notes", type=describe(set[str]))),
            ),
            (),
            "notes was a depot and is none in the new code",
        ),
        (
            manifest(depots=(DepotSpec(name="orders", partition_by="day"), DepotSpec(name="notes"))),
            (),
            "depot orders has another partition_by .* declare another depot",
        ),
        (
            manifest(depots=(DepotSpec(name="orders", rule="global"), DepotSpec(name="notes"))),
            (),
            "depot orders has another partition_by",
        ),
        (
            manifest(pstates=typed("totals", dict[str, float])),
            (),
            r"PState totals has another type .*\(int cannot become float\); only fields with defaults may",
        ),
        (
            manifest(topologies=(TopologySpec(name="count", kind="microbatch", depots=("orders",)),)),
            (),
            "topology count was a stream and is a microbatch .* give it, and the PStates .* other names",
        ),
        (
            manifest(topologies=()),
            (),
            "does not declare topology count, whose progress would be lost; .* add --delete count",
        ),
        (
            manifest(topologies=(msgspec.structs.replace(SPEC.topologies[0], name="count_orders"),)),
            ("count",),
            "totals was written by count, and in the new code by count_orders, .* again; keep the name count",
        ),
    ],
)
def test_what_would_lose_or_garble_data_is_refused_with_what_to_do(
    after: ModuleManifest, delete: tuple[str, ...], sentence: str
) -> None:
    with pytest.raises(UsageError, match=sentence):
        check_update(SPEC, after, delete)


def test_a_depot_is_of_the_version_that_it_came_with() -> None:
    orders, notes = SPEC.depots
    more = DepotSpec(name="more")
    second = depots_of(SPEC, manifest(depots=(orders, notes, more)), 2)
    assert [each.since for each in second] == [1, 1, 2]
    # The depot is deleted, and later declared anew.
    third = depots_of(replace(SPEC, depots=second), manifest(depots=(orders, more)), 3)
    assert [each.since for each in third] == [1, 2]
    fourth = depots_of(replace(SPEC, depots=third), manifest(depots=(orders, more, notes)), 4)
    assert [each.since for each in fourth] == [1, 2, 4]
    check_update(replace(SPEC, depots=fourth), manifest(depots=(orders, more, notes)), ())
    before, after = (ModuleDescription(tasks=1, depots=its, origin="x") for its in (second, fourth))
    assert [before.origin_of(name) for name in ("orders", "notes", "more")] == ["x", "x", "x.2"]
    assert [after.origin_of(name) for name in ("orders", "notes", "more")] == ["x", "x.4", "x.2"]
    assert ModuleDescription(tasks=1, depots=fourth).origin_of("notes") == "", "not known, as before"
