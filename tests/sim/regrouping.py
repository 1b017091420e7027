"""Regrouping as a model: how tasks come to be in other groups, while records are appended and read.

The protocol is that of :mod:`stretto.conductor.planning.regrouping`, over several groups, with conductors
that compete and workers that crash; what one group does of it runs in the simulator, on the real core. A
*grouping* is numbered; its number is never used again.

1. The conductor writes the next grouping into the assignment. The leader of each group appends SEAL(next), an
   *entry*: whoever leads from then on has it, and takes no append. So the log ends for everybody, whether or
   not they have heard of the assignment.
2. A worker that has applied the seals of all groups that a next group takes tasks from registers its replica
   of that, under the number of the grouping. (What it has then is a copy here. A worker moves the files
   later, which is the same: nothing changes them.)
3. When all holders of all next groups have registered, the assignment says that it is closing in. Who hears
   so shows nothing more to readers, and says that.
4. When the leader of every group has said so, one compare-and-set of the assignment makes the next grouping
   the present one; it fails if another leads by then. Groups of a grouping that was replaced elect nobody.

Until then it can be abandoned, by a compare-and-set as well: the assignment names the number as abandoned,
and a leader that *reads* so appends UNSEAL(number). That an assignment does not mention a number says
nothing: it may be an old one. Groups of a grouping that was replaced stay sealed.

Groups are modelled as what the core makes of them: a sequence of decided entries that no change of leader
takes back, members that have applied a part of it, and a leader that knows all of it, but perhaps not the
newest assignment. A reader of the leader sees all that is decided. Everything else crashes, lags and is
repeated, as the seed says.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from random import Random

WORKERS = ("a", "b", "c")
TASKS = 4
GROUPINGS = (((0, 1, 2, 3),), ((0, 1), (2, 3)), ((0,), (1,), (2,), (3,)), ((0, 1, 2), (3,)))

Entry = tuple[str, int, int]
"""What it is ("record", "seal", "unseal"), the task or the grouping, and the record."""


class Lost(Exception):
    """Something acknowledged is not there, or is there twice."""


@dataclass(frozen=True)
class Grouping:
    """All workers hold all of its groups."""

    number: int
    tasks: tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class Assignment:
    version: int
    present: Grouping
    next: Grouping | None = None
    closing: bool = False
    abandoned: int = 0


@dataclass
class Group:
    """One group of one grouping."""

    number: int
    """Of the grouping."""
    tasks: tuple[int, ...]
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


def all_prepared(ready: int, holders: int) -> bool:
    return ready == holders


def may_show(closed: int) -> bool:
    """A worker that said that it shows nothing more, for a grouping that was not abandoned, keeps to it."""
    return closed == 0


def all_closed(closed: list[int], number: int) -> bool:
    """The leaders of all groups, whoever they are when the grouping is switched, have said so."""
    return all(each == number for each in closed)


def may_elect(is_over: bool) -> bool:
    """The records of groups that were replaced are gone."""
    return not is_over


def commits(version: int, seen: int) -> bool:
    return version == seen


@dataclass(frozen=True)
class Rules:
    is_closed: Callable[[list[Entry], Assignment], bool] = is_closed
    may_unseal: Callable[[int, Assignment], bool] = may_unseal
    may_copy: Callable[[list[int], int], bool] = may_copy
    counts: Callable[[int, int], bool] = counts
    all_prepared: Callable[[int, int], bool] = all_prepared
    may_show: Callable[[int], bool] = may_show
    all_closed: Callable[[list[int], int], bool] = all_closed
    may_elect: Callable[[bool], bool] = may_elect
    commits: Callable[[int, int], bool] = commits


MUTANTS: Mapping[str, Rules] = {
    "the seal is an entry, not what a leader has heard": Rules(
        is_closed=lambda log, heard: heard.next is not None
    ),
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
    "all holders have their copies before the switch": Rules(all_prepared=lambda ready, holders: ready > 0),
    "who said that it shows nothing keeps to it": Rules(may_show=lambda closed: True),
    "leaders let their readers go before the switch": Rules(all_closed=lambda closed, number: True),
    "all leaders let their readers go before the switch": Rules(
        all_closed=lambda closed, number: number in closed
    ),
    "groups that were replaced elect nobody": Rules(may_elect=lambda is_over: True),
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
        first = Grouping(1, GROUPINGS[1])
        self.assignment = Assignment(1, first)
        self.groups = self._begin(first, {})
        self.conductors = [Conductor(self.assignment), Conductor(self.assignment)]
        #: What each worker has copied and registered: (grouping, group) -> states by task.
        self.copies: dict[str, dict[tuple[int, int], dict[int, tuple[int, ...]]]] = {w: {} for w in WORKERS}
        self.heard = dict.fromkeys(WORKERS, self.assignment)
        #: For which grouping each worker has said that it shows nothing more.
        self.closed = dict.fromkeys(WORKERS, 0)
        self.reads = 0
        self.acknowledged: dict[int, list[int]] = {task: [] for task in range(TASKS)}
        self.records = 0
        self.numbers = 1
        self.switches = 0
        self.abandonments = 0
        #: Leaders of groupings that are over; they have not heard so.
        self.stale: list[Group] = []

    def _begin(self, grouping: Grouping, states: Mapping[tuple[str, int], tuple[int, ...]]) -> list[Group]:
        groups = []
        for tasks in grouping.tasks:
            logs = [[("record", t, r) for t in tasks for r in states.get((w, t), ())] for w in WORKERS]
            if any(log != logs[0] for log in logs):
                raise Lost(f"replicas of {tasks} begin differently in grouping {grouping.number}")
            applied = dict.fromkeys(WORKERS, len(logs[0]))
            leader = self.random.choice(WORKERS)
            groups.append(Group(grouping.number, tasks, list(logs[0]), leader, applied, self.assignment))
        return groups

    # What happens, one thing at a time.

    def run(self, steps: int) -> None:
        events = (
            *(self._append,) * 6,
            *(self._apply,) * 6,
            *(self._lead,) * 3,
            *(self._copy,) * 3,
            *(self._conduct,) * 4,
            *(self._hear,) * 6,
            *(self._read,) * 4,
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
        worker = self.random.choice(WORKERS)
        group.applied[worker] = self.random.randint(group.applied[worker], len(group.log))

    def _lead(self) -> None:
        """A leader does what the assignment asks of it, as far as it has heard."""
        group = self.random.choice([*self.groups, *self.stale])
        heard, sealed = group.heard, sealed_for(group.log)
        wanted = heard.next.number if heard.next is not None else 0
        if sealed and self.rules.may_unseal(sealed, heard):
            group.log.append(("unseal", sealed, 0))
        elif wanted and not sealed:
            group.log.append(("seal", wanted, 0))

    def _hear(self) -> None:
        self.random.choice(self.conductors).seen = self.assignment
        worker = self.random.choice(WORKERS)
        self._hears(worker)
        if self.random.random() < 0.5:
            self._opens(worker)

    def _hears(self, worker: str) -> None:
        """Its replicas hear it with it."""
        heard = self.heard[worker] = self.assignment
        for group in [*self.groups, *self.stale]:
            if group.leader == worker:
                group.heard = heard
        closed = self.closed[worker]
        if heard.next is not None and heard.closing:
            self.closed[worker] = heard.next.number
        elif closed and self.rules.may_unseal(closed, heard):
            self.closed[worker] = 0

    def _opens(self, worker: str) -> None:
        """Its replicas of the present grouping, as far as it has heard; earlier ones are closed before."""
        present = self.heard[worker].present.number
        self.stale = [group for group in self.stale if group.leader != worker or group.number == present]
        if self.closed[worker] <= present:
            self.closed[worker] = 0

    def _read(self) -> None:
        """Of whoever believes to lead; a leader shows all that it knows to be decided."""
        group = self.random.choice([*self.groups, *self.stale])
        if not self.rules.may_show(self.closed[group.leader]):
            return
        task = self.random.choice(group.tasks)
        shown = [record for kind, at, record in group.log if (kind, at) == ("record", task)]
        self.reads += 1
        if shown != self.acknowledged[task]:
            raise Lost(f"a reader of task {task} does not see all that was acknowledged")

    def _elect(self) -> None:
        """Another leads, with the same log; who has a replica of a grouping has heard of it."""
        group = self.random.choice([*self.groups, *self.stale])
        if self.rules.may_elect(group in self.stale):
            self._lead_by(group, self.random.choice(WORKERS))

    def _lead_by(self, group: Group, worker: str) -> None:
        if group.number > self.heard[worker].present.number:
            self._hears(worker)
            self._opens(worker)
        if group.number == self.heard[worker].present.number:
            group.leader = worker
            group.heard = self.heard[worker]

    def _crash(self) -> None:
        """A process is gone: a worker's registrations and all that it led, or what a conductor knew. A worker
        that starts reads the newest assignment."""
        if self.random.random() < 0.3:
            worker = self.random.choice(WORKERS)
            self.copies[worker].clear()
            self.closed[worker] = 0
            others = [each for each in WORKERS if each != worker]
            for group in self.groups:
                if group.leader == worker:
                    self._lead_by(group, self.random.choice(others))
            self._hears(worker)
            self._opens(worker)
        else:
            self.conductors[self.random.randrange(2)] = Conductor(self.assignment)

    def _copy(self) -> None:
        worker = self.random.choice(WORKERS)
        following = self.heard[worker].next
        if following is None:
            return
        for index, tasks in enumerate(following.tasks):
            if (following.number, index) in self.copies[worker]:
                continue
            sources = [group for group in self.groups if set(group.tasks) & set(tasks)]
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
            self.numbers += 1
            after = replace(seen, next=Grouping(self.numbers, self.random.choice(GROUPINGS)))
        elif self.random.random() < 0.02:
            after = replace(seen, next=None, closing=False, abandoned=seen.next.number)
        elif not self._is_prepared(seen.next):
            pass
        elif not seen.closing:
            after = replace(seen, closing=True)
        elif self._is_closed(seen.next):
            after = replace(seen, present=seen.next, next=None, closing=False)
        if after is None:
            return
        if not self.rules.commits(self.assignment.version, seen.version):
            conductor.seen = self.assignment
            return
        self._commit(seen, replace(after, version=self.assignment.version + 1))

    def _registered(self, grouping: Grouping, index: int, worker: str) -> dict[int, tuple[int, ...]] | None:
        for (number, at), states in sorted(self.copies[worker].items(), reverse=True):
            if at == index and self.rules.counts(number, grouping.number):
                return states
        return None

    def _is_prepared(self, grouping: Grouping) -> bool:
        asked = [(index, worker) for index in range(len(grouping.tasks)) for worker in WORKERS]
        ready = sum(self._registered(grouping, *each) is not None for each in asked)
        return self.rules.all_prepared(ready, len(asked))

    def _is_closed(self, grouping: Grouping) -> bool:
        """As it is when the change is made: that is conditional on the versions of the groups' records."""
        return self.rules.all_closed([self.closed[group.leader] for group in self.groups], grouping.number)

    def _commit(self, seen: Assignment, after: Assignment) -> None:
        self.abandonments += after.abandoned > self.assignment.abandoned
        self.assignment = after
        if seen.next is not None and after.present is seen.next:
            self.switches += 1
            states: dict[tuple[str, int], tuple[int, ...]] = {}
            for index in range(len(after.present.tasks)):
                for worker in WORKERS:
                    found = self._registered(after.present, index, worker) or {}
                    states |= {(worker, task): held for task, held in found.items()}
            self.stale += self.groups
            self.groups = self._begin(after.present, states)
            self._check()
            for group in self.groups:
                self._hears(group.leader)
                self._opens(group.leader)

    def _check(self) -> None:
        for group in self.groups:
            for task in group.tasks:
                held = [record for kind, at, record in group.log if (kind, at) == ("record", task)]
                if held != self.acknowledged[task]:
                    missing = sorted(set(self.acknowledged[task]) - set(held))
                    raise Lost(
                        f"task {task} lacks {missing[:5]} in grouping {self.assignment.present.number}"
                    )
