"""What is live does not wait for what is old."""

from __future__ import annotations

from stretto.replog.core.effects import SendEntries
from stretto.replog.core.events import Sent
from stretto.replog.core.messages import Entries
from stretto.vocabulary.types import Epoch, Incarnation, Offset, WorkerId
from stretto.worker.replica.outbox import Outbox

LIVE, LAGGARD = WorkerId("live"), WorkerId("laggard")
BATCH = 10


def entries(to: WorkerId, start: int) -> SendEntries:
    message = Entries(
        Epoch(1),
        Incarnation("l"),
        to=Incarnation(to),
        apply_offset=Offset(0),
        log_end=Offset(0),
        retain_offset=Offset(0),
        probe=False,
    )
    return SendEntries(to=to, message=message, attempt=1, start=Offset(start), max_bytes=1)


class Leader:
    """Its log ends at 100; a message holds ten entries, and who lacks more gets the next one."""

    def __init__(self) -> None:
        self.end = 100
        self.sent: list[tuple[WorkerId, int]] = []
        self.turns_wanted = 0
        self.outbox = Outbox(self._send, self._sent, self._in_next_turn)

    def _in_next_turn(self) -> None:
        self.turns_wanted += 1

    def _send(self, effect: SendEntries) -> Sent:
        self.sent.append((effect.to, effect.start))
        end = Offset(min(self.end, effect.start + BATCH))
        return Sent(to=effect.to, incarnation=effect.message.to, attempt=effect.attempt, end=end)

    def _sent(self, event: Sent) -> None:
        if event.end < self.end:
            self.outbox.put(entries(event.to, event.end))


def test_who_lacks_much_gets_one_message_in_a_turn_after_those_who_lack_little() -> None:
    leader = Leader()
    leader.outbox.put(entries(LAGGARD, 0))
    leader.outbox.put(entries(LIVE, 95))
    leader.outbox.send_turn()
    leader.outbox.send_turn()
    assert leader.sent == [(LIVE, 95), (LAGGARD, 0)]
    assert leader.turns_wanted == 1

    leader.outbox.begin_turn()
    leader.end = 105
    leader.outbox.put(entries(LIVE, 100))
    leader.outbox.send_turn()
    assert leader.sent[2:] == [(LIVE, 100), (LAGGARD, 10)]
    assert leader.turns_wanted == 2


def test_a_follower_that_has_all_wants_no_further_turn() -> None:
    leader = Leader()
    leader.outbox.put(entries(LIVE, 95))
    leader.outbox.send_turn()
    assert leader.turns_wanted == 0


def test_everything_goes_before_the_log_is_cut() -> None:
    leader = Leader()
    leader.outbox.put(entries(LAGGARD, 0))
    leader.outbox.send_turn()
    leader.outbox.send_all()
    assert leader.sent == [(LAGGARD, start) for start in range(0, 100, BATCH)]
