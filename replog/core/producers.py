"""Who may append: which producers are admitted, the next sequence of each, and whether the log is sealed.

The table is replicated state: it is a function of the applied entries, so every replica has the same one
at the same offset, and it travels with the applied state. On top of it lies what is in the log but not
applied yet; truncating the log takes that part back.

A producer is admitted by an entry of its own and forgotten by another, decided by the leader. An unknown
producer is refused even at sequence 0: a retry that slept past the expiry must not be taken for a
new batch. For the same reason an id is never admitted twice: it carries the time of its birth, and a
request to admit it is refused when it is old enough to have been forgotten meanwhile.

A *named* producer needs no admission: its id follows from a name, so that whoever takes up the work of
somebody who died goes on under the same id. Its work comes in *rounds*, each of which begins at index 0
whatever the one before ended with (:func:`sequence_in`), so that nobody has to ask how far the others came.
What a round will write is *claimed* first, by a digest: two who work at the same round at once, or one after
the other, write the same or the later one is refused.

A log is sealed for a grouping that is to follow (:mod:`stretto.conductor.planning.regrouping`), by an entry;
so whoever leads has it, and takes no append, whatever else it has heard.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypeAlias

import msgspec

from stretto.replog.frame import Header, Kind
from stretto.vocabulary.types import Offset, ProducerId, TaskId

NO_PRODUCER = ProducerId(0)
REMEMBERED_BATCHES = 5
"""Applied batches per producer and task whose position a late retry still gets."""

_RANDOM_BITS = 21

_NAMED = 1 << 63
"""Set in the id of a named producer: beyond what a time of birth reaches before the year 2109."""
_LASTING = 1 << 62
_HASH_MASK = _LASTING - 1
_INDEX_BITS = 32
_INDEX_MASK = (1 << _INDEX_BITS) - 1
DIGEST_BITS = 31
"""Bits of the digest in a claim; one less than an index has, so that what follows is of the same round."""
ROUNDS_MAX = 1 << 32
NAMED_SILENCE_MS = 7 * 24 * 3600 * 1000
"""Silence after which a named producer may be forgotten, at least, whatever the options say.

A named producer is not refused once it is forgotten: what it repeats then is stored again. So no option makes
that sooner than its users were promised.
"""

_LIFE = (Kind.PRODUCER_OPEN, Kind.PRODUCER_EXPIRE)
SEALS = (Kind.SEAL, Kind.UNSEAL)
_OPEN = -1
"""The sequence under which a producer's admission is looked up."""


def new_producer_id(now_ms: int, random_bits: int) -> ProducerId:
    """Make an id born now; ``random_bits`` tell it apart from others of the same millisecond."""
    return ProducerId((now_ms << _RANDOM_BITS) | (random_bits & ((1 << _RANDOM_BITS) - 1)))


def born_ms(producer: ProducerId) -> int:
    """When the producer's id was made, by the wall clock."""
    return producer >> _RANDOM_BITS


def named_producer_id(name_hash: int, *, lasting: bool) -> ProducerId:
    """Make the id of a named producer from a hash of its name.

    A ``lasting`` one is never forgotten; others are after a long silence, as every producer is.
    """
    return ProducerId(_NAMED | (_LASTING if lasting else 0) | (name_hash & _HASH_MASK))


def is_named(producer: ProducerId) -> bool:
    return producer & _NAMED != 0


def is_lasting(producer: ProducerId) -> bool:
    """Whether this is a named producer that is never forgotten."""
    return producer & _NAMED != 0 and producer & _LASTING != 0


def silence_ms_of(producer: ProducerId, expiry_ms: int) -> int:
    """How long this producer may be silent before it is forgotten, if it ever is."""
    return max(expiry_ms, NAMED_SILENCE_MS) if is_named(producer) else expiry_ms


def sequence_in(round_: int, index: int) -> int:
    """The sequence of a named producer's record, or of its claim, whose index is the digest."""
    return round_ << _INDEX_BITS | index


def round_of(sequence: int) -> int:
    """The round of a named producer's sequence; see :func:`sequence_in`."""
    return sequence >> _INDEX_BITS


def index_of(sequence: int) -> int:
    """The index of a named producer's sequence within its round; see :func:`sequence_in`."""
    return sequence & _INDEX_MASK


