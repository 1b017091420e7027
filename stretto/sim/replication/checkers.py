"""What must hold after every step of every replica, and once all is healed.

The checkers see everything: all disks, the true record, what was visible anywhere. The first violation
ends the run.
"""

from __future__ import annotations

import bisect
import contextlib
from typing import TYPE_CHECKING

from stretto.errors import StorageError, UsageError
from stretto.replog.core import events, messages
from stretto.replog.core.effects import Acked, Result
from stretto.replog.core.following.election import CANDIDACY, Election
from stretto.replog.core.following.follower import Follower
from stretto.replog.core.leading.leader import Leader
from stretto.replog.core.record import GroupRecord, Member
from stretto.replog.core.replica import Replica
from stretto.replog.epochs import History, starting_below
from stretto.replog.frame import Frame, Kind, decode, payload
from stretto.sim.virtual.world import Violation
from stretto.vocabulary.types import Epoch, Incarnation, Millis, Offset, StorageId, WorkerId

if TYPE_CHECKING:
    from stretto.sim.replication.machine import Machine
    from stretto.sim.replication.node import Node
    from stretto.sim.replication.requests import Batch, Producer
    from stretto.sim.replication.simulation import Simulation

Identity = tuple[Epoch, Kind, int, bytes]


class Checkers:
    """The rules of the world of replicas; methods are called when something happens, and raise Violation."""

    def __init__(self, simulation: Simulation) -> None:
        self.simulation = simulation
        #: The leader of each epoch; a second one is a violation.
        self._leaders: dict[Epoch, tuple[WorkerId, Incarnation | None]] = {}
        #: Every entry that was ever committed, by offset: the truth that all must agree on. From then on it
        #: counts as visible, since it may be acknowledged.
        self._visible: dict[Offset, Identity] = {}
        self.visible_end = Offset(0)
        self._payload_at: dict[bytes, Offset] = {}
        #: The grouping that the log is sealed for, according to its visible entries; 0 if it is not sealed.
        self._sealed = 0
        self._submitted: set[bytes] = set()
        self._acknowledged: set[bytes] = set()
        #: The limit of early acknowledgement, in bytes, of the replica that takes a step.
        self._early_bytes = 0
        #: Requests whose appends are to be acknowledged only when they are applied.
        self._until_applied: set[int] = set()
        #: Times at which the end of what is acknowledged or shown to readers moved, each with the new end.
        self._shown_since: list[tuple[int, Offset]] = []
        #: End of everything acknowledged to a client or shown to a reader.
        self.read_floor = Offset(0)
        #: What each storage id holds durably, or held when its disk was lost.
        self._held_end: dict[StorageId, Offset] = {}
        #: Storage ids of replicas that left the group and deleted their data.
        self._deleted: set[StorageId] = set()
        #: The apply offset of each worker's replica before the step.
        self._apply_offset: dict[WorkerId, Offset] = {}
        self._was_stalled = False
        self._log_end_before = Offset(0)
        self._unapplied_before = 0
        self._resign_epoch: Epoch | None = None
        #: What a replica hears in this step of another that would be elected uncleanly; and by worker, the
        #: epoch and the time, on its own clock, of the last news of a log that is longer than its own.
        self._reach: messages.Reach | None = None
        self._longer_heard: dict[WorkerId, tuple[Epoch, Millis]] = {}
        #: Whether an operator forced an unclean election: what was visible before is no longer promised.
        self.unclean = False
        self._computation_of: dict[bytes, tuple[int, int]] = {}
        #: The computation that is visible, by round of a named producer.
        self._computation_seen: dict[int, int] = {}

    # Steps.

    def before(self, replica: Replica, event: events.Event) -> None:
        """Note what is needed of a replica before it takes a step."""
        role = replica.role
        self._early_bytes = replica.settings.early_bytes
        if isinstance(event, events.OptionsChanged):
            self._early_bytes = event.settings.early_bytes
        if isinstance(event, events.Append) and event.until_applied:
            self._until_applied.add(event.request)
        if isinstance(event, events.Append) and isinstance(role, Leader):
            self._was_stalled = role.stalled
            self._log_end_before = replica.log_end
            self._unapplied_before = replica.log_end - replica.applied
        else:
            self._was_stalled = False
        self._reach = None
        if isinstance(event, events.Received) and isinstance(event.message, messages.Reach):
            self._reach = event.message
        self._resign_epoch = event.epoch if isinstance(event, events.Resign) else None

    def after(self, node: Node, replica: Replica) -> None:
        """Check a replica after it took a step."""
        self._apply_offset_never_goes_back(node, replica)
        role = replica.role
        if isinstance(role, Leader):
            if self._was_stalled and replica.log_end > self._log_end_before:
                raise Violation(f"{node.worker} took an append while stalled")
            if (
                self._unapplied_before >= replica.settings.max_unapplied
                and replica.log_end > self._log_end_before
            ):
                raise Violation(f"{node.worker} took an append beyond the bound of unapplied entries")
        self._was_stalled = False
        self._unapplied_before = 0
        if self._reach is not None:
            self._hears_of(replica, self._reach)

    def _hears_of(self, replica: Replica, reach: messages.Reach) -> None:
        last_epoch = replica.history[-1].epoch if replica.history else Epoch(0)
        is_longer = (reach.last_epoch, reach.end) > (last_epoch, replica.log_end)
        if is_longer and replica.record is not None and reach.epoch == replica.record.epoch:
            self._longer_heard[replica.worker] = (reach.epoch, replica.now)

    def _apply_offset_never_goes_back(self, node: Node, replica: Replica) -> None:
        before = self._apply_offset.get(node.worker, Offset(0))
        if replica.apply_offset < before:
            raise Violation(
                f"apply offset of {node.worker} went back from {before} to {replica.apply_offset}"
            )
        self._apply_offset[node.worker] = replica.apply_offset
        if not replica.applied <= replica.apply_offset <= replica.log_end:
            raise Violation(
                f"{node.worker} has applied {replica.applied}, may apply {replica.apply_offset}, "
                f"and holds {replica.log_end}"
            )

    def resigning(self, node: Node, epoch: Epoch) -> None:
        """Check that a leader resigns only the epoch that it was asked to resign."""
        if self._resign_epoch != epoch:
            raise Violation(
                f"{node.worker} resigns epoch {epoch} for a request meant for {self._resign_epoch}"
            )

    # Disks.

    def crashed(self, node: Node) -> None:
        self._apply_offset.pop(node.worker, None)
        self._longer_heard.pop(node.worker, None)

    def booted(self, node: Node) -> None:
        self._apply_offset.pop(node.worker, None)

    def recovered(self, node: Machine) -> None:
        log = node.log
        self._held_end[node.storage] = log.durable_end_offset if log is not None else Offset(0)

    def synced(self, node: Node, end: Offset) -> None:
        self._held_end[node.storage] = end

    def truncated(self, node: Node, end: Offset) -> None:
        self._held_end[node.storage] = min(self._held_end.get(node.storage, Offset(0)), end)

    def installed(self, node: Node, end: Offset) -> None:
        if end < self._held_end.get(node.storage, Offset(0)) and self._is_listed(node):
            raise Violation(f"{node.worker} is listed and replaced its log by a shorter state")
        self._held_end[node.storage] = end

    def retired(self, node: Node) -> None:
        """Check that a replica which deletes its data is not in the ISR, and note that it never may be."""
        if self._is_listed(node):
            raise Violation(f"{node.worker} deletes its data although the ISR lists it")
        self._deleted.add(node.storage)

    def let_go(self, replica: Replica) -> None:
        """Check that a leader drops unassigned members only once all assigned replicas have confirmed."""
        role = replica.role
        if isinstance(role, Leader):
            held = {worker for worker, progress in role.followers.items() if progress.confirmed is not None}
            missing = sorted(set(replica.replicas) - held - {replica.worker})
            if missing:
                raise Violation(f"{replica.worker} lets members go before {missing} have come")

    def _is_listed(self, node: Node) -> bool:
        return Member(node.worker, node.storage) in self.simulation.metastore.record.isr

    # Leaders and the record.

    def leads(self, node: Node, replica: Replica) -> None:
        """Check that an epoch has one leader only."""
        epoch = replica.known_record.epoch
        me = (node.worker, replica.incarnation)
        first = self._leaders.setdefault(epoch, me)
        if first != me:
            raise Violation(f"epoch {epoch} is led by {first} and by {me}")

    def proposed(self, node: Node, replica: Replica, record: GroupRecord) -> None:
        """Check a proposed record: a member that would have to leave at once must not enter the ISR."""
        role = replica.role
        if isinstance(role, Follower) and record.unclean_epoch == record.epoch:
            self._stands_uncleanly(replica, role.election)
        if not isinstance(role, Leader) or record.epoch != role.epoch:
            return
        for member in sorted(set(record.isr) - role.membership.committed):
            if self._held_end.get(member.storage, 0) < role.overdue_end():
                raise Violation(
                    f"{node.worker} takes {member.worker} into the ISR, which lacks an entry that has waited "
                    f"too long and would have to leave at once"
                )

    def _stands_uncleanly(self, replica: Replica, election: Election) -> None:
        """Check that no replica stands uncleanly right after news of a longer log, unless it waited long."""
        epoch, heard_at = self._longer_heard.get(replica.worker, (Epoch(-1), Millis(0)))
        patience_ms = min(CANDIDACY * replica.settings.retry_ms, election.unclean_by - heard_at)
        if epoch == replica.known_record.epoch and replica.now < heard_at + patience_ms:
            raise Violation(f"{replica.worker} stands uncleanly although it has just heard of a longer log")

    def committed(self, before: GroupRecord | None, after: GroupRecord, who: WorkerId | None) -> None:
        """Check a change of the record that reached the metastore."""
        if before is None:
            return
        if after.epoch < before.epoch:
            raise Violation(f"the record's epoch went back from {before.epoch} to {after.epoch}")
        if after.unclean_epoch > before.unclean_epoch:
            self._elected_uncleanly(before, who)
            return
        for member in sorted(set(after.isr) - set(before.isr)):
            if not self.simulation.metastore.is_registered(member):
                raise Violation(f"{member.worker} enters the ISR although it is not registered")
        for member in after.isr:
            if self._held_end.get(member.storage, 0) < self.visible_end:
                raise Violation(f"{member.worker} is listed in the ISR and lacks what is visible")
            if member.storage in self._deleted:
                raise Violation(f"{member.worker} is listed in the ISR and has deleted its data")
        if after.plan < before.plan:
            raise Violation(f"the record's plan went back from {before.plan} to {after.plan}")
        if after.factor not in (before.factor, len(self.simulation.plans[after.plan])):
            raise Violation(f"the record's factor is {after.factor}, which is not that of plan {after.plan}")
        changed_hands = after.leader != before.leader or after.epoch != before.epoch
        if changed_hands:
            self._elected(before, after, who)
        if after.leader is not None and after.leader not in [member.worker for member in after.isr]:
            raise Violation(f"leader {after.leader} is not in the ISR")
        workers = [member.worker for member in after.isr]
        if len(set(workers)) < len(workers):
            raise Violation(f"the ISR lists a worker twice: {after.isr}")

    def _elected(self, before: GroupRecord, after: GroupRecord, who: WorkerId | None) -> None:
        if after.epoch != before.epoch + 1:
            raise Violation(f"leadership changed from epoch {before.epoch} to {after.epoch}")
        if who is not None and who == before.leader and after.leader != who:
            self._handed_over(self.simulation.nodes[who])

    def _handed_over(self, node: Node) -> None:
        self.simulation.totals["hand-overs"] += 1
        replica = node.replica
        if replica is not None and isinstance(replica.role, Leader) and replica.applied < replica.log_end:
            raise Violation(f"{node.worker} handed over with unapplied appends it had accepted")

    def _elected_uncleanly(self, before: GroupRecord, who: WorkerId | None) -> None:
        if not self.simulation.settings.unclean_election:
            raise Violation(f"{who} was elected uncleanly although the option forbids it")
        alive = [member.worker for member in before.isr if self.simulation.metastore.is_registered(member)]
        if alive:
            raise Violation(f"{who} was elected uncleanly although {alive} could stand")
        self._went_unclean()

    def _went_unclean(self) -> None:
        """Forget all promises: the operator gave up what lost members held, and only later entries count."""
        self.unclean = True
        self._visible.clear()
        self._payload_at.clear()
        self._acknowledged.clear()
        self.visible_end = self.read_floor = Offset(0)
        self._shown_since.clear()

    # Applying.

    def decided(self, node: Node, replica: Replica, end: Offset) -> None:
        """Check that every member listed in the leader's epoch holds the entries that it commits.

        If the leader was deposed and has not heard of it, every member of the present ISR has to hold them:
        those that left since may have cut off what they confirmed.

        Or every member there is now, if it was deposed and has not heard of it: those who left since may have
        cut off what they confirmed.
        """
        role = replica.role
        if not isinstance(role, Leader):
            return
        record = self.simulation.metastore.last_record_of(role.epoch)
        if record is None:
            raise Violation(f"{node.worker} leads epoch {role.epoch}, which was never recorded")
        is_deposed = self.simulation.metastore.record.epoch > role.epoch and not self.unclean
        if is_deposed:
            record = self.simulation.metastore.record
        holders = [member for member in record.isr if self._held_end.get(member.storage, 0) >= end]
        if len(holders) < len(record.isr):
            missing = sorted(member.worker for member in record.isr if member not in holders)
            raise Violation(f"{node.worker} applies up to {end} although {missing} of the ISR lack it")
        self._hold_the_same(node, replica, record, end)
        min_isr = replica.settings.min_isr_of(record.factor)
        if len(holders) < min_isr and not is_deposed:
            raise Violation(
                f"{node.worker} applies up to {end} with {len(holders)} holders; min-ISR is {min_isr}"
            )
        if self.visible_end < end and not self.unclean:
            for frame in self._entries(node, record, end):
                self.becomes_visible(node, frame)

    def _entries(self, node: Node, record: GroupRecord, end: Offset) -> tuple[Frame, ...]:
        """Return the entries that become visible, from the first log of the ISR that has them.

        The leader's disk may have failed since, without its replica having heard of that; the other members
        hold the same.
        """
        logs = [self.simulation.nodes[member.worker].log for member in record.isr]
        for log in (node.log, *logs):
            with contextlib.suppress(StorageError, UsageError):
                if log is not None and log.end_offset >= end:
                    return decode(b"".join(log.read(self.visible_end, end, 1 << 20).buffers))
        return decode(b"".join(node.opened_log().read(self.visible_end, end, 1 << 20).buffers))

    def _hold_the_same(self, node: Node, replica: Replica, record: GroupRecord, end: Offset) -> None:
        """Check that members hold the leader's entry, and not just one at the same offset.

        What they have trimmed was visible; :meth:`applied` compares that.
        """
        ours = _epoch_at(replica.history, end)
        for member in record.isr:
            other = self.simulation.nodes[member.worker]
            if other.log is None or other.storage != member.storage:
                continue
            if other.log.start_offset < end <= other.log.end_offset:
                theirs = _epoch_at(other.log.history, end)
                if theirs != ours:
                    raise Violation(
                        f"{node.worker} applies up to {end}, an entry of epoch {ours}; {member.worker}, "
                        f"which is in the ISR, holds one of epoch {theirs} there"
                    )

    def applied(self, node: Node, frame: Frame) -> None:
        """Check that what a replica applies is on its disk, and equals the committed entry."""
        header = frame.header
        if header.end_offset > self._held_end.get(node.storage, 0):
            raise Violation(f"{node.worker} applies up to {header.end_offset}, which its disk does not hold")
        if header.end_offset > self.visible_end and not self.unclean:
            raise Violation(f"{node.worker} applies up to {header.end_offset}, which nobody has decided")
        self.becomes_visible(node, frame)
        self._shown(header.end_offset)

    def becomes_visible(self, node: Node, frame: Frame) -> None:
        """Note an entry as visible, and check that it is the same wherever it is applied."""
        header = frame.header
        identity = (header.epoch, header.kind, header.count, bytes(payload(frame)))
        known = self._visible.get(header.offset)
        if known is None:
            self._first_visible(frame, identity)
        elif known != identity:
            raise Violation(f"{node.worker} applies {identity} at {header.offset} where {known} was visible")
        self.visible_end = max(self.visible_end, header.end_offset)

    def _shown(self, end: Offset) -> None:
        if not self._shown_since or end > self._shown_since[-1][1]:
            self._shown_since.append((self.simulation.world.now, end))

    def _first_visible(self, frame: Frame, identity: Identity) -> None:
        offset = frame.header.offset
        if offset != self.visible_end and not self.unclean:
            raise Violation(f"an entry appears at {offset}, although {self.visible_end} were visible")
        self._visible[offset] = identity
        self._keeps_seals(frame)
        content = identity[3]
        if frame.header.kind is Kind.DEPOT:
            if content in self._payload_at:
                raise Violation(f"{content!r} is visible at {self._payload_at[content]} and at {offset}")
            if content not in self._submitted:
                raise Violation(f"{content!r} is visible but was never appended")
            self._payload_at[content] = offset
            if content in self._computation_of:
                round_, computation = self._computation_of[content]
                if self._computation_seen.setdefault(round_, computation) != computation:
                    raise Violation(f"round {round_} is visible as computed twice: {content!r} at {offset}")

    def _keeps_seals(self, frame: Frame) -> None:
        kind, number = frame.header.kind, frame.header.sequence
        said = self.simulation.groupings[-1]
        if kind is Kind.UNSEAL:
            if not said.present < number <= said.abandoned:
                raise Violation(f"the log is unsealed, although grouping {number} was not abandoned")
            self.simulation.totals["seals taken back"] += 1
            self._sealed = 0
        elif kind is Kind.SEAL:
            self.simulation.totals["seals"] += 1
            self._sealed = number
        elif self._sealed and kind is not Kind.EPOCH and not self.unclean:
            raise Violation(f"{kind.name} appears in a log that is sealed for grouping {self._sealed}")

    def visible_payloads(self) -> list[bytes]:
        """Return the payloads of producers that are visible, in the order of the log."""
        return [content for _, content in sorted((at, content) for content, at in self._payload_at.items())]

    def began_serving(self, node: Node, replica: Replica) -> None:
        """Check that a leader has applied everything visible when it begins to serve.

        A leader that was deposed and has not heard of it is held back by its lease, not by this.
        """
        if replica.known_record.epoch != self.simulation.metastore.record.epoch:
            return
        if replica.applied < self.visible_end and not self.unclean:
            raise Violation(
                f"{node.worker} serves epoch {replica.known_record.epoch} with {replica.applied} applied "
                f"although {self.visible_end} were visible"
            )

    # Clients.

    def submitted(self, content: bytes) -> None:
        self._submitted.add(content)

    def submitted_in(self, round_: int, computation: int, content: bytes) -> None:
        """Note what a named producer submits; of the computations of a round, one only may become visible."""
        self._submitted.add(content)
        self._computation_of[content] = (round_, computation)

    def replied(
        self, node: Node, request: int, result: Result, known: tuple[Producer, Batch, int] | None
    ) -> None:
        """Check that an append is committed when its acknowledgement leaves the leader, arrive or not."""
        if isinstance(result, Acked) and known is not None and known[1].kind is Kind.DEPOT:
            offset = self._payload_at.get(known[1].payload)
            if offset is None and not self.unclean:
                raise Violation(
                    f"request {request} ({known[1].payload!r}) was acknowledged but is not decided"
                )
            if offset is not None:
                end = Offset(offset + known[1].count)
                self.read_floor = max(self.read_floor, end)
                self._shown(end)
                if node.state.applied < end and not self.unclean:
                    self._acknowledged_early(node, request, known[1].payload)

    def _acknowledged_early(self, node: Node, request: int, content: bytes) -> None:
        if request in self._until_applied:
            raise Violation(f"request {request} ({content!r}) was acknowledged before it was applied")
        log = node.opened_log()
        chunk = log.read(max(node.state.applied, log.start_offset), log.end_offset, 1 << 20)
        unapplied = sum(map(len, chunk.buffers))
        if unapplied > self._early_bytes:
            raise Violation(
                f"request {request} ({content!r}) was acknowledged early, with {unapplied} bytes not applied"
            )

    def acknowledged(self, content: bytes) -> None:
        self._acknowledged.add(content)

    def read_served(self, node: Node, floor: Offset, sampled: Offset | None) -> None:
        """Check that a leader's read shows everything that was visible when it began."""
        if sampled is None or (sampled < floor and not self.unclean):
            raise Violation(
                f"stale read at {node.worker}: it saw {sampled}, {floor} was visible before it began"
            )
        if self.simulation.groupings[-1].present != self.simulation.groupings[0].present:
            raise Violation(f"{node.worker} serves a read, although another grouping is in force")
        self.read_floor = max(self.read_floor, sampled)

    def stale_read_served(self, node: Node, sampled: Offset | None, *, max_staleness_ms: int) -> None:
        """Check that a read from a follower is not older than it may be."""
        if self.unclean:
            return
        before = self.simulation.world.now - max_staleness_ms
        at = bisect.bisect_left(self._shown_since, (before, Offset(0)))
        floor = self._shown_since[at - 1][1] if at else Offset(0)
        if sampled is None or sampled < floor:
            raise Violation(
                f"a read at {node.worker} is older than {max_staleness_ms} ms: it saw {sampled}, "
                f"{floor} was visible before that"
            )
        self.read_floor = max(self.read_floor, sampled)

    def session_went_on(self, node: Node, sampled: Offset | None, *, after: Offset) -> None:
        """Check that the next answer to a reader which has seen what is below ``after`` shows that too."""
        if not self.unclean and (sampled or Offset(0)) < after:
            raise Violation(f"a reader went back at {node.worker}: it saw {sampled} after {after}")

    # At the end.

    def finish(self) -> None:
        """Check after healing that all live replicas are in the ISR with one log, and nothing is pending."""
        simulation = self.simulation
        record = simulation.metastore.record
        alive = [node for node in simulation.nodes.values() if not node.dead_for_good and not node.retired]
        for node in alive:
            if not node.is_assigned and not self.may_stay_unassigned():
                raise Violation(f"not recovered: {node.worker} is not assigned, and still there")
            if node.replica is None:
                raise Violation(f"not recovered: {node.worker} is not running")
            if Member(node.worker, node.storage) not in record.isr:
                raise Violation(f"not recovered: {node.worker} ({node.replica.role_name}) is not in the ISR")
        leader = next((node for node in alive if node.worker == record.leader), None)
        if leader is None or leader.replica is None or not isinstance(leader.replica.role, Leader):
            raise Violation(f"not recovered: {record.leader} does not lead")
        if not simulation.workload.is_settled:
            stuck = [producer.name for producer in simulation.workload.producers if producer.pending]
            raise Violation(f"not recovered: appends of {stuck} are still unanswered")
        self._all_equal(alive, leader.replica)
        lost = [content for content in sorted(self._acknowledged) if content not in self._payload_at]
        if lost:
            raise Violation(f"acknowledged but not visible: {lost}")

    def may_stay_unassigned(self) -> bool:
        """Whether unassigned replicas may remain, because one that is to replace them is dead for good."""
        nodes = self.simulation.nodes
        return any(nodes[worker].dead_for_good for worker in self.simulation.assigned)

    def _all_equal(self, alive: list[Node], leader: Replica) -> None:
        for node in alive:
            replica = node.replica
            if replica is None or node.log is None:
                continue
            if (replica.log_end, replica.applied) != (leader.log_end, leader.log_end):
                raise Violation(
                    f"not recovered: {node.worker} has a log of {replica.log_end} and applied "
                    f"{replica.applied}; the leader's log ends at {leader.log_end}"
                )
            if node.state.producers != leader.producers.table:
                raise Violation(f"the producer table of {node.worker} differs from the leader's")
            if replica.producers.table != node.state.producers:
                raise Violation(f"{node.worker} remembers other producers than its applied state")
            for header in node.log.headers(node.log.start_offset):
                known = self._visible.get(header.offset)
                if not self.unclean and (known is None or known[0] != header.epoch):
                    raise Violation(f"{node.worker} holds {header} where {known} is visible")


def _epoch_at(history: History, end: Offset) -> Epoch | None:
    """Return the epoch of the entry just below ``end``."""
    before = starting_below(history, end)
    return before[-1].epoch if before else None
