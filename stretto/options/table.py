"""Every option there is. Add one here, and validation, help, docs and the core's settings follow."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from types import MappingProxyType

from stretto.errors import OptionError
from stretto.options.levels import Level, Scope
from stretto.options.option import GROUP, Option, Value
from stretto.vocabulary.records import BATCH_BYTES_MAX

_MINUTE_MS = 60_000
_HOUR_MS = 60 * _MINUTE_MS
_DAY_MS = 24 * _HOUR_MS
_MIB = 1 << 20
_PER_DEPOT = (*GROUP, Scope.DEPOT)
_PER_TOPOLOGY = (*GROUP, Scope.TOPOLOGY)

TABLE: tuple[Option, ...] = (
    Option(
        name="replication.min.isr",
        kind=int,
        default=None,
        default_means="factor - 1",
        unit="replicas",
        setting="min_isr",
        doc="Replicas that must hold an entry before it is applied; below 1 reads as 1, above the "
        "replication factor as the factor.",
    ),
    Option(
        name="replication.max.time.lag.millis",
        kind=int,
        default=10_000,
        unit="ms",
        low=100,
        high=_HOUR_MS,
        setting="max_time_lag_ms",
        doc="How long an entry waits for a member of the ISR before that member has to leave it.",
    ),
    Option(
        name="replication.max.near.sync.message.lag",
        kind=int,
        default=100_000,
        unit="entries",
        low=1,
        high=1_000_000_000,
        setting="max_near_lag",
        doc="A replica further behind than this catches up from a copy of the state, not from the log.",
    ),
    Option(
        name="replication.far.horizon.min.transfer.rounds",
        kind=int,
        default=2,
        unit="rounds",
        low=1,
        high=100,
        doc="Rounds of transfer that every task does before its replica turns to the log.",
    ),
    Option(
        name="replication.far.horizon.max.pinned.entries",
        kind=int,
        default=10_000_000,
        unit="entries",
        low=1_000,
        high=1_000_000_000_000,
        setting="max_pinned",
        doc="How much of its log a leader keeps for a replica that receives its state; beyond that the "
        "replica begins again.",
    ),
    Option(
        name="replication.far.horizon.timeout.millis",
        kind=int,
        default=60_000,
        unit="ms",
        low=1_000,
        high=_DAY_MS,
        setting="state_timeout_ms",
        doc="How long a replica waits for the leader's state before it asks again.",
    ),
    Option(
        name="replication.catchup.max.bytes.per.second",
        kind=int,
        default=64 * _MIB,
        unit="bytes/s",
        low=0,
        high=1 << 40,
        doc="How fast the workers of a node together send state to replicas that catch up; 0: as fast as "
        "they can.",
    ),
    Option(
        name="replication.catchup.verify.structure",
        kind=bool,
        default=False,
        doc="Whether a state that was received is also checked page by page before it is installed; takes a "
        "while for large ones.",
    ),
    Option(
        name="replication.append.timeout.millis",
        kind=int,
        default=20_000,
        unit="ms",
        low=10,
        high=_HOUR_MS,
        scopes=_PER_DEPOT,
        setting="append_timeout_ms",
        doc="An append that not all of the ISR holds by then is answered with *outcome unknown*.",
    ),
    Option(
        name="replication.max.unapplied.entries",
        kind=int,
        default=200_000,
        unit="entries",
        low=1,
        high=100_000_000,
        setting="max_unapplied",
        doc="Appends are refused while so many entries of a group wait to be applied.",
    ),
    Option(
        name="replication.early.ack.bytes",
        kind=int,
        default=256 * 1024,
        unit="bytes",
        low=0,
        high=64 * 1024 * 1024,
        setting="early_bytes",
        doc="Appends are acknowledged when all of the ISR holds them, and readers wait until they are "
        "applied; while more than this is not applied, appends wait for that.",
    ),
    Option(
        name="replication.fsync",
        kind=str,
        default="always",
        choices=("always", "interval"),
        doc="Whether a write is synced before it is confirmed, or now and then; with interval, a crash of "
        "the machine costs a replica its membership of the ISR.",
    ),
    Option(
        name="replication.fsync.interval.millis",
        kind=int,
        default=1_000,
        unit="ms",
        low=10,
        high=_MINUTE_MS,
        doc="How often logs are synced under replication.fsync = interval.",
    ),
    Option(
        name="replication.unclean.election",
        kind=bool,
        default=False,
        setting="unclean_election",
        doc="Lets a replica outside the ISR lead when no member is left; what only the members had is lost.",
    ),
    Option(
        name="replication.retry.millis",
        kind=int,
        default=500,
        unit="ms",
        low=10,
        high=_MINUTE_MS,
        setting="retry_ms",
        doc="How long a message between replicas waits for an answer before it is sent again.",
    ),
    Option(
        name="replication.follower.read.wait.millis",
        kind=int,
        default=100,
        unit="ms",
        low=1,
        high=60_000,
        setting="follower_read_wait_ms",
        doc="How long a read at a follower waits for the leader's word, or for what it must see, before it "
        "is sent elsewhere.",
    ),
    Option(
        name="replication.max.message.bytes",
        kind=int,
        default=_MIB,
        unit="bytes",
        low=4_096,
        high=32 * _MIB,
        setting="max_batch_bytes",
        doc="Entries that go to a follower in one message; a single larger entry still goes.",
    ),
    Option(
        name="replication.max.in.flight.messages",
        kind=int,
        default=8,
        unit="messages",
        low=1,
        high=1_024,
        setting="max_in_flight_messages",
        doc="Messages with entries that may be on their way to a follower, unanswered.",
    ),
    Option(
        name="replication.checkpoint.interval.millis",
        kind=int,
        default=2_000,
        unit="ms",
        low=100,
        high=_HOUR_MS,
        doc="How often the applied state is made durable, so that the log below it can be cut.",
    ),
    Option(
        name="producer.expiry.millis",
        kind=int,
        default=7 * _DAY_MS,
        unit="ms",
        low=1_000,
        high=365 * _DAY_MS,
        setting="producer_expiry_ms",
        doc="A producer silent for so long is forgotten, and what it repeats afterwards is refused. "
        "One with a name is kept for seven days at least.",
    ),
    Option(
        name="depot.max.read.bytes",
        kind=int,
        default=16 * _MIB,
        unit="bytes",
        low=1_024,
        high=BATCH_BYTES_MAX,
        scopes=_PER_DEPOT,
        doc="The most that one read returns, whatever it asks for; a single larger batch is returned whole.",
    ),
    Option(
        name="executor.processes",
        kind=int,
        default=0,
        unit="processes",
        low=0,
        high=256,
        doc="Executors of a worker, which run the module's code; 0: one for each of its groups, and no more "
        "than there are cores. Queries have half as many of their own. Taken up when a worker starts.",
    ),
    Option(
        name="executor.timeout.millis",
        kind=int,
        default=10_000,
        unit="ms",
        low=100,
        high=_HOUR_MS,
        doc="A function of a module that runs longer on one record is killed, with its executor.",
    ),
    Option(
        name="topology.stream.batch.records",
        kind=int,
        default=2_000,
        unit="records",
        low=1,
        high=100_000,
        scopes=_PER_TOPOLOGY,
        doc="Records that a stream runs at once, at most; fewer if its functions are slow.",
    ),
    Option(
        name="topology.stream.batch.bytes",
        kind=int,
        default=4 * _MIB,
        unit="bytes",
        low=1_024,
        high=BATCH_BYTES_MAX,
        scopes=_PER_TOPOLOGY,
        doc="Their size, at most; a single larger record still runs.",
    ),
    Option(
        name="topology.stream.retries",
        kind=int,
        default=5,
        low=0,
        high=1_000,
        scopes=_PER_TOPOLOGY,
        doc="How often a record that failed is tried again before it is parked.",
    ),
    Option(
        name="topology.failures.max",
        kind=int,
        default=1_000,
        unit="records",
        low=1,
        high=100_000,
        scopes=_PER_TOPOLOGY,
        doc="Parked records that a topology keeps on each task; the oldest are forgotten.",
    ),
    Option(
        name="topology.microbatch.max.records",
        kind=int,
        default=10_000,
        unit="records",
        low=1,
        high=1_000_000,
        scopes=_PER_TOPOLOGY,
        doc="Records of each depot partition in one microbatch, at most.",
    ),
    Option(
        name="topology.microbatch.interval.millis",
        kind=int,
        default=50,
        unit="ms",
        low=0,
        high=_HOUR_MS,
        scopes=_PER_TOPOLOGY,
        doc="Between the beginnings of two microbatches, at least. Not while somebody waits for one "
        "(ack=all): then the next begins as soon as the last is done.",
    ),
    Option(
        name="topology.microbatch.retries",
        kind=int,
        default=3,
        low=0,
        high=1_000,
        scopes=_PER_TOPOLOGY,
        doc="How often a microbatch is tried again because of a record, before it goes on without that.",
    ),
    Option(
        name="topology.microbatch.timeout.millis",
        kind=int,
        default=10_000,
        unit="ms",
        low=500,
        high=_HOUR_MS,
        scopes=_PER_TOPOLOGY,
        doc="A microbatch begins anew when a task has not been heard of for so long.",
    ),
    Option(
        name="depot.retention.records",
        kind=int,
        default=0,
        unit="records",
        low=0,
        high=1 << 50,
        scopes=_PER_DEPOT,
        doc="How many of its newest records a depot keeps on each task, in whole batches; 0: all. What a "
        "topology has not processed stays.",
    ),
    Option(
        name="depot.retention.millis",
        kind=int,
        default=0,
        unit="ms",
        low=0,
        high=100 * 365 * _DAY_MS,
        scopes=_PER_DEPOT,
        doc="How long a depot keeps its records, in whole batches, the newest of which stays; 0: for ever. "
        "What a topology has not processed stays.",
    ),
    Option(
        name="pin.idle.timeout.millis",
        kind=int,
        default=2 * _MINUTE_MS,
        unit="ms",
        low=1_000,
        high=_DAY_MS,
        doc="A pin, under which a state is read in bulk, ends when nobody has read it for so long.",
    ),
    Option(
        name="pin.max.age.millis",
        kind=int,
        default=_HOUR_MS,
        unit="ms",
        low=1_000,
        high=7 * _DAY_MS,
        doc="A pin ends after so long in any case: as long as it lasts, what is overwritten keeps its place "
        "on the disk.",
    ),
    Option(
        name="snapshot.max.bytes.per.second",
        kind=int,
        default=64 * _MIB,
        unit="bytes/s",
        low=0,
        high=1 << 40,
        doc="How fast a worker writes the copies of a snapshot; 0: as fast as it can.",
    ),
    Option(
        name="snapshot.retain",
        kind=int,
        default=0,
        unit="snapshots",
        low=0,
        high=100_000,
        doc="How many complete snapshots of a module are kept when another one is made: the oldest go; 0: "
        "all are kept.",
    ),
    Option(
        name="leadership.resign.timeout.millis",
        kind=int,
        default=10_000,
        unit="ms",
        low=100,
        high=10 * _MINUTE_MS,
        setting="resign_timeout_ms",
        doc="A leader that could not hand over within this time goes on leading.",
    ),
    Option(
        name="leadership.shutdown.timeout.millis",
        kind=int,
        default=8_000,
        unit="ms",
        low=0,
        high=10 * _MINUTE_MS,
        doc="How long a worker that is asked to stop tries to hand over what it leads.",
    ),
    Option(
        name="leadership.balance.interval.millis",
        kind=int,
        scopes=(Scope.CLUSTER,),
        default=_MINUTE_MS,
        unit="ms",
        low=1_000,
        high=_DAY_MS,
        doc="How often the conductor looks whether leaders are spread evenly over the nodes.",
    ),
    Option(
        name="leadership.balance.threshold",
        kind=float,
        default=0.1,
        low=0.0,
        high=10.0,
        doc="Leaders move when a node's number of them is off its even share by more than this part of it.",
    ),
)
OPTIONS: Mapping[str, Option] = MappingProxyType({option.name: option for option in TABLE})


def option_named(name: str) -> Option:
    """Raises OptionError with the nearest name there is."""
    found = OPTIONS.get(name)
    if found is None:
        [nearest] = difflib.get_close_matches(name.lower().replace("_", "."), OPTIONS, n=1, cutoff=0.0)
        raise OptionError(f"there is no option {name}; the nearest is {nearest}")
    return found


def parse(name: str, value: object, level: Level) -> Value:
    """What somebody wants to set at a level: as text, or of the option's type. Raises OptionError."""
    option = option_named(name)
    option.check_scope(level.scope)
    return option.parse(value) if isinstance(value, str) else option.checked(value)