class Batch(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """A batch of a producer that was applied: its sequence, its entries, and where in the log it is."""

    sequence: int
    count: int
    offset: Offset


class Sequences(msgspec.Struct, gc=False, array_like=True):
    """What is known of one producer on one task: its next sequence and its most recent batches."""

    next: int
    recent: tuple[Batch, ...] = ()


class ProducerTable(msgspec.Struct):
    """The applied part of what is known of producers; a snapshot of the state carries it."""

    producers: dict[ProducerId, dict[TaskId, Sequences]] = {}
    sealed: int = 0
    """The number of the grouping that the log is sealed for; 0 if it takes appends."""

    def apply(self, header: Header) -> None:
        """Take in an entry that is applied."""
        if header.kind in SEALS:
            self.sealed = sealed_by(header)
        producer = header.producer
        if producer == NO_PRODUCER:
            return
        if header.kind is Kind.PRODUCER_OPEN:
            self.producers.setdefault(producer, {})
        elif header.kind is Kind.PRODUCER_EXPIRE:
            self.producers.pop(producer, None)
        else:
            tasks = self.producers.get(producer)
            if tasks is None:
                if not is_named(producer):  # expired while this batch was in flight: it counts, it is gone
                    return
                tasks = self.producers[producer] = {}
            before = tasks.get(header.task)
            recent = before.recent if before else ()
            batch = Batch(header.sequence, header.count, header.offset)
            tasks[header.task] = Sequences(
                header.sequence + header.count, (*recent[1 - REMEMBERED_BATCHES :], batch)
            )

    def copy(self) -> ProducerTable:
        return ProducerTable(
            {
                producer: {task: Sequences(s.next, s.recent) for task, s in tasks.items()}
                for producer, tasks in self.producers.items()
            },
            self.sealed,
        )


def sealed_by(header: Header) -> int:
    """The number of the grouping that this entry seals the log for; 0 if it unseals the log."""
    return header.sequence if header.kind is Kind.SEAL else 0


@dataclass(frozen=True, slots=True)
class NewBatch:
    """The append is new: store it."""


@dataclass(frozen=True, slots=True)
class DuplicateBatch:
    """The append repeats one that is in the log or applied already."""

    end: Offset | None
    """The original is applied once the apply offset reaches this; None if it is applied already."""
    offset: Offset | None


@dataclass(frozen=True, slots=True)
class SequenceGap:
    """The append's sequence is not the ``expected`` one."""

    expected: int


@dataclass(frozen=True, slots=True)
class UnknownProducer:
    """The append's producer is not admitted, or was forgotten."""


@dataclass(frozen=True, slots=True)
class OtherClaim:
    """The append is a claim of a named producer whose latest, ``claimed``, is of another round or content."""

    claimed: int


Verdict: TypeAlias = NewBatch | DuplicateBatch | SequenceGap | UnknownProducer | OtherClaim


class Producers:
    """All producers of a log: the applied table, with the unapplied part of the log on top."""

    def __init__(self, table: ProducerTable, unapplied: Iterable[Header]) -> None:
        self.table = table
        self._unapplied: deque[Header] = deque()
        self._by_batch: dict[tuple[ProducerId, TaskId, int], Header] = {}
        self._next: dict[tuple[ProducerId, TaskId], int] = {}
        self._open: dict[ProducerId, bool] = {}
        self._seals: deque[Header] = deque()
        self._rebuild(table, unapplied)

    def _rebuild(self, table: ProducerTable, unapplied: Iterable[Header]) -> None:
        self.table = table
        self._unapplied.clear()
        self._by_batch.clear()
        self._next.clear()
        self._open.clear()
        self._seals.clear()
        for header in unapplied:
            self.appended(header)

    @property
    def sealed(self) -> int:
        """The grouping that the log is sealed for, counting unapplied entries; 0 if it takes appends."""
        return sealed_by(self._seals[-1]) if self._seals else self.table.sealed

    def appended(self, header: Header) -> None:
        """Take in an entry that was appended and is not applied yet."""
        if header.kind in SEALS:
            self._seals.append(header)
            self._unapplied.append(header)
            return
        producer = header.producer
        if producer == NO_PRODUCER:
            return
        self._unapplied.append(header)
        if header.kind is Kind.PRODUCER_OPEN:
            self._open[producer] = True
            self._by_batch[(producer, TaskId(0), _OPEN)] = header
        elif header.kind is Kind.PRODUCER_EXPIRE:
            self._open[producer] = False
        else:
            self._next[(producer, header.task)] = header.sequence + header.count
            self._by_batch[(producer, header.task, header.sequence)] = header

    def applied(self, end: Offset) -> None:
        """Move the entries below ``end`` from the unapplied part to the table."""
        unapplied = self._unapplied
        while unapplied and unapplied[0].end_offset <= end:
            header = unapplied.popleft()
            self.table.apply(header)
            self._forget(header)

    def _forget(self, header: Header) -> None:
        """Remove an entry from the unapplied part, unless a later entry says the same."""
        producer = header.producer
        if header.kind in SEALS:
            self._seals.popleft()
        elif header.kind in _LIFE:
            self._by_batch.pop((producer, TaskId(0), _OPEN), None)
            if not any(later.producer == producer and later.kind in _LIFE for later in self._unapplied):
                self._open.pop(producer, None)
        else:
            self._by_batch.pop((producer, header.task, header.sequence), None)
            key = (producer, header.task)
            if self._next.get(key) == header.sequence + header.count:
                del self._next[key]

    def truncated(self, end: Offset) -> None:
        """Take back the entries from ``end`` on."""
        kept = [header for header in self._unapplied if header.end_offset <= end]
        self._rebuild(self.table, kept)

    def replaced(self, table: ProducerTable) -> None:
        """Begin anew with the table of a state that was installed."""
        self._rebuild(table, ())

    def is_open(self, producer: ProducerId) -> bool:
        """Whether the producer is admitted, counting unapplied entries."""
        pending = self._open.get(producer)
        return producer in self.table.producers if pending is None else pending

    def open_producers(self) -> list[ProducerId]:
        return [producer for producer in self.table.producers if self._open.get(producer, True)]

    def judge(self, kind: Kind, producer: ProducerId, task: TaskId, sequence: int, count: int) -> Verdict:
        """Decide what to do with an append that carries this producer and sequence."""
        if producer == NO_PRODUCER:
            return NewBatch()
        if kind is Kind.PRODUCER_OPEN:
            return self._judge_open(producer)
        if not (is_named(producer) or self.is_open(producer)):
            return UnknownProducer()
        pending = self._by_batch.get((producer, task, sequence))
        if pending is not None and kind is Kind.CLAIM and self._next[producer, task] != sequence + 1:
            # Another was claimed since.
            pending = None
        if pending is not None:
            same = pending.count == count
            return DuplicateBatch(pending.end_offset, pending.offset) if same else SequenceGap(sequence)
        applied = self.table.producers.get(producer, {}).get(task)
        if kind is Kind.CLAIM:
            return self._judge_claim(producer, task, sequence, applied)
        applied_next = applied.next if applied else 0
        if sequence + count <= applied_next:
            return DuplicateBatch(None, _position(applied, sequence, count))
        expected = self._next.get((producer, task), applied_next)
        return NewBatch() if sequence == expected else SequenceGap(expected)

    def _judge_claim(
        self, producer: ProducerId, task: TaskId, sequence: int, applied: Sequences | None
    ) -> Verdict:
        if applied is not None and applied.next == sequence + 1:
            return DuplicateBatch(None, _position(applied, sequence, 1))
        claimed = self._next.get((producer, task), applied.next if applied else None)
        return NewBatch() if claimed is None else OtherClaim(claimed - 1)

    def _judge_open(self, producer: ProducerId) -> Verdict:
        if self._open.get(producer) is False:
            return UnknownProducer()
        if not self.is_open(producer):
            return NewBatch()
        pending = self._by_batch.get((producer, TaskId(0), _OPEN))
        return DuplicateBatch(pending.end_offset if pending else None, None)


def _position(applied: Sequences | None, sequence: int, count: int) -> Offset | None:
    for batch in applied.recent if applied else ():
        if batch.sequence == sequence and batch.count == count:
            return batch.offset
    return None
