"""Readable scripts of things that went wrong in this field, run in the same world under the same checkers.

A script is a text file in ``scenarios/``: the comment on top tells the story, each other line is a command.
Nothing goes wrong that the script does not say. At its end everything is healed and must recover.

=====================================  =================================================================
``replicas N``, ``fsync interval``     first lines: the size of the group (3), the fsync mode (always)
``catches MUTANT...``                  first lines: a checker must find each of these in this script
``option NAME VALUE``                  a dynamic option, by its field in ``Settings``
``append NAME [to WORKER]``            a producer sends a batch with that payload and keeps retrying it
``again NAME [to WORKER]``             the same batch once more, at once
``nap MS``                             the producer neither sends nor hears for a while
``late-open``                          a copy of the request that admitted the producer arrives now
``new-producer``                       the producer gives up its id and opens another
``round N NAME...``                    under a lasting name somebody writes these as round N
``read WORKER``                        a reader asks; its answer is what ``expect read`` looks at
``read-stale WORKER MS``               another reader asks, who accepts an answer that is so old, and
                                       remembers what it has seen
``run MS``                             let time pass
``until WHAT``                         let time pass until an expectation holds: a demand for liveness
``expect WHAT``                        it holds now
``crash W``, ``power-loss W``          the process ends; its session does not
``die W``                              the process ends, and its supervisor, which saw it, unregisters it
``start W``, ``wipe W``                (of a stopped worker) start it, empty its disk
``pause W``, ``resume W``              freeze the process and let it go on, believing time stood still
``block A B``, ``unblock A B``         A's messages to B are lost
``hold A B``, ``release A B``          A's messages to B are kept, and delivered later
``release-reversed A B``               the same, the newest first
``metastore W STATE``                  W's connection to the ensemble: up, slow (requests take 500 ms),
                                       slow-replies (heartbeats are answered after 1,500 ms), stale (its
                                       server hears of no change, except by sync), down, cut-off
``expire W``                           W's session expires now
``lose-reply W``                       W's next change of the record commits, and W does not hear of it
``disk W slow|normal``                 the speed of its fdatasync; ``apply W slow|normal``: of its applying
``driver W slow|normal``               how soon it hears of what is written or applied
``clock W RATE``                       the rate of its clock
``resign W to V``                      the operator asks W, which leads, to hand over to V
``resign W``                           W is about to stop, and hands over to whom it chooses
``assign W...``                        the group's replicas from now on; a new worker has the next number
``deaf W``, ``hears W``                W does not hear of assignments; and does again
``regroup N``, ``close N``             another grouping is to follow; it may be in force at any moment
``switch N``, ``abandon N``            it is in force; it is given up
=====================================  =================================================================

What can be expected: ``leader W``, ``serving W``, ``epoch N``, ``isr W...``, ``acked NAME...``,
``pending NAME...``, ``refused NAME REASON``, ``visible NAME...`` (in this order, wherever something is
visible), ``read served``, ``read REASON``, ``stalled W``, ``role W ROLE``, ``reconciled W``,
``end W OFFSET``, ``listed W``, ``followed`` (the record follows the latest assignment), ``retired W`` (it
left and deleted its data), ``sealed W`` (it has applied a seal), ``closed W`` (it shows nothing to readers).
"""

from __future__ import annotations

import importlib.resources
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import msgspec

from stretto.replog.core import events
from stretto.replog.core.effects import ReadServed, Refused
from stretto.replog.core.following.follower import Follower
from stretto.replog.core.guards import GUARDS, Guards
from stretto.replog.core.leading.leader import Leader
from stretto.replog.core.record import Member
from stretto.replog.frame import Kind
from stretto.sim.replication.faults import FAULTS, Plan
from stretto.sim.replication.machine import QUICK_APPLY_MS, QUICK_SYNC_MS
from stretto.sim.replication.metastore import Link, Manners
from stretto.sim.replication.network import Weather
from stretto.sim.replication.node import Node
from stretto.sim.replication.requests import Batch
from stretto.sim.replication.simulation import FAILURES, Simulation, Verdict
from stretto.sim.replication.workload import Session
from stretto.sim.virtual.world import Trace, Violation
from stretto.vocabulary.types import Millis, TaskId, WorkerId

