"""What goes wrong, when, and how badly: all drawn from the seed.

Each seed draws its own mix (some seeds never crash a node, others do little else), because a uniform mix
explores less. Disks are destroyed only while another member of every possible ISR is whole: what
remains of a group whose last copy is gone nobody can promise.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from random import Random
from typing import TYPE_CHECKING

import msgspec

from stretto.replog.core import events
from stretto.replog.core.following.follower import Follower
from stretto.replog.core.leading.leader import Leader
from stretto.replog.core.record import GroupRecord
from stretto.sim.replication.machine import QUICK_APPLY_MS, QUICK_SYNC_MS
from stretto.sim.replication.metastore import Link, Manners
from stretto.sim.replication.network import Weather
from stretto.vocabulary.types import Millis

if TYPE_CHECKING:
    from stretto.sim.replication.node import Node
    from stretto.sim.replication.simulation import Simulation

FAULTS = (
    "crash",
    "power_loss",
    "wipe",
    "bit_flip",
    "broken_disk",
    "slow_disk",
    "slow_apply",
    "pause",
    "isolate",
    "part_pair",
    "part_one_way",
    "reset",
    "lag_link",
    "last_words",
    "reborn",
    "lose_metastore",
    "cut_off",
    "expire",
    "drift",
    "resign",
    "change_options",
    "reassign",
    "regroup",
    "shutdown",
)
SHUTDOWN_MS = 1_500
REPLICAS_MAX = 5
NODES_MAX = 11


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What a seed draws before the first event; it is printed first, so that a person sees what it tries."""

    seed: int
    factor: int
    faults: dict[str, float]
    """Weight of each kind of fault."""
    fault_every_ms: int
    weather: Weather
    manners: Manners
    drift: float
    """How much faster or slower than true time a node's clock may run."""
    max_near_lag: int
    max_time_lag_ms: int
    proof_of_death: float
    """How often a supervisor sees a process die and removes its registration at once."""
    interrupted_install: float
    damage: float
    """How often blocks or hashes of a leader's state are damaged on their way."""
    full_disk: float
    """How often there is no space for a leader's state."""
    long_work: float
    """How often what a follower does with its files takes longer than it may be silent."""
    catchup_bytes: int
    """How many bytes of state a leader sends in a second; 0: any."""
    link_bytes: int
    """How many bytes of state a link carries in a second; 0: any."""
    min_rounds: int
    slow_driver: float
    """How often what a driver's threads hand back takes its time."""
    unlucky_commit: float
    """How often a change of the record cuts its writer off before it hears of it."""
    nap: float
    """How often a producer falls asleep with batches under way."""
    fsync_interval: bool
    dead_for_good: bool
    """Whether one replica stays away for ever after healing."""
    producers: int
    produce_every_ms: int
    read_every_ms: int
    max_pending: int
    steps: int

    @classmethod
    def draw(cls, seed: int, steps: int) -> Plan:
        """Draw the plan of a seed."""
        random = Random(f"plan {seed}")
        names = [name for name in FAULTS if name not in ("reassign", "regroup", "shutdown")]
        chosen = {name: round(random.random() ** 2, 3) if random.random() < 0.6 else 0.0 for name in names}
        chosen["resign"] *= 3
        assignments = Random(f"assignments {seed}")
        chosen["reassign"] = round(assignments.random(), 3) if assignments.random() < 0.4 else 0.0
        groupings = Random(f"groupings {seed}")
        chosen["regroup"] = round(groupings.random(), 3) if groupings.random() < 0.4 else 0.0
        shutdowns = Random(f"shutdowns {seed}")
        chosen["shutdown"] = round(shutdowns.random(), 3) if shutdowns.random() < 0.4 else 0.0
        works = Random(f"works {seed}")
        links = Random(f"links {seed}")
        rough = random.random()
        return cls(
            seed=seed,
            factor=random.choice((3, 3, 3, 3, 2, 4, 5)),
            faults=chosen,
            fault_every_ms=random.choice((60, 150, 300, 600)),
            weather=Weather(
                loss=round(random.choice((0.0, 0.01, 0.05)) * rough, 4),
                doubling=round(random.choice((0.0, 0.02, 0.1)) * rough, 4),
                slow=round(random.choice((0.0, 0.02, 0.15)) * rough, 4),
                slow_ms=random.choice((100, 400, 1500)),
            ),
            manners=Manners(
                lost_request=round(random.choice((0.0, 0.02, 0.1)), 4),
                lost_reply=round(random.choice((0.0, 0.05, 0.3)), 4),
                slow_request=random.choice((0.0, 0.02, 0.1)),
                late_watch=round(random.choice((0.0, 0.1, 0.4)), 4),
                late_ms=random.choice((300, 1500, 4000)),
            ),
            drift=random.choice((0.0, 0.03, 0.13)),
            max_near_lag=random.choice((5, 20, 40)),
            max_time_lag_ms=random.choice((150, 400)),
            proof_of_death=random.choice((0.0, 0.5, 1.0)),
            interrupted_install=random.choice((0.0, 0.2)),
            damage=random.choice((0.0, 0.1)),
            full_disk=random.choice((0.0, 0.0, 0.1)),
            catchup_bytes=random.choice((0, 0, 2_000)),
            long_work=works.choice((0.0, 0.0, 0.3, 1.0)),
            link_bytes=links.choice((0, 0, 0, 1_000)),
            min_rounds=random.choice((1, 2, 2, 4)),
            slow_driver=random.choice((0.0, 0.1, 0.5)),
            unlucky_commit=random.choice((0.0, 0.0, 0.1, 0.4)),
            nap=random.choice((0.0, 0.005, 0.02)),
            fsync_interval=random.random() < 0.15,
            dead_for_good=random.random() < 0.4,
            producers=random.choice((1, 2, 3)),
            produce_every_ms=random.choice((20, 60, 150)),
            read_every_ms=random.choice((10, 40, 100)),
            max_pending=random.choice((1, 2, 6)),
            steps=steps,
        )

    def describe(self) -> str:
        """Return the plan in words, for the person who runs the seed."""
        faults = " ".join(f"{name}={weight}" for name, weight in self.faults.items() if weight)
        weather, manners = self.weather, self.manners
        return (
            f"seed {self.seed}: factor {self.factor}, a fault every {self.fault_every_ms} ms\n"
            f"  faults    {faults or 'none'}\n"
            f"  network   loss={weather.loss} doubling={weather.doubling} slow={weather.slow} "
            f"slow_ms={weather.slow_ms}\n"
            f"  metastore lost_request={manners.lost_request} lost_reply={manners.lost_reply} "
            f"slow_request={manners.slow_request} late_watch={manners.late_watch} late_ms={manners.late_ms} "
            f"unlucky_commit={self.unlucky_commit}\n"
            f"  nodes     drift={self.drift} near_lag={self.max_near_lag} time_lag_ms={self.max_time_lag_ms} "
            f"slow_driver={self.slow_driver} proof_of_death={self.proof_of_death} "
            f"interrupted_install={self.interrupted_install} damage={self.damage} "
            f"full_disk={self.full_disk} long_work={self.long_work} "
            f"catchup_bytes={self.catchup_bytes} link_bytes={self.link_bytes} min_rounds={self.min_rounds} "
            f"fsync={'interval' if self.fsync_interval else 'always'} dead_for_good={self.dead_for_good}\n"
            f"  load      producers={self.producers} produce_every_ms={self.produce_every_ms} "
            f"read_every_ms={self.read_every_ms} max_pending={self.max_pending} nap={self.nap}"
        )


