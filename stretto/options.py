"""Every option of a cluster, declared once: what it means, what it may be, and where it may be set.

Options change while the cluster runs. They are kept in the metastore by level (:mod:`stretto.zk.options`):
for the whole cluster, for a module, or for one depot, topology or PState of a module; the most specific level
that has a value wins. Validation, documentation and the core's :class:`Settings` are made from the table
below, so that nothing about an option is said twice.
"""

from __future__ import annotations

import difflib
import enum
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, TypeAlias

import msgspec

from stretto.errors import OptionError, UsageError
from stretto.records import BATCH_BYTES_MAX
from stretto.replog.core.settings import Settings

Value: TypeAlias = bool | int | float | str

_MINUTE_MS = 60_000
_HOUR_MS = 60 * _MINUTE_MS
_DAY_MS = 24 * _HOUR_MS
_MIB = 1 << 20


class Scope(enum.StrEnum):
    """Kinds of levels."""

    CLUSTER = "cluster"
    MODULE = "module"
    TOPOLOGY = "topology"
    DEPOT = "depot"
    PSTATE = "pstate"


@dataclass(frozen=True, slots=True, order=True)
class Level:
    """Where a value is set. Made by :meth:`of`, or :data:`CLUSTER`."""

    scope: Scope = Scope.CLUSTER
    module: str | None = None
    name: str | None = None
    """Of the depot, topology or PState."""

    @classmethod
    def of(
        cls,
        module: str | None = None,
        *,
        depot: str | None = None,
        topology: str | None = None,
        pstate: str | None = None,
    ) -> Level:
        """The level that a person names; raises UsageError unless it is one."""
        parts = {Scope.DEPOT: depot, Scope.TOPOLOGY: topology, Scope.PSTATE: pstate}
        named = [(scope, name) for scope, name in parts.items() if name is not None]
        if len(named) > 1:
            raise UsageError("name one depot, topology or PState, not several: each is a level of its own")
        if module is None:
            if named:
                raise UsageError(f"name the module that {named[0][0]} {named[0][1]} belongs to")
            return cls()
        if not named:
            return cls(Scope.MODULE, module)
        scope, name = named[0]
        return cls(scope, module, name)

    def path(self) -> tuple[Level, ...]:
        """This level and those around it, most specific first."""
        match self.scope:
            case Scope.CLUSTER:
                return (self,)
            case Scope.MODULE:
                return (self, CLUSTER)
            case _:
                return (self, Level(Scope.MODULE, self.module), CLUSTER)

    def __str__(self) -> str:
        match self.scope:
            case Scope.CLUSTER:
                return "cluster"
            case Scope.MODULE:
                return f"module {self.module}"
            case _:
                return f"{self.scope} {self.name} of module {self.module}"


CLUSTER = Level()

_GROUP = (Scope.CLUSTER, Scope.MODULE)
"""What concerns a whole task group, which holds parts of all depots and PStates of its module."""
_PER_DEPOT = (*_GROUP, Scope.DEPOT)
_PER_TOPOLOGY = (*_GROUP, Scope.TOPOLOGY)


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    name: str
    kind: type[int | float | bool | str]
    default: Value | None
    """None: its meaning depends on the group, and ``default_means`` tells it."""
    doc: str
    scopes: tuple[Scope, ...] = _GROUP
    unit: str = ""
    low: float | None = None
    high: float | None = None
    choices: tuple[str, ...] = ()
    default_means: str = ""
    setting: str | None = None
    """The field of the core's Settings that it becomes."""

    def parse(self, text: str) -> Value:
        """A value as a person writes it; raises OptionError."""
        text = text.strip()
        if self.kind is str:
            return self.checked(text)
        try:
            return self.checked(msgspec.json.decode(text.lower() if self.kind is bool else text))
        except msgspec.DecodeError:
            raise self._refusal(text) from None

    def checked(self, value: object) -> Value:
        """The value, if the option may have it; raises OptionError."""
        if self.kind is float and isinstance(value, int) and not isinstance(value, bool):
            value = float(value)
        if type(value) is not self.kind or not isinstance(value, bool | int | float | str):
            raise self._refusal(value)
        if isinstance(value, str):
            is_good = value in self.choices
        else:
            is_good = (self.low is None or self.low <= value) and (self.high is None or value <= self.high)
        if not is_good:
            raise self._refusal(value)
        return value

    def check_scope(self, scope: Scope) -> None:
        if scope not in self.scopes:
            raise OptionError(
                f"{self.name} cannot be set for a single {scope}; set it for a {_any_of(self.scopes[::-1])}"
                if len(self.scopes) > 1
                else f"{self.name} can be set for the whole cluster only"
            )

    @property
    def takes(self) -> str:
        """What it may be, in words."""
        if self.kind is bool:
            return "true or false"
        if self.kind is str:
            return _any_of(self.choices)
        noun = "a whole number" if self.kind is int else "a number"
        if self.low is None or self.high is None:
            return noun
        return f"{noun} from {self.low} to {self.high}"

    def _refusal(self, value: object) -> OptionError:
        unit = f" ({self.unit})" if self.unit else ""
        return OptionError(f"{self.name} is {self.takes}{unit}, not {shown(value)}")


def _any_of(words: Iterable[str]) -> str:
    *others, last = words
    return f"{', '.join(others)} or {last}" if others else last


def shown(value: object) -> str:
    """A value as a person writes it."""
    return value if isinstance(value, str) else msgspec.json.encode(value, enc_hook=repr).decode()


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
        doc="An append that is not applied by then is answered with *outcome unknown*.",
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
        doc="A producer silent for so long is forgotten; what it repeats afterwards is refused.",
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
        doc="Between the beginnings of two microbatches, at least.",
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Resolved:
    """What is in force, and why."""

    option: Option
    value: Value | None
    """None for an option whose default depends on the group."""
    origin: Level | None
    """Where it is set; None: nowhere, it is the default."""


@dataclass(frozen=True, slots=True)
class PerDepot:
    """An option's value for each depot of a module, quick to look up."""

    others: Any
    special: Mapping[str, Any]

    def of(self, depot: str) -> Any:
        return self.special.get(depot, self.others)


@dataclass(frozen=True, slots=True)
class OptionSet:
    """All that is set, by level. Names that are no options (of a later release perhaps) mean nothing here."""

    levels: Mapping[Level, Mapping[str, Any]] = field(default_factory=dict)

    def resolve(self, name: str, level: Level) -> Resolved:
        """What holds at a level."""
        option = option_named(name)
        for each in level.path():
            if each.scope in option.scopes and name in self.levels.get(each, {}):
                return Resolved(option=option, value=self.levels[each][name], origin=each)
        return Resolved(option=option, value=option.default, origin=None)

    def value(self, name: str, level: Level) -> Any:
        return self.resolve(name, level).value

    def per_depot(self, name: str, module: str) -> PerDepot:
        special = {
            str(level.name): self.value(name, level)
            for level in self.levels
            if level.scope is Scope.DEPOT and level.module == module
        }
        return PerDepot(self.value(name, Level.of(module)), special)


def settings_of(options: OptionSet, module: str) -> Settings:
    """What the core goes by in the groups of a module."""
    level = Level.of(module)
    values = {each.setting: options.value(each.name, level) for each in TABLE if each.setting is not None}
    return Settings(**values)
