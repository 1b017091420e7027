"""Regrouping as a model: how a module's tasks would come to be in other groups, while records are appended.

The protocol, of which no part is in production code. A *grouping* is numbered; its number is never used
again.

1. The conductor writes the next grouping into the assignment, and gives every group of the present one all
   workers that will need its tasks as replicas (that much is :mod:`stretto.conductor.moving`'s, and taken
   for granted here: a new holder of a task has a replica of the group that the task is in).
2. It asks for seals. The leader of each group appends SEAL(next), an *entry*: whoever leads from then on
   has it, and takes no append. So the log ends for everybody, whether or not they have heard of the
   assignment.
3. A worker that has applied the seals of all groups that a next group takes tasks from copies these tasks
   into a new replica, and registers it under the number of the grouping.
4. When all holders of all next groups have registered, one compare-and-set of the assignment makes the next
   grouping the present one. Until then it can be abandoned, by a compare-and-set as well: the assignment
   names the number as abandoned, and a leader that *reads* so appends UNSEAL(number). That an assignment
   does not mention a number says nothing: it may be an old one. Groups of a grouping that was replaced stay
   sealed.

Groups are modelled as what the core makes of them: a sequence of decided entries that no change of leader
takes back, members that have applied a part of it, and a leader that knows all of it, but perhaps not the
newest assignment. Everything else crashes, lags and is repeated, as the seed says.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from random import Random

WORKERS = ("a", "b", "c", "d")
TASKS = 4
GROUPINGS = (((0, 1, 2, 3),), ((0, 1), (2, 3)), ((0,), (1,), (2,), (3,)), ((0, 1, 2), (3,)))

Entry = tuple[str, int, int]
"""What it is ("record", "seal", "unseal"), the task or the grouping, and the record."""


class Lost(Exception):
    """Something acknowledged is not there, or is there twice."""


@dataclass(frozen=True)
class Grouping:
    number: int
    tasks: tuple[tuple[int, ...], ...]
    holders: tuple[tuple[str, ...], ...]


@dataclass(frozen=True)
class Assignment:
    version: int
    present: Grouping
    next: Grouping | None = None
    sealing: bool = False
    abandoned: int = 0


@dataclass
class Group:
    """One group of one grouping."""

    tasks: tuple[int, ...]
    members: tuple[str, ...]
    log: list[Entry]
    leader: str
    applied: dict[str, int]
    heard: Assignment
    """By whoever leads."""

    def state(self, worker: str, task: int) -> tuple[int, ...]:
        entries = self.log[: self.applied[worker]]
        return tuple(record for kind, at, record in entries if (kind, at) == ("record", task))


def sealed_for(log: list[Entry]) -> int:
    """The number of the grouping that a log is sealed for; 0 if it takes appends."""
    for kind, number, _ in reversed(log):
        if kind == "seal":
            return number
        if kind == "unseal":
            return 0
    return 0


# The rules. A mutant replaces one.


def is_closed(log: list[Entry], heard: Assignment) -> bool:
    """A leader takes no append once the log is sealed, whatever it has heard."""
    return sealed_for(log) > 0


def may_unseal(number: int, heard: Assignment) -> bool:
    """The assignment says that the grouping was abandoned. A later one that was says nothing of one that took
    place, whose predecessors stay sealed for ever."""
    return heard.present.number < number <= heard.abandoned


def may_copy(sealed: list[int], number: int) -> bool:
    """All groups that tasks are taken from are sealed for this grouping, as far as they are applied here."""
    return all(each == number for each in sealed)


def counts(registered: int, number: int) -> bool:
    """A new replica is one of this grouping, not of an earlier attempt."""
    return registered == number


def may_switch(ready: int, holders: int) -> bool:
    return ready == holders


def commits(version: int, seen: int) -> bool:
    return version == seen


@dataclass(frozen=True)
class Rules:
    is_closed: Callable[[list[Entry], Assignment], bool] = is_closed
    may_unseal: Callable[[int, Assignment], bool] = may_unseal
    may_copy: Callable[[list[int], int], bool] = may_copy
    counts: Callable[[int, int], bool] = counts
    may_switch: Callable[[int, int], bool] = may_switch
    commits: Callable[[int, int], bool] = commits


MUTANTS: Mapping[str, Rules] = {
    "the seal is an entry, not what a leader has heard": Rules(is_closed=lambda log, heard: heard.sealing),
    "a number that is not mentioned is not abandoned": Rules(
        may_unseal=lambda number, heard: heard.next is None or heard.next.number != number
    ),
    "a grouping that took place was not abandoned": Rules(
        may_unseal=lambda number, heard: number <= heard.abandoned
    ),
    "tasks are copied when all their groups are sealed": Rules(
        may_copy=lambda sealed, number: number in sealed
    ),
    "tasks are copied when their groups are sealed": Rules(may_copy=lambda sealed, number: True),
    "a copy counts for its own grouping": Rules(counts=lambda registered, number: True),
    "all holders have their copies before the switch": Rules(may_switch=lambda ready, holders: ready > 0),
    "switch and abandonment are conditional on the version": Rules(commits=lambda version, seen: True),
}


@dataclass
class Conductor:
    """Remembers nothing but what it saw last."""

    seen: Assignment


@dataclass
class World:
    seed: int
    rules: Rules = field(default_factory=Rules)

    def __post_init__(self) -> None:
        self.random = Random(self.seed)
        first = Grouping(1, GROUPINGS[1], (("a", "b"), ("b", "c")))
        self.assignment = Assignment(1, first)
        self.groups = self._begin(first, {})
        self.conductors = [Conductor(self.assignment), Conductor(self.assignment)]
        #: What each worker has copied and registered: (grouping, group) -> states by task.
        self.copies: dict[str, dict[tuple[int, int], dict[int, tuple[int, ...]]]] = {w: {} for w in WORKERS}
        self.heard = dict.fromkeys(WORKERS, self.assignment)
        self.acknowledged: dict[int, list[int]] = {task: [] for task in range(TASKS)}
        self.records = 0
        self.numbers = 1
        self.switches = 0
        self.abandonments = 0
        #: Leaders of groupings that are over; they have not heard so.
        self.stale: list[Group] = []

    def _begin(self, grouping: Grouping, states: Mapping[tuple[str, int], tuple[int, ...]]) -> list[Group]:
        groups = []
        for tasks, members in zip(grouping.tasks, grouping.holders, strict=True):
            held = {w: [(("record"), t, r) for t in tasks for r in states.get((w, t), ())] for w in members}
            logs = list(held.values())
            if any(log != logs[0] for log in logs):
                raise Lost(f"replicas of {tasks} begin differently in grouping {grouping.number}")
            applied = dict.fromkeys(members, len(logs[0]))
            groups.append(Group(tasks, members, list(logs[0]), members[0], applied, self.assignment))
        return groups

    # What happens, one thing at a time.

    def run(self, steps: int) -> None:
        events = (
            *(self._append,) * 6,
            *(self._apply,) * 6,
            *(self._lead,) * 3,
            *(self._copy,) * 3,
            *(self._conduct,) * 4,
            self._hear,
            self._hear,
            self._elect,
            self._crash,
            self._append_to_stale,
        )
        for _ in range(steps):
            self.random.choice(events)()
        self._check()

    def _append(self) -> None:
        self._offer(self.random.choice(self.groups))

    def _append_to_stale(self) -> None:
        if self.stale:
            self._offer(self.random.choice(self.stale))

    def _offer(self, group: Group) -> None:
        """Acknowledged when it is decided, which here is at once."""
        if not self.rules.is_closed(group.log, group.heard):
            task = self.random.choice(group.tasks)
            self.records += 1
            group.log.append(("record", task, self.records))
            self.acknowledged[task].append(self.records)

    def _apply(self) -> None:
        group = self.random.choice(self.groups)
        worker = self.random.choice(group.members)
        group.applied[worker] = self.random.randint(group.applied[worker], len(group.log))

    def _lead(self) -> None:
        """A leader does what the assignment asks of it, as far as it has heard."""
        group = self.random.choice([*self.groups, *self.stale])
        heard, sealed = group.heard, sealed_for(group.log)
        wanted = heard.next.number if heard.next is not None and heard.sealing else 0
        if sealed and self.rules.may_unseal(sealed, heard):
            group.log.append(("unseal", sealed, 0))
        elif wanted and not sealed:
            group.log.append(("seal", wanted, 0))

    def _hear(self) -> None:
        self.random.choice([*self.groups, *self.stale]).heard = self.assignment
        self.heard[self.random.choice(WORKERS)] = self.assignment
        self.random.choice(self.conductors).seen = self.assignment

    def _elect(self) -> None:
        """Another leads, with the same log, and with what it had heard when it last did."""
        group = self.random.choice(self.groups)
        group.leader = self.random.choice(group.members)
        group.heard = self.heard[group.leader]

    def _crash(self) -> None:
        """A process is gone: a worker's registrations, or what a conductor knew."""
        if self.random.random() < 0.5:
            self.copies[self.random.choice(WORKERS)].clear()
        else:
            self.conductors[self.random.randrange(2)] = Conductor(self.assignment)

    def _copy(self) -> None:
        worker = self.random.choice(WORKERS)
        following = self.heard[worker].next
        if following is None:
            return
        for index, (tasks, holders) in enumerate(zip(following.tasks, following.holders, strict=True)):
            if worker not in holders or (following.number, index) in self.copies[worker]:
                continue
            sources = [group for group in self.groups if set(group.tasks) & set(tasks)]
            if any(worker not in group.members for group in sources):
                continue
            sealed = [sealed_for(group.log[: group.applied[worker]]) for group in sources]
            if self.rules.may_copy(sealed, following.number):
                self.copies[worker][following.number, index] = {
                    task: group.state(worker, task)
                    for group in sources
                    for task in tasks
                    if task in group.tasks
                }

    def _conduct(self) -> None:
        """One of two conductors, perhaps the one that is no longer active, takes the next step it sees."""
        conductor = self.random.choice(self.conductors)
        seen = conductor.seen
        after: Assignment | None = None
        if seen.next is None:
            after = replace(seen, next=self._plan())
        elif self.random.random() < 0.08:
            after = replace(seen, next=None, sealing=False, abandoned=seen.next.number)
        elif not seen.sealing:
            after = replace(seen, sealing=True)
        elif self._is_ready(seen.next):
            after = replace(seen, present=seen.next, next=None, sealing=False)
        if after is None:
            return
        if not self.rules.commits(self.assignment.version, seen.version):
            conductor.seen = self.assignment
            return
        self._commit(seen, replace(after, version=self.assignment.version + 1))

    def _plan(self) -> Grouping:
        """Holders have replicas of the groups that their tasks come from."""
        self.numbers += 1
        tasks = self.random.choice(GROUPINGS)
        holders = []
        for each in tasks:
            sources = [group for group in self.groups if set(group.tasks) & set(each)]
            able = [worker for worker in WORKERS if all(worker in group.members for group in sources)]
            if not able:
                able = list(WORKERS[:2])
                for group in sources:
                    group.members = tuple(dict.fromkeys((*group.members, *able)))
                    for worker in able:
                        group.applied.setdefault(worker, 0)
            holders.append(tuple(able))
        return Grouping(self.numbers, tasks, tuple(holders))

    def _registered(self, grouping: Grouping, index: int, worker: str) -> dict[int, tuple[int, ...]] | None:
        for (number, at), states in sorted(self.copies[worker].items(), reverse=True):
            if at == index and self.rules.counts(number, grouping.number):
                return states
        return None

    def _is_ready(self, grouping: Grouping) -> bool:
        asked = [(index, worker) for index, holders in enumerate(grouping.holders) for worker in holders]
        ready = sum(self._registered(grouping, *each) is not None for each in asked)
        return self.rules.may_switch(ready, len(asked))

    def _commit(self, seen: Assignment, after: Assignment) -> None:
        self.abandonments += after.abandoned > self.assignment.abandoned
        self.assignment = after
        if seen.next is not None and after.present is seen.next:
            self.switches += 1
            states: dict[tuple[str, int], tuple[int, ...]] = {}
            for index, holders in enumerate(after.present.holders):
                for worker in holders:
                    found = self._registered(after.present, index, worker) or {}
                    states |= {(worker, task): held for task, held in found.items()}
            self.stale = self.groups
            self.groups = self._begin(after.present, states)
            self._check()

    def _check(self) -> None:
        for group in self.groups:
            for task in group.tasks:
                held = [record for kind, at, record in group.log if (kind, at) == ("record", task)]
                if held != self.acknowledged[task]:
                    missing = sorted(set(self.acknowledged[task]) - set(held))
                    raise Lost(
                        f"task {task} lacks {missing[:5]} in grouping {self.assignment.present.number}"
                    )
