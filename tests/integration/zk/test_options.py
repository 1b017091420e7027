"""Options in a real ZooKeeper: kept by level, changed by many at once, followed by workers."""

from __future__ import annotations

import threading
from functools import partial

import msgspec
import pytest
from kazoo.client import KazooClient

from stretto.errors import OptionError
from stretto.options import CLUSTER, Level, OptionSet
from stretto.zk.server.embedded import EmbeddedZooKeeper
from stretto.zk.watches.options import forget_module, read_all, set_option, set_options, unset_option
from stretto.zk.znodes.paths import Paths
from stretto.zk.znodes.records import ZnodeDamaged
from tests.support.proxy import Proxy
from tests.support.recorder import Recorder, Specified, Started, Tuned
from tests.support.servers import LONG_SESSION_TIMEOUT_MS, Workers
from tests.support.waiting import wait_until

COUNTS = Level.of("counts")
EVENTS = Level.of("counts", depot="events")
MIN_ISR = "replication.min.isr"
LAG = "replication.max.time.lag.millis"
READ = "depot.max.read.bytes"


# Kept by level.


def test_what_is_set_is_read_at_its_level(paths: Paths, operator: KazooClient) -> None:
    assert read_all(operator, paths) == OptionSet()
    set_option(operator, paths, CLUSTER, MIN_ISR, "2")
    set_options(operator, paths, COUNTS, {MIN_ISR: 3, LAG: 5_000})
    set_option(operator, paths, EVENTS, READ, 4_096)
    set_option(operator, paths, Level.of("others"), MIN_ISR, 1)
    assert read_all(operator, paths) == OptionSet(
        {
            CLUSTER: {MIN_ISR: 2},
            COUNTS: {MIN_ISR: 3, LAG: 5_000},
            EVENTS: {READ: 4_096},
            Level.of("others"): {MIN_ISR: 1},
        }
    )


def test_the_znodes_are_where_others_look_for_them(paths: Paths, operator: KazooClient) -> None:
    set_option(operator, paths, CLUSTER, MIN_ISR, 2)
    set_option(operator, paths, EVENTS, READ, 4_096)
    root = f"{paths.root}/options"
    assert operator.get(f"{root}/cluster")[0] == b'{"replication.min.isr":2}'
    assert operator.get(f"{root}/modules/counts/depots/events")[0] == b'{"depot.max.read.bytes":4096}'


def test_unset_makes_the_wider_level_hold_again(paths: Paths, operator: KazooClient) -> None:
    set_option(operator, paths, CLUSTER, LAG, 1_000)
    set_option(operator, paths, COUNTS, LAG, 2_000)
    assert unset_option(operator, paths, COUNTS, LAG) is True
    assert unset_option(operator, paths, COUNTS, LAG) is False
    resolved = read_all(operator, paths).resolve(LAG, COUNTS)
    assert (resolved.value, resolved.origin) == (1_000, CLUSTER)


def test_nothing_is_written_for_what_cannot_be(paths: Paths, operator: KazooClient) -> None:
    with pytest.raises(OptionError, match=r"the nearest is replication\.min\.isr"):
        set_option(operator, paths, CLUSTER, "replication.min.irs", 2)
    with pytest.raises(OptionError, match="from 100 to"):
        set_options(operator, paths, CLUSTER, {MIN_ISR: 2, LAG: 1})
    with pytest.raises(OptionError, match="cannot be set for a single depot"):
        set_option(operator, paths, EVENTS, MIN_ISR, 2)
    with pytest.raises(OptionError, match="the nearest is"):
        unset_option(operator, paths, CLUSTER, "replication.min.irs")
    assert read_all(operator, paths) == OptionSet()


