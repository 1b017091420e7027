"""Every error a caller of stretto can meet, in one tree.

A person at the CLI sees ``str(error)``: one sentence that says what is wrong and what to do.
A broken invariant is not in this tree: see :mod:`stretto.vocabulary.invariants`.
"""

from __future__ import annotations


class StrettoError(Exception):
    """Root of all errors that a caller of stretto can meet."""


class RetriableError(StrettoError):
    """The same request may succeed later, unchanged."""


class NotAppended(RetriableError):
    """The record is certainly not appended, and will not be; appending it again later may succeed."""


class NotEnoughReplicas(NotAppended):
    """The record is certainly not appended: fewer than min-ISR replicas of its group can take an entry."""


class OutcomeUnknown(RetriableError):
    """The append may or may not be applied, now or later: appending it again may store it twice."""


class ModulePaused(StrettoError):
    """The module takes no records until somebody resumes it."""

    def __init__(self, module: str) -> None:
        super().__init__(
            f"module {module} is paused and takes no records; resume it with 'stretto deploy resume {module}'"
        )


class ProcessingFailed(StrettoError):
    """The record is appended, but a function of the module failed on it."""


class ResultUnknown(StrettoError):
    """The record is appended and processed, but what its topologies made of it is not known.

    It may have failed, or something was returned. Look at the state, and do not append it again.
    """


class OffsetTrimmed(StrettoError):
    """The records that a reader asks for are no longer there, by the depot's retention."""

    def __init__(self, depot: str, task: int, offset: int, start: int) -> None:
        super().__init__(
            f"depot {depot} begins at offset {start:,} on task {task}, and what was at {offset:,} is trimmed "
            f"away; go on from {start:,}"
        )
        self.task = task
        self.offset = offset
        self.start = start


class PinLost(StrettoError):
    """A state that was pinned for reading is no longer kept; its reader has to begin anew."""

    def __init__(self, pin: str, group: str, worker: str, why: str) -> None:
        super().__init__(f"pin {pin} of group {group} on worker {worker} is lost: {why}; load it again")
        self.pin = pin
        self.group = group
        self.worker = worker
        self.why = why


class PeerError(StrettoError):
    """The other side sent something that no correct peer sends."""


class UsageError(StrettoError):
    """The caller asked for something that cannot be; the sentence says what to ask instead."""


class DeclarationError(UsageError):
    """A module declares what cannot be."""


class ModuleError(UsageError):
    """A module does not load. ``traceback`` is its author's own, if their code raised; else empty."""

    def __init__(self, sentence: str, traceback: str = "") -> None:
        super().__init__(sentence)
        self.traceback = traceback


class QueryFailed(StrettoError):
    """The function of a query raised, hung or ended its process; ``traceback`` is its author's, if any."""

    def __init__(self, sentence: str, traceback: str = "") -> None:
        super().__init__(sentence)
        self.traceback = traceback


class UpdateFailed(StrettoError):
    """New code of a module does not load on some node, and the old code still runs."""

    def __init__(self, sentence: str, traceback: str = "") -> None:
        super().__init__(sentence)
        self.traceback = traceback


class OptionError(UsageError):
    """An unknown option or a value out of its bounds."""


class StorageError(StrettoError):
    """A write or an fdatasync failed. It is never retried: the replica stops."""


class StorageCorrupt(StrettoError):
    """Bytes on disk do not match their checksum."""

    def __init__(self, segment: str, offset: int, position: int, why: str) -> None:
        super().__init__(f"segment {segment} is corrupt at byte {position} (entry offset {offset}): {why}")
        self.segment = segment
        self.offset = offset
        self.position = position
        self.why = why


def sentence_of(error: Exception) -> str:
    """The sentence to show for an error, also for one that was not written for people."""
    return str(error) if isinstance(error, StrettoError) else f"{type(error).__name__}: {error}"