UNTIL_MS = 20_000


class ExpectationFailed(Exception):
    """The script is wrong, or it and the world disagree; that is not a violation of a rule."""


@dataclass(frozen=True)
class Script:
    """A scenario as it is written in its file."""

    name: str
    story: str
    lines: tuple[tuple[int, str], ...]
    """The commands, each with the number of its line in the file."""
    catches: tuple[str, ...] = ()
    """Names of the mutants that this script must catch."""

    @classmethod
    def parse(cls, name: str, text: str) -> Script:
        story: list[str] = []
        lines: list[tuple[int, str]] = []
        for number, raw in enumerate(text.splitlines(), 1):
            line, _, comment = raw.partition("#")
            if line.strip():
                lines.append((number, line.strip()))
            elif comment and not lines:
                story.append(comment.strip())
        catches = [word for _, line in lines for word in line.split()[1:] if line.startswith("catches ")]
        return cls(name, " ".join(story), tuple(lines), tuple(catches))


def scripts() -> list[Script]:
    """Return all scripts that ship with stretto, by name."""
    folder = importlib.resources.files("stretto.sim") / "scenarios"
    files = sorted(
        (file for file in folder.iterdir() if file.name.endswith(".txt")), key=lambda file: file.name
    )
    return [Script.parse(file.name.removesuffix(".txt"), file.read_text("utf-8")) for file in files]


def calm_plan(factor: int, *, fsync_interval: bool = False) -> Plan:
    """Return a plan in which nothing goes wrong by itself."""
    return Plan(
        seed=0,
        factor=factor,
        faults=dict.fromkeys(FAULTS, 0.0),
        fault_every_ms=1_000,
        weather=Weather(),
        manners=Manners(),
        drift=0.0,
        max_near_lag=20,
        max_time_lag_ms=400,
        proof_of_death=0.0,
        interrupted_install=0.0,
        damage=0.0,
        full_disk=0.0,
        long_work=0.0,
        catchup_bytes=0,
        link_bytes=0,
        min_rounds=2,
        slow_driver=0.0,
        unlucky_commit=0.0,
        nap=0.0,
        fsync_interval=fsync_interval,
        dead_for_good=False,
        producers=1,
        produce_every_ms=100,
        read_every_ms=100,
        max_pending=1,
        steps=0,
    )


def run_script(script: Script, guards: Guards = GUARDS, trace: Trace | None = None) -> Verdict:
    """Run a script to its end. Raises ExpectationFailed if a line of it does not hold."""
    return Scenario(script, guards, trace).run()