class Faults:
    """Breaks things while the plan lasts, then heals them."""

    def __init__(self, simulation: Simulation) -> None:
        self.simulation = simulation
        self.world = simulation.world
        self.plan = simulation.plan
        self.active = True
        self._names = [name for name, weight in self.plan.faults.items() if weight > 0]
        self._weights = [self.plan.faults[name] for name in self._names]
        self._actions: dict[str, Callable[[Node], None]] = {
            name: getattr(self, f"_{name}") for name in FAULTS
        }

    def begin(self) -> None:
        for node in self.simulation.nodes.values():
            self._drift(node)
        if self._names:
            self.world.after(500, self._strike)

    def _strike(self) -> None:
        if not self.active:
            return
        random = self.world.random
        self.world.after(1 + random.randrange(2 * self.plan.fault_every_ms), self._strike)
        name = random.choices(self._names, self._weights)[0]
        node = self._target()
        if node.up:
            self.world.trace("fault", name, node.worker)
            self._actions[name](node)

    def _target(self) -> Node:
        """Choose a node to hurt: the leader more often than others."""
        leader = self.simulation.metastore.record.leader
        if leader is not None and self.world.chance(0.4):
            return self.simulation.nodes[leader]
        return self.simulation.nodes[self.world.random.choice(self.simulation.workers)]

    def committed(self, who: Node) -> None:
        """Cut the writer of a committed change off before it hears of it, perhaps from a peer as well."""
        if self.active and who.link is Link.UP and self.world.chance(self.plan.unlucky_commit):
            self.world.trace("fault", "unlucky_commit", who.worker)
            who.set_link(Link.DOWN)
            self._later(300, 2_500, who.set_link, Link.UP)
            if self.world.chance(0.5):
                self._part_pair(who)

    def _later(self, least: int, most: int, action: Callable[..., None], *args: object) -> None:
        self.world.after(self.world.random.randint(least, most), action, *args)

    # Processes and disks.

    def _crash(self, node: Node) -> None:
        self._end_process(node, power_loss=False)

    def _power_loss(self, node: Node) -> None:
        if self.plan.fsync_interval and not self.may_lose(node):
            return
        self._end_process(node, power_loss=True)

    def _end_process(self, node: Node, *, power_loss: bool) -> None:
        registration = node.session.registration if node.session else None
        node.crash(power_loss=power_loss)
        if registration is not None and self.world.chance(self.plan.proof_of_death):
            self._later(1, 30, self.simulation.metastore.unregister, registration)
        slow = self.world.chance(0.4)
        self._later(*((3_000, 7_000) if slow else (50, 1_500)), node.start)

    def _wipe(self, node: Node) -> None:
        if not self.may_lose(node):
            return
        self._end_process(node, power_loss=False)
        self.wipe_disk(node)

    def wipe_disk(self, node: Node) -> None:
        self.simulation.totals["wipes"] += 1
        node.replace_disk()

    def _bit_flip(self, node: Node) -> None:
        if self.may_lose(node) and node.folder.flip_a_bit(self.world.random) is not None:
            node.intact = False
            self._end_process(node, power_loss=False)

    def _broken_disk(self, node: Node) -> None:
        """Make the disk fail at its next write, if the group can spare this disk then."""
        node.folder.breaks = lambda: self._breaks_now(node)

    def _breaks_now(self, node: Node) -> bool:
        if node.must_renew is None and not self.may_lose(node):
            return False
        node.intact = False
        return True

    def _slow_disk(self, node: Node) -> None:
        node.sync_ms = (100, 900)
        self._later(500, 3_000, self._quick_disk, node)

    def _quick_disk(self, node: Node) -> None:
        node.sync_ms = QUICK_SYNC_MS

    def _slow_apply(self, node: Node) -> None:
        node.apply_ms = (200, 1_200)
        self._later(500, 3_000, self._quick_apply, node)

    def _quick_apply(self, node: Node) -> None:
        node.apply_ms = QUICK_APPLY_MS

    def may_lose(self, node: Node) -> bool:
        """Whether another whole copy exists under every record that may be in force."""
        return all(
            any(self._is_whole(member.worker, member.storage, node) for member in record.isr)
            for record in self._possible_records()
        )

    def _is_whole(self, worker: str, storage: str, lost: Node) -> bool:
        node = self.simulation.nodes[worker]  # type: ignore[index]
        return node is not lost and node.storage == storage and node.intact and node.must_renew is None

    def _possible_records(self) -> list[GroupRecord]:
        """Return the record in force, and those that a compare-and-set under way would write."""
        records = [self.simulation.metastore.record, *self.simulation.metastore.under_way]
        for node in self.simulation.nodes.values():
            role = node.replica.role if node.replica is not None else None
            if isinstance(role, Leader):
                if role.membership.change is not None:
                    records.append(role.membership.change.record)
                if role.handover is not None and role.handover.sent is not None:
                    records.append(role.handover.sent.record)
            elif isinstance(role, Follower) and role.election.standing is not None:
                records.append(role.election.standing.record)
        return records

    def _pause(self, node: Node) -> None:
        node.pause()
        self.simulation.totals["pauses"] += 1
        self._later(*self.world.random.choice(((50, 800), (2_000, 6_000))), self._resume, node, node.life)

    def _resume(self, node: Node, life: int) -> None:
        if node.life == life:
            node.resume()

    def _drift(self, node: Node) -> None:
        node.set_clock_rate(1 + self.world.random.uniform(-self.plan.drift, self.plan.drift))

    # Network.

    def _block(self, links: list[tuple[Node, Node]]) -> None:
        network = self.simulation.network
        self.simulation.totals["partitions"] += 1
        for sender, receiver in links:
            network.block(sender.worker, receiver.worker)
            network.reset(sender.worker, receiver.worker)
        self._later(200, 5_000, self._unblock, links)

    def _unblock(self, links: list[tuple[Node, Node]]) -> None:
        for sender, receiver in links:
            self.simulation.network.unblock(sender.worker, receiver.worker)

    def _others(self, node: Node) -> list[Node]:
        nodes = self.simulation.nodes
        others = [nodes[worker] for worker in self.simulation.workers if worker != node.worker]
        return others or [node]

    def _isolate(self, node: Node) -> None:
        others = self._others(node)
        self._block([(node, other) for other in others] + [(other, node) for other in others])

    def _part_pair(self, node: Node) -> None:
        other = self.world.random.choice(self._others(node))
        self._block([(node, other), (other, node)])

    def _part_one_way(self, node: Node) -> None:
        other = self.world.random.choice(self._others(node))
        self._block([(node, other)])

    def _reset(self, node: Node) -> None:
        other = self.world.random.choice(self._others(node))
        self.simulation.network.reset(node.worker, other.worker)

    def _lag_link(self, node: Node) -> None:
        other = self.world.random.choice(self._others(node))
        until = self.world.now + self.world.random.randint(100, 2_000)
        one, two = self.world.random.sample((node, other), 2)
        self.simulation.network.lag(one.worker, two.worker, until)

    def _last_words(self, _node: Node) -> None:
        """Kill a leader, and deliver some of its messages when another leads."""
        record = self.simulation.metastore.record
        leader = self.simulation.nodes.get(record.leader) if record.leader is not None else None
        if leader is None or not leader.up:
            return
        other = self.world.random.choice(self._others(leader))
        self.simulation.network.lag(leader.worker, other.worker, self.world.now + 500)
        self._later(20, 200, self._die_seen, leader, leader.life)

    def _reborn(self, node: Node) -> None:
        """Restart a replica quickly, perhaps with an empty disk, before its earlier messages have arrived."""
        for other in self._others(node):
            self.simulation.network.lag(node.worker, other.worker, self.world.now + 120)
        self._later(20, 120, self._die_seen, node, node.life, self.world.chance(0.5))

    def _die_seen(self, node: Node, life: int, wipe: bool = False) -> None:
        """End a process under the eyes of its supervisor, which starts another at once."""
        if not self.active or node.life != life or not node.up or (wipe and not self.may_lose(node)):
            return
        registration = node.session.registration if node.session else None
        node.crash()
        if registration is not None:
            self.simulation.metastore.unregister(registration)
        if wipe:
            self.wipe_disk(node)
        self._later(5, 60, node.start)

    # Metastore.

    def _lose_metastore(self, node: Node) -> None:
        self._set_link(node, Link.DOWN)

    def _cut_off(self, node: Node) -> None:
        self._set_link(node, Link.CUT_OFF)

    def _set_link(self, node: Node, link: Link) -> None:
        if node.link is Link.UP:
            node.set_link(link)
            self._later(*self.world.random.choice(((100, 1_500), (3_000, 7_000))), node.set_link, Link.UP)

    def _expire(self, node: Node) -> None:
        if node.session is not None:
            self.simulation.metastore.expire_from_operator(node.session)

    # Operators.

    def _resign(self, _node: Node) -> None:
        record = self.simulation.metastore.record
        targets = [member.worker for member in record.isr if member.worker != record.leader]
        if record.leader is not None and targets:
            event = events.Resign(epoch=record.epoch, target=self.world.random.choice(targets))
            leader = self.simulation.nodes[record.leader]
            late = self.world.chance(0.3)
            self._later(*((500, 4_000) if late else (1, 50)), self._deliver_resign, leader, event)

    def _deliver_resign(self, leader: Node, event: events.Resign) -> None:
        leader.deliver(event)

    def _shutdown(self, node: Node) -> None:
        """Ask a worker to stop: it hands over what it leads, for a while, and another is started."""
        self._hand_over(node, node.life, self.world.now + SHUTDOWN_MS)

    def _hand_over(self, node: Node, life: int, deadline: int) -> None:
        if not self.active or node.life != life or not node.up:
            return
        if node.paused or (node.resigns() and self.world.now < deadline):
            self.world.after(50, self._hand_over, node, life, deadline)
        else:
            self._die_seen(node, life)

    def _reassign(self, _node: Node) -> None:
        """Change the assignment: a replica more, one less, or others in the place of some.

        The last change may still be under way.
        """
        random, simulation = self.world.random, self.simulation
        replicas = list(simulation.assigned)
        room = NODES_MAX - len(simulation.nodes)
        kind = random.choice(("add", "remove", "replace", "replace", "exchange"))
        if kind in ("remove", "replace") and len(replicas) > (kind == "remove"):
            replicas.remove(random.choice(replicas))
        elif kind == "exchange" and room >= len(replicas):
            replicas.clear()
        fresh = len(simulation.assigned) if kind == "exchange" else int(kind != "remove")
        if len(replicas) + fresh > REPLICAS_MAX or fresh > room:
            return
        replicas += [simulation.next_worker(index) for index in range(fresh)]
        random.shuffle(replicas)
        if replicas and tuple(replicas) != simulation.assigned:
            simulation.assign(tuple(replicas))

    def _regroup(self, _node: Node) -> None:
        """Announce another grouping, let it come near, perhaps, and give it up.

        A group has no more to do with a grouping that takes place than to stay as it is.
        """
        said = self.simulation.groupings[-1]
        if not said.next:
            number = max(said.present, said.abandoned) + 1
            self.simulation.regroup(
                events.Regrouping(present=said.present, next=number, abandoned=said.abandoned)
            )
            self._later(100, 3_000, self._close, number)

    def _close(self, number: int) -> None:
        said = self.simulation.groupings[-1]
        if self.active and said.next == number and self.world.chance(0.5):
            closing = msgspec.structs.replace(said, closing=number)
            self.simulation.regroup(closing)
            self._later(50, 1_000, self._abandon, number)
        else:
            self._abandon(number)

    def _abandon(self, number: int) -> None:
        said = self.simulation.groupings[-1]
        if said.next == number:
            self.simulation.regroup(events.Regrouping(present=said.present, abandoned=number))

    def _change_options(self, _node: Node) -> None:
        random = self.world.random
        self.simulation.change_settings(
            replace(
                self.simulation.settings,
                min_isr=random.choice((None, None, 1, 2, 2, self.plan.factor, 99)),
                max_time_lag_ms=Millis(random.choice((150, 400, 1_200))),
                max_near_lag=random.choice((5, 20, 80)),
                max_unapplied=random.choice((12, 40)),
                early_bytes=random.choice((0, 400, 4_000)),
                producer_expiry_ms=Millis(random.choice((2_500, 60_000))),
            )
        )

    # Healing.

    def heal(self) -> None:
        """Make everything work again, except perhaps one replica that stays away for ever."""
        self.active = False
        simulation = self.simulation
        simulation.network.heal()
        simulation.metastore.manners = Manners()
        simulation.change_settings(replace(simulation.settings, min_isr=None))
        self._abandon(simulation.groupings[-1].next or -1)
        victim = self._victim() if self.plan.dead_for_good else None
        for node in simulation.nodes.values():
            if node.retired:
                continue
            node.deaf = False
            node.sync_ms = QUICK_SYNC_MS
            node.apply_ms = QUICK_APPLY_MS
            node.hand_back_ms = 0
            node.folder.breaks = None
            node.set_clock_rate(1.0)
            node.set_link(Link.UP)
            node.resume()
            if node is victim:
                node.crash()
                node.dead_for_good = True
            else:
                node.start()

    def _victim(self) -> Node | None:
        """Choose a replica that the group can spare: min-ISR stays possible, and a whole member remains."""
        simulation = self.simulation
        factor = max(record.factor for record in self._possible_records())
        factor = max(factor, len(simulation.assigned))
        if simulation.settings.min_isr_of(factor) >= len(simulation.assigned):
            return None
        candidates = [simulation.nodes[worker] for worker in simulation.workers]
        candidates = [node for node in candidates if self.may_lose(node)]
        return self.world.random.choice(candidates) if candidates else None
