"""What was set for a module is in its snapshot, and is set for the module that is made of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from stretto import control
from stretto.errors import UsageError
from stretto.options import Level
from stretto.snapshot.manifest import MANIFEST, read_manifest, write_manifest
from stretto.snapshot.options import lines_of, options_of, options_to_restore
from stretto.specs.modules import DepotSpec, ModuleSpec, ModuleState, TopologySpec
from tests.unit.snapshot.snapshots import a_manifest

SET = (
    control.OptionsAt(values={"snapshot.retain": 7, "replication.min.isr": 2}),
    control.OptionsAt(depot="events", values={"depot.retention.records": 100}),
)


class Cluster:
    """Has options set at some levels, and one for the whole of it."""

    def ask(self, call: control.Options) -> tuple[control.OptionView, ...]:
        level = call.level
        here = Level.of(level.module, depot=level.depot, topology=level.topology, pstate=level.pstate)
        found = {"pin.idle.timeout.millis": (1_000, "cluster")}
        for each in SET:
            origin = each.level_of("bank")
            if origin in here.path():
                found |= {name: (value, str(origin)) for name, value in each.values.items()}
        return tuple(
            control.OptionView(name=name, value=value, origin=origin, default=0, unit="", doc="")
            for name, (value, origin) in found.items()
        )


def test_what_is_set_for_the_module_and_its_objects_is_kept_and_nothing_else() -> None:
    spec = ModuleSpec(
        artifact="a",
        tasks=1,
        threads=1,
        workers=1,
        replication_factor=1,
        state=ModuleState.RUNNING,
        depots=(DepotSpec(name="events"), DepotSpec(name="others")),
        topologies=(TopologySpec(name="book", kind="stream", depots=("events",)),),
    )
    cluster: Any = Cluster()
    assert options_of(cluster, "bank", spec) == SET


def test_options_given_take_the_place_of_those_of_the_snapshot() -> None:
    manifest = msgspec.structs.replace(a_manifest((), "a"), options=SET)
    options, of_objects = options_to_restore(manifest, "other", {"snapshot.retain": 2, "catchup.x": 1})
    assert options == {"snapshot.retain": 2, "replication.min.isr": 2, "catchup.x": 1}
    assert of_objects == SET[1:]
    assert lines_of({"a": 1}, of_objects, "other") == [
        "a = 1",
        "depot.retention.records = 100 for depot events of module other",
    ]


def test_an_option_that_this_release_does_not_have_is_told_with_the_way_around_it() -> None:
    strange = (control.OptionsAt(values={"snapshot.retian": 7}),)
    manifest = msgspec.structs.replace(a_manifest((), "a"), options=strange)
    with pytest.raises(UsageError, match=r"has snapshot.retian = 7 for the module other.*--no-options"):
        options_to_restore(manifest, "other", {})
    assert options_to_restore(manifest, "other", {"snapshot.retian": 1})[0] == {"snapshot.retian": 1}


def test_a_manifest_from_before_options_were_kept_is_whole(tmp_path: Path) -> None:
    write_manifest(tmp_path, a_manifest((), "a"))
    assert "options" not in msgspec.json.decode((tmp_path / MANIFEST).read_bytes())
    assert options_to_restore(read_manifest(tmp_path), "bank", {"a": 1}) == ({"a": 1}, ())
    write_manifest(tmp_path, msgspec.structs.replace(a_manifest((), "a"), options=SET))
    assert read_manifest(tmp_path).options == SET