class Scenario:
    """The world of one script, and what its commands do there."""

    def __init__(self, script: Script, guards: Guards, trace: Trace | None) -> None:
        self.script = script
        settings = dict(line.split(maxsplit=1) for _, line in script.lines if line.split()[0] in _HEADER)
        factor = int(settings.get("replicas", "3"))
        plan = calm_plan(factor, fsync_interval=settings.get("fsync") == "interval")
        self.simulation = Simulation(plan, guards, trace)
        self.world = self.simulation.world
        self.nodes = self.simulation.nodes
        self.producer = self.simulation.workload.producers[0]
        self._batches: dict[str, Batch] = {}
        self._read = 0
        self._session = Session(0)

    def run(self) -> Verdict:
        simulation = self.simulation
        try:
            simulation.begin()
            self.producer.is_open = True
            self._until("serving", ["w0"], "start of the group")
            self._open_producer()
            for number, line in self.script.lines:
                verb, *words = line.split()
                if verb not in _HEADER:
                    self._command(f"{self.script.name}.txt:{number}: {line}", verb, words)
            simulation.heal_and_settle()
            simulation.checkers.finish()
        except FAILURES as violation:
            return simulation.verdict(str(violation))
        return simulation.verdict(None)

    def _open_producer(self) -> None:
        batch = Batch(Kind.PRODUCER_OPEN, TaskId(0), 0, 1, b"")
        self.producer.pending.append(batch)
        self.simulation.workload.send(self.producer, batch)
        self._until("settled", [], "opening the producer")

    # Commands.

    def _command(self, where: str, verb: str, words: list[str]) -> None:
        self.world.trace("script", verb, *words)
        command: Callable[..., None] | None = getattr(self, "_do_" + verb.replace("-", "_"), None)
        if command is None:
            raise ExpectationFailed(
                f"{where}: there is no command {verb!r}; see stretto/sim/replication/scenario.py"
            )
        if verb in ("until", "expect"):
            command(words[0], words[1:], where)
        else:
            command(*words)

    def _node(self, worker: str) -> Node:
        return self.nodes[WorkerId(worker)]

    def _do_run(self, duration: str) -> None:
        end = self.world.now + int(duration)
        while (self.world.next_time or end + 1) <= end and self.world.advance():
            pass
        self.world.now = max(self.world.now, end)

    def _do_option(self, name: str, value: str) -> None:
        current = self.simulation.settings
        if not hasattr(current, name):
            raise ExpectationFailed(f"{self.script.name}: there is no option {name!r}")
        parsed: Any = {"true": True, "false": False, "unset": None}.get(value)
        if value not in ("true", "false", "unset"):
            parsed = Millis(int(value))
        self.simulation.settings = replace(current, **{name: parsed})
        for node in self.nodes.values():
            node.options_changed()

    def _do_append(self, name: str, *to: str) -> None:
        self._aim(to)
        self._batches[name] = self.simulation.workload.submit_new(self.producer, 1, name.encode())

    def _do_again(self, name: str, *to: str) -> None:
        self._aim(to)
        self.simulation.workload.send(self.producer, self._batches[name])

    def _aim(self, to: tuple[str, ...]) -> None:
        if to:
            self.producer.leader = WorkerId(to[1])
        elif self.simulation.metastore.record.leader is not None:
            self.producer.leader = self.simulation.metastore.record.leader

    def _do_read(self, worker: str) -> None:
        self._read = self.simulation.workload.read_at(self._node(worker))
        self._do_run("1")

    def _do_read_stale(self, worker: str, max_staleness_ms: str) -> None:
        self._session.max_staleness_ms = int(max_staleness_ms)
        self._read = self.simulation.workload.read_stale_at(self._node(worker), self._session)
        self._do_run("1")

    def _do_crash(self, worker: str) -> None:
        self._node(worker).crash()

    def _do_power_loss(self, worker: str) -> None:
        self._node(worker).crash(power_loss=True)

    def _do_die(self, worker: str) -> None:
        node = self._node(worker)
        registration = node.session.registration if node.session else None
        node.crash()
        if registration is not None:
            self.simulation.metastore.unregister(registration)

    def _do_start(self, worker: str) -> None:
        self._node(worker).start()

    def _do_wipe(self, worker: str) -> None:
        self.simulation.faults.wipe_disk(self._node(worker))

    def _do_pause(self, worker: str) -> None:
        self._node(worker).pause()

    def _do_resume(self, worker: str) -> None:
        self._node(worker).resume()

    def _do_block(self, sender: str, receiver: str) -> None:
        self.simulation.network.block(WorkerId(sender), WorkerId(receiver))

    def _do_unblock(self, sender: str, receiver: str) -> None:
        self.simulation.network.unblock(WorkerId(sender), WorkerId(receiver))

    def _do_hold(self, sender: str, receiver: str) -> None:
        self.simulation.network.hold(WorkerId(sender), WorkerId(receiver))

    def _do_release(self, sender: str, receiver: str) -> None:
        self.simulation.network.release(WorkerId(sender), WorkerId(receiver))

    def _do_release_reversed(self, sender: str, receiver: str) -> None:
        self.simulation.network.release(WorkerId(sender), WorkerId(receiver), newest_first=True)

    def _do_late_open(self) -> None:
        """Deliver another copy of the request that admitted the producer now."""
        late = Batch(Kind.PRODUCER_OPEN, TaskId(0), 0, 1, b"")
        self._aim(())
        self.simulation.workload.send_copy(self.producer, late)

    def _do_new_producer(self) -> None:
        self.simulation.workload.reopen(self.producer)
        self._open_producer()

    def _do_round(self, number: str, *names: str) -> None:
        contents = [(TaskId(0), 1, name.encode()) for name in names]
        self.simulation.workload.sink.attempt(int(number), contents)

    def _do_metastore(self, worker: str, state: str) -> None:
        node = self._node(worker)
        if node.session is not None:
            node.session.request_ms = 500 if state == "slow" else 0
            node.session.reply_ms = 1_500 if state == "slow-replies" else 0
            node.session.stale = state == "stale"
        node.set_link({"down": Link.DOWN, "cut-off": Link.CUT_OFF}.get(state, Link.UP))

    def _do_nap(self, duration: str) -> None:
        self.producer.asleep_until = self.world.now + int(duration)

    def _do_expire(self, worker: str) -> None:
        session = self._node(worker).session
        if session is not None:
            self.simulation.metastore.expire(session)

    def _do_lose_reply(self, worker: str) -> None:
        self.simulation.metastore.lose_next_reply.add(WorkerId(worker))

    def _do_disk(self, worker: str, speed: str) -> None:
        self._node(worker).sync_ms = {"slow": (60_000, 60_000), "normal": QUICK_SYNC_MS}[speed]

    def _do_apply(self, worker: str, speed: str) -> None:
        self._node(worker).apply_ms = {"slow": (10_000, 10_000), "normal": QUICK_APPLY_MS}[speed]

    def _do_driver(self, worker: str, speed: str) -> None:
        self._node(worker).hand_back_ms = {"slow": 300, "normal": 0}[speed]

    def _do_clock(self, worker: str, rate: str) -> None:
        self._node(worker).set_clock_rate(float(rate))

    def _do_resign(self, worker: str, _to: str = "", target: str = "") -> None:
        epoch = self.simulation.metastore.record.epoch
        to = WorkerId(target) if target else None
        self._node(worker).deliver(events.Resign(epoch=epoch, target=to))

    def _do_assign(self, *workers: str) -> None:
        self.simulation.assign(tuple(WorkerId(worker) for worker in workers))

    def _do_deaf(self, worker: str) -> None:
        self._node(worker).deaf = True

    def _do_hears(self, worker: str) -> None:
        self._node(worker).deaf = False

    def _regroup(self, **changes: int) -> None:
        said = self.simulation.groupings[-1]
        self.simulation.regroup(msgspec.structs.replace(said, next=0, closing=0, **changes))

    def _do_regroup(self, number: str) -> None:
        said = self.simulation.groupings[-1]
        self.simulation.regroup(msgspec.structs.replace(said, next=int(number)))

    def _do_close(self, number: str) -> None:
        said = self.simulation.groupings[-1]
        self.simulation.regroup(msgspec.structs.replace(said, closing=int(number)))

    def _do_switch(self, number: str) -> None:
        self._regroup(present=int(number))

    def _do_abandon(self, number: str) -> None:
        self._regroup(abandoned=int(number))

    # Expectations.

    def _do_expect(self, what: str, words: list[str], where: str) -> None:
        if not self._holds(what, words):
            raise ExpectationFailed(f"{where}: it does not hold; {self._situation()}")

    def _do_until(self, what: str, words: list[str], where: str) -> None:
        self._until(what, words, where)

    def _until(self, what: str, words: list[str], where: str) -> None:
        deadline = self.world.now + UNTIL_MS
        while not self._holds(what, words):
            if self.world.now > deadline or not self.world.advance():
                raise Violation(f"{where}: it never held; {self._situation()}")

    def _holds(self, what: str, words: list[str]) -> bool:
        test: Callable[..., bool] | None = getattr(self, "_is_" + what, None)
        if test is None:
            raise ExpectationFailed(
                f"{self.script.name}: nobody can expect {what!r}; see stretto/sim/replication/scenario.py"
            )
        return test(*words)

    def _leader(self, worker: str) -> Leader | None:
        replica = self._node(worker).replica
        role = replica.role if replica is not None else None
        return role if isinstance(role, Leader) else None

    def _is_leader(self, worker: str) -> bool:
        leader = self._leader(worker)
        return leader is not None and leader.epoch == self.simulation.metastore.record.epoch

    def _is_serving(self, worker: str) -> bool:
        leader = self._leader(worker)
        return self._is_leader(worker) and leader is not None and leader.is_serving

    def _is_epoch(self, epoch: str) -> bool:
        return self.simulation.metastore.record.epoch == int(epoch)

    def _is_isr(self, *workers: str) -> bool:
        listed = self.simulation.metastore.record.isr
        return sorted(member.worker for member in listed) == sorted(workers)

    def _is_listed(self, worker: str) -> bool:
        node = self._node(worker)
        return Member(node.worker, node.storage) in self.simulation.metastore.record.isr

    def _is_followed(self) -> bool:
        return self.simulation.metastore.record.plan == len(self.simulation.plans) - 1

    def _is_retired(self, worker: str) -> bool:
        return self._node(worker).retired

    def _is_acked(self, *names: str) -> bool:
        return all(self._batches[name].acked for name in names)

    def _is_pending(self, *names: str) -> bool:
        return all(self._batches[name] in self.producer.pending for name in names)

    def _is_refused(self, name: str, reason: str) -> bool:
        answer = self._batches[name].answer
        return isinstance(answer, Refused) and answer.reason == reason

    def _is_visible(self, *names: str) -> bool:
        return self.simulation.checkers.visible_payloads() == [name.encode() for name in names]

    def _is_settled(self) -> bool:
        return self.simulation.workload.is_settled

    def _is_read(self, outcome: str) -> bool:
        result = self.simulation.workload.read_results.get(self._read)
        if isinstance(result, ReadServed):
            return outcome == "served"
        return isinstance(result, Refused) and result.reason == outcome

    def _is_stalled(self, worker: str) -> bool:
        leader = self._leader(worker)
        return leader is not None and leader.stalled

    def _is_role(self, worker: str, role: str) -> bool:
        replica = self._node(worker).replica
        return replica is not None and replica.role_name == role

    def _is_reconciled(self, worker: str) -> bool:
        replica = self._node(worker).replica
        role = replica.role if replica is not None else None
        current = self.simulation.metastore.record.epoch
        return isinstance(role, Follower) and role.epoch == current and role.reconciled

    def _is_sealed(self, worker: str) -> bool:
        replica = self._node(worker).replica
        return replica is not None and replica.producers.table.sealed > 0

    def _is_closed(self, worker: str) -> bool:
        replica = self._node(worker).replica
        return replica is not None and replica.closed_for > 0

    def _is_end(self, worker: str, end: str) -> bool:
        replica = self._node(worker).replica
        return replica is not None and replica.log_end == int(end)

    def _situation(self) -> str:
        record = self.simulation.metastore.record
        replicas = [
            f"{node.worker} {node.replica.role_name} {node.replica.applied}/{node.replica.log_end} applied"
            for node in self.nodes.values()
            if node.replica is not None
        ]
        pending = [batch.payload.decode() for batch in self.producer.pending]
        return (
            f"epoch {record.epoch}, leader {record.leader}, isr {[member.worker for member in record.isr]}; "
            f"{'; '.join(replicas)}; pending {pending}; at {self.world.now} ms"
        )


_HEADER = ("replicas", "fsync", "catches")