def test_a_module_that_is_gone_leaves_no_options(paths: Paths, operator: KazooClient) -> None:
    set_option(operator, paths, CLUSTER, MIN_ISR, 2)
    set_option(operator, paths, COUNTS, MIN_ISR, 3)
    set_option(operator, paths, EVENTS, READ, 4_096)
    forget_module(operator, paths, "counts")
    forget_module(operator, paths, "counts")
    assert read_all(operator, paths) == OptionSet({CLUSTER: {MIN_ISR: 2}})


def test_changes_of_many_at_once_are_all_kept(
    zookeeper: EmbeddedZooKeeper, paths: Paths, operator: KazooClient
) -> None:
    names = [MIN_ISR, LAG, "replication.append.timeout.millis", "replication.retry.millis"]
    together = threading.Barrier(len(names))

    def change(name: str) -> None:
        client = KazooClient(zookeeper.address)
        client.start()
        together.wait()
        for value in range(1_000, 1_010):
            set_option(client, paths, COUNTS, name, value)
        client.stop()
        client.close()

    threads = [threading.Thread(target=change, args=(name,)) for name in names]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert read_all(operator, paths) == OptionSet({COUNTS: dict.fromkeys(names, 1_009)})


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (b"{", "truncated"),
        (b"[]", "Expected `object`"),
        (
            b'{"replication.retry.millis": 1}',
            r"replication\.retry\.millis is a whole number from 10 to 60000",
        ),
    ],
)
def test_a_damaged_znode_is_told_by_its_path(
    paths: Paths, operator: KazooClient, data: bytes, problem: str
) -> None:
    path = paths.options_of(COUNTS)
    operator.create(path, data, makepath=True)
    with pytest.raises(ZnodeDamaged, match=f"{path} is damaged: .*{problem}"):
        read_all(operator, paths)


def test_a_value_out_of_bounds_can_be_mended_by_setting_it(paths: Paths, operator: KazooClient) -> None:
    operator.create(paths.options_of(COUNTS), b'{"replication.retry.millis": 1}', makepath=True)
    set_option(operator, paths, COUNTS, "replication.retry.millis", 100)
    assert read_all(operator, paths).value("replication.retry.millis", COUNTS) == 100


def test_what_a_later_release_set_is_kept(paths: Paths, operator: KazooClient) -> None:
    path = paths.options_of(CLUSTER)
    operator.create(path, b'{"replication.of.tomorrow": [1, 2]}', makepath=True)
    set_option(operator, paths, CLUSTER, MIN_ISR, 2)
    assert msgspec.json.decode(operator.get(path)[0]) == {"replication.of.tomorrow": [1, 2], MIN_ISR: 2}
    assert read_all(operator, paths).value(MIN_ISR, CLUSTER) == 2
    assert unset_option(operator, paths, CLUSTER, "replication.of.tomorrow") is True


# Followed by workers.


def kinds(recorder: Recorder) -> list[str]:
    return [type(each).__name__ for each in recorder.heard if isinstance(each, Tuned | Specified | Started)]


def has(level: Level, name: str, value: object, told: OptionSet) -> bool:
    return told.levels.get(level, {}).get(name) == value


def test_options_are_told_before_the_session_and_at_every_change(
    zookeeper: EmbeddedZooKeeper, workers: Workers, operator: KazooClient
) -> None:
    _, recorder = workers.open(zookeeper.address, "a", options_of="counts")
    *before, last = kinds(recorder)
    assert (sorted(before), last) == (["Specified", "Tuned"], "Started")
    assert recorder.of(Tuned)[0].options == OptionSet()
    paths = workers.paths
    for level, name, value in [
        (CLUSTER, MIN_ISR, 2),
        (COUNTS, MIN_ISR, 3),
        (EVENTS, READ, 4_096),
        (EVENTS, READ, 8_192),
        (Level.of("counts", depot="others"), READ, 2_048),
    ]:
        set_option(operator, paths, level, name, value)
        recorder.wait_options(partial(has, level, name, value))
    unset_option(operator, paths, COUNTS, MIN_ISR)
    recorder.wait_options(lambda told: COUNTS not in told.levels and EVENTS in told.levels)


