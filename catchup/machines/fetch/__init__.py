"""The follower's side of a transfer: what to ask for next, and when it is enough.

A *round* brings every task to an image that the leader made during that round; several tasks at a time. A
round ends when all tasks have theirs, and then it is decided whether there is another one: at least
``min_rounds``, and until the lowest offset of the images is within ``near_lag`` of what the leader has
applied by then, or a round did not even halve what is left. All tasks do the same number of rounds. A small
task that went on by itself while a large one is under way would gain nothing: the lowest offset is what
counts, and that of the large one is older.

The leader keeps its log from the lowest image on, so what is left after any round can be had from there. A
round takes as long as an image takes to be made, however little it sends; beside appends that outrun
``near_lag`` in that time no number of rounds would be enough, and the log is the shorter way.

A task in a round goes through these phases::

    waiting -> preparing (first round: hash what an earlier transfer left here) -> asking (for an image)
            -> listing (its hashes) -> comparing (with those here) -> fetching (what differs) -> complete

If nothing was left here, all of the image is missing, and its blocks are fetched while it is still being
made: *ahead*, a phase between asking and listing. Nothing is known of them yet; comparing tells which are
good.

The staged file is overwritten in place, so it is an image only when its round is complete. A block counts
when its hash is the listed one and it is written; a damaged one is counted and asked for again.

Open ``machine`` first: ``Fetch.step(event, now)`` is the one door, and what it returns is carried out by
:mod:`stretto.catchup.receiving`, or by the simulator. ``events`` and ``effects`` are what it speaks of,
``tasks`` is what it remembers, ``pace`` says when a question is lost. Pure, and imports nothing of the
leader's machine.
"""

from stretto.catchup.machines.fetch.effects import (
    Assemble,
    AwaitRoom,
    Compare,
    Effect,
    Fail,
    MakeRoom,
    Note,
    Prepare,
    Send,
    Store,
    StoreAhead,
    StoreEntries,
)
from stretto.catchup.machines.fetch.events import (
    Begin,
    Compared,
    EntriesStored,
    Event,
    Heard,
    OutOfRoom,
    Prepared,
    RoomMade,
    Stored,
    Tick,
    Working,
)
from stretto.catchup.machines.fetch.machine import (
    DAMAGE_MAX,
    REFUSALS,
    REFUSALS_MAX,
    TASKS_AT_ONCE,
    WINDOW,
    Fetch,
)
from stretto.catchup.machines.fetch.tasks import Phase, TaskFetch, Terms

__all__ = [
    "DAMAGE_MAX",
    "REFUSALS",
    "REFUSALS_MAX",
    "TASKS_AT_ONCE",
    "WINDOW",
    "Assemble",
    "AwaitRoom",
    "Begin",
    "Compare",
    "Compared",
    "Effect",
    "EntriesStored",
    "Event",
    "Fail",
    "Fetch",
    "Heard",
    "MakeRoom",
    "Note",
    "OutOfRoom",
    "Phase",
    "Prepare",
    "Prepared",
    "RoomMade",
    "Send",
    "Store",
    "StoreAhead",
    "StoreEntries",
    "Stored",
    "TaskFetch",
    "Terms",
    "Tick",
    "Working",
]
