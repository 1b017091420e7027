"""Snapshots of a module that works all the while, and modules made of them, on real processes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from stretto.client import connect
from stretto.local.cluster import LocalCluster
from stretto.snapshot.manifest import MANIFEST, file_of, read_manifest
from stretto.snapshot.reading import open_snapshot
from stretto.vocabulary.types import TaskId
from tests.integration.snapshot.bank import ACCOUNTS, MONEY, Bank, rows_of
from tests.support.commands import stretto


def origin_of(cluster: LocalCluster, module: str) -> str:
    with connect(cluster.bootstrap) as client:
        return client.describe(module).origin


@pytest.mark.soak
def test_a_bank_is_cut_between_two_microbatches_under_load_and_restored_after_it_is_gone(
    whole_cluster: LocalCluster, tmp_path: Path
) -> None:
    bank = Bank(whole_cluster.bootstrap, "snapped")
    bank.launch()
    bank.pay_in()
    bank.settle(MONEY)
    assert bank.run("options", "set", "snapshot.retain", "9", "--module", "snapped").code == 0
    assert bank.run("options", "set", "pin.max.age.millis", "5000", "--module", "snapped").code == 0
    of_depot = ("--module", "snapped", "--depot", "orders")
    assert bank.run("options", "set", "depot.max.read.bytes", "70000", *of_depot).code == 0
    with bank.transfers():
        first = bank.create(tmp_path, "--name", "first")
        assert first.code == 0, first
        assert bank.create(tmp_path, "--name", "first").code == 2
    folder = tmp_path / "snapped" / "first"
    manifest = read_manifest(folder)
    assert (len(manifest.tasks), manifest.origin) == (4, origin_of(whole_cluster, "snapped"))
    assert manifest.microbatches["book"] > 0
    for group in manifest.groups:
        assert len(group.replicas) == 3
        assert group.copied_by in group.replicas
    balances = rows_of(folder, "balances")
    assert sum(balances.values()) == sum(rows_of(folder, "deposited").values()) == MONEY
    with open_snapshot(folder) as snapshot:
        orders = sum(snapshot.bounds(task, "orders")[1] for task in snapshot.tasks)
    assert orders > len(ACCOUNTS)
    verified = stretto("snapshot", "verify", str(folder))
    assert verified.code == 0, verified
    assert "all 4 tasks are as they were cut" in verified.out

    second = bank.create(tmp_path, "--name", "second", "--retain", "1", "--json")
    assert second.code == 0, second
    assert not folder.exists()
    [listed] = json.loads(bank.run("snapshot", "list", "snapped", "--json").out)
    assert (listed["name"], listed["state"]) == ("second", "complete")
    folder = tmp_path / "snapped" / "second"

    assert bank.run("deploy", "destroy", "snapped", "--yes").code == 0
    restored = Bank(whole_cluster.bootstrap, "revived")
    wanted = ["--module", "revived", "--threads", "4", "--option", "snapshot.retain=3"]
    assert "4 tasks, for good" in restored.run("snapshot", "restore", str(folder), "--tasks", "8").err
    done = restored.run("snapshot", "restore", "snapped/second", *wanted)
    assert done.code == 0, done
    assert "option depot.max.read.bytes = 70000 for depot orders of module revived" in done.out
    shown = restored.run("options", "list", "--module", "revived", "--depot", "orders", "--json")
    of_depot_now = {each["name"]: each for each in json.loads(shown.out)}
    assert of_depot_now["depot.max.read.bytes"]["value"] == 70_000
    shown = restored.run("options", "list", "--module", "revived", "--json")
    of_module = {each["name"]: each for each in json.loads(shown.out)}
    assert (of_module["snapshot.retain"]["value"], of_module["pin.max.age.millis"]["value"]) == (3, 5_000)
    again = restored.run("snapshot", "restore", str(folder), *wanted)
    assert (again.code, "there is a module revived already" in again.err) == (2, True)
    restored.settle(MONEY)
    restored.pay_in()
    restored.settle(2 * MONEY)
    assert restored.run("verify", "revived").code == 0
    assert origin_of(whole_cluster, "revived") == manifest.origin

    spoilt = file_of(folder, TaskId(3))
    spoilt.write_bytes(spoilt.read_bytes()[:-1])
    refused = restored.run("snapshot", "restore", str(folder), "--module", "other")
    assert (refused.code, "is damaged: task 3: it has" in refused.err) == (1, True), refused
    assert restored.run("snapshot", "delete", "snapped", "second", "--yes").code == 0
    assert not (folder / MANIFEST).exists()
    assert json.loads(restored.run("snapshot", "list", "snapped", "--json").out) == []
    assert restored.run("deploy", "destroy", "revived", "--yes", "--no-wait").code == 0