def test_a_worker_does_not_hear_of_other_modules(
    zookeeper: EmbeddedZooKeeper, workers: Workers, operator: KazooClient
) -> None:
    _, recorder = workers.open(zookeeper.address, "a", options_of="counts")
    set_option(operator, workers.paths, Level.of("others"), MIN_ISR, 3)
    set_option(operator, workers.paths, CLUSTER, LAG, 1_000)
    recorder.wait_options(lambda told: CLUSTER in told.levels)
    assert [told.options for told in recorder.of(Tuned)] == [OptionSet(), OptionSet({CLUSTER: {LAG: 1_000}})]


def test_options_changed_while_cut_off_are_told_after_reconnecting_in_one(
    proxy: Proxy, workers: Workers, operator: KazooClient
) -> None:
    _, recorder = workers.open(
        proxy.address, "a", options_of="counts", session_timeout_ms=LONG_SESSION_TIMEOUT_MS
    )
    proxy.cut()
    for value in range(1_000, 1_020):
        set_option(operator, workers.paths, COUNTS, LAG, value)
    proxy.heal()
    recorder.wait_options(lambda told: told.value(LAG, COUNTS) == 1_019)
    assert len(recorder.of(Tuned)) == 2
    assert len(recorder.of(Started)) == 1


def test_a_new_session_begins_with_the_options_of_its_time(
    proxy: Proxy, workers: Workers, operator: KazooClient
) -> None:
    """Set while its worker was away for longer than its session lived."""
    metastore, recorder = workers.open(proxy.address, "a", options_of="counts")
    assert metastore.incarnation is not None
    registration = workers.paths.registration(metastore._worker, metastore.incarnation)
    proxy.cut()
    set_option(operator, workers.paths, COUNTS, MIN_ISR, 3)
    wait_until("its session expires", lambda: operator.exists(registration) is None)
    proxy.heal()
    recorder.wait_started(2)
    before = recorder.heard[: recorder.heard.index(recorder.of(Started)[1])]
    told = [each.options for each in before if isinstance(each, Tuned)]
    assert told[-1].value(MIN_ISR, COUNTS) == 3


def test_no_session_begins_on_options_that_cannot_be_read(
    zookeeper: EmbeddedZooKeeper, workers: Workers, operator: KazooClient
) -> None:
    path = workers.paths.options_of(COUNTS)
    operator.create(path, b'{"replication.min.isr": "three"}', makepath=True)
    metastore, recorder = workers.open(zookeeper.address, "a", options_of="counts", starts=False)
    options = metastore._options
    assert options is not None
    wait_until("it has read the damage", lambda: options._problem)
    assert not recorder.of(Tuned)
    assert not recorder.of(Started)
    assert metastore.incarnation is None
    # Mended by hand, which writes nothing above it.
    operator.set(path, b'{"replication.min.isr": 3}')
    recorder.wait_started()
    assert recorder.of(Tuned)[0].options == OptionSet({COUNTS: {MIN_ISR: 3}})


def test_damage_in_a_session_leaves_what_was_known(
    zookeeper: EmbeddedZooKeeper, workers: Workers, operator: KazooClient
) -> None:
    paths = workers.paths
    set_option(operator, paths, COUNTS, MIN_ISR, 3)
    _, recorder = workers.open(zookeeper.address, "a", options_of="counts")
    operator.set(paths.options_of(COUNTS), b"{")
    set_option(operator, paths, CLUSTER, LAG, 1_000)
    operator.set(paths.options_of(COUNTS), b'{"replication.min.isr": 2}')
    recorder.wait_options(lambda told: told.value(MIN_ISR, COUNTS) == 2)
    values = [told.options.value(MIN_ISR, COUNTS) for told in recorder.of(Tuned)]
    assert sorted(set(values)) == [2, 3]
