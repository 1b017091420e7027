"""The two sides of a transfer, told without files and sockets."""

from __future__ import annotations

import dataclasses
from random import Random

import pytest

from stretto.catchup.machines import blocks, fetch, serve
from stretto.vocabulary.types import Epoch, Incarnation, Millis, Offset, TaskId, WorkerId
from stretto.wire import catchup
from tests.unit.catchup.transfer import (
    BLOCK_BYTES,
    EPOCH,
    KEY,
    ME,
    PATIENCE_MS,
    Follower,
    Leader,
    Transfer,
    begin,
    terms,
)

T0, T1 = TaskId(0), TaskId(1)


def content(random: Random, blocks: int = 40, tail: int = 5) -> bytes:
    return random.randbytes(blocks * BLOCK_BYTES + tail)


def changed(content: bytes, random: Random, blocks: int = 3) -> bytes:
    """Some blocks are others, and it grew."""
    mutable = bytearray(content)
    for _ in range(blocks):
        mutable[random.randrange(len(mutable))] ^= 0xFF
    return bytes(mutable) + random.randbytes(random.randrange(2 * BLOCK_BYTES))


def transfer(leader: Leader, follower: Follower, random: Random | None = None) -> Transfer:
    leader.pin = Offset(leader.applied - 1)
    leader.step(begin(follower.fetch.terms, pinned=leader.pin), 0)
    return Transfer(leader, follower, random)


@pytest.mark.parametrize("seed", range(40))
def test_what_arrives_is_the_leaders_latest_images_whatever_the_network_does(seed: int) -> None:
    random = Random(seed)
    leader = Leader({T0: content(random), T1: content(random, blocks=3)})
    leader.grows_by = seed % 4
    follower = Follower(terms())
    running = transfer(leader, follower, random)

    def load() -> None:
        if running.now < 4_000 and random.random() < 0.2:
            leader.applied = Offset(leader.applied + random.randrange(30))
            task = random.choice((T0, T1))
            leader.content[task] = changed(leader.content[task], random)

    served: dict[TaskId, bytes] = {}

    def watch() -> None:
        load()
        served.update({task: image[0] for task, image in leader.images.items()})

    running.between = watch
    running.mangle = lambda body: body if random.random() > 0.03 else bytes(len(body))
    running.run(until_ms=400_000)

    if follower.failed is not None:
        assert "damaged" in follower.failed
        return
    assert follower.assembled is not None, f"stuck with seed {seed}"
    assert {task: bytes(staged) for task, staged in follower.staged.items()} == served
    assert follower.assembled.end - follower.assembled.start == len(follower.entries)


def test_the_second_round_sends_what_has_changed_and_no_more() -> None:
    random = Random(1)
    leader = Leader({T0: content(random, blocks=200, tail=0)})
    follower = Follower(terms((0,)))
    running = transfer(leader, follower)
    first_round = 200 * BLOCK_BYTES

    def change_once() -> None:
        if follower.stored_bytes == first_round and follower.fetch.round == 1:
            leader.content[T0] = bytes([leader.content[T0][0] ^ 1]) + leader.content[T0][1:]

    running.between = change_once
    running.run()

    assert follower.assembled is not None
    assert leader.sent_bytes <= first_round + BLOCK_BYTES
    assert bytes(follower.staged[T0]) == leader.content[T0]


def test_blocks_that_an_earlier_transfer_left_are_not_sent_again() -> None:
    random = Random(2)
    whole = content(random, blocks=100)
    leader = Leader({T0: whole})
    follower = Follower(terms((0,)), staged={T0: bytearray(whole[: 60 * BLOCK_BYTES])})

    transfer(leader, follower).run()

    assert follower.assembled is not None
    assert leader.sent_bytes == len(whole) - 60 * BLOCK_BYTES


def test_an_image_is_fetched_while_it_is_made() -> None:
    whole = content(Random(11), blocks=100)
    leader = Leader({T0: whole})
    leader.grows_by = 10
    follower = Follower(terms((0,)))

    transfer(leader, follower).run()

    assert follower.assembled is not None
    assert bytes(follower.staged[T0]) == whole
    assert follower.ahead_bytes > 50 * BLOCK_BYTES
    assert leader.sent_bytes == len(whole)


def test_who_has_blocks_already_waits_for_the_list_of_the_image() -> None:
    whole = content(Random(12), blocks=100)
    leader = Leader({T0: whole})
    leader.grows_by = 10
    follower = Follower(terms((0,)), staged={T0: bytearray(whole[: 60 * BLOCK_BYTES])})

    transfer(leader, follower).run()

    assert follower.assembled is not None
    assert (follower.ahead_bytes, leader.sent_bytes) == (0, len(whole) - 60 * BLOCK_BYTES)


def test_blocks_that_came_ahead_and_damaged_are_counted_and_asked_for_again() -> None:
    whole = content(Random(13), blocks=20)
    leader = Leader({T0: whole})
    leader.grows_by = 10
    follower = Follower(terms((0,), min_rounds=1))
    running = transfer(leader, follower)
    damaged: list[bytes] = []

    def damage_first(body: bytes) -> bytes:
        if len(body) == 10 * BLOCK_BYTES and not damaged:
            damaged.append(body)
            return bytes([body[0] ^ 1]) + body[1:]
        return body

    running.mangle = damage_first
    running.run()

    assert follower.assembled is not None
    assert follower.fetch.damaged_blocks == 1
    assert bytes(follower.staged[T0]) == whole


def test_blocks_beyond_what_is_made_are_not_served() -> None:
    leader = Leader({T0: b""})
    leader.step(begin(terms((0,))), 0)
    leader.serve.step(
        serve.Heard(
            key=KEY, message=catchup.AskImage(EPOCH, ME, 1, task=T0, round=1, base=0), applied=Offset(0)
        ),
        Millis(0),
    )
    grown = {"size_bytes": 999, "block_bytes": BLOCK_BYTES, "blocks": 10, "applied": Offset(0)}
    growing = catchup.Growing(EPOCH, ME, 1, task=T0, round=1, **grown)  # type: ignore[arg-type]
    leader.serve.step(serve.ImageGrew(key=KEY, growing=growing), Millis(1))

    def answers(*runs: catchup.Run) -> list[type]:
        ask = catchup.AskBlocks(EPOCH, ME, 1, ask=1, task=T0, round=1, runs=runs)
        heard = serve.Heard(key=KEY, message=ask, applied=Offset(0))
        return [type(effect) for effect in leader.serve.step(heard, Millis(2))]

    assert answers((0, 10)) == [serve.SendBlocks]
    assert answers((9, 2)) == []


@pytest.mark.parametrize("grows_by", [0, 10])
def test_a_follower_without_room_says_so_and_nothing_is_kept_for_it(grows_by: int) -> None:
    leader = Leader({T0: content(Random(14), blocks=100)})
    leader.grows_by = grows_by
    follower = Follower(terms((0,)))
    follower.room_bytes = 50 * BLOCK_BYTES
    running = transfer(leader, follower)

    running.run()
    running.settle()

    assert follower.failed == "the disk is full"
    assert (leader.serve.transfers, leader.images, leader.pin) == ({}, {}, None)
    assert "follower_has_no_room" in leader.notes
    assert leader.sent_bytes == 0


def test_rounds_go_on_until_the_lowest_image_is_within_reach_of_the_log() -> None:
    random = Random(3)
    leader = Leader({T0: content(random), T1: content(random)})
    follower = Follower(terms(min_rounds=1, near_lag=5))
    running = transfer(leader, follower)
    speeds = {1: 100, 2: 30, 3: 8}

    def slow_down() -> None:
        leader.applied = Offset(leader.applied + speeds.get(follower.fetch.round, 0))

    running.between = slow_down
    running.run()

    assert follower.assembled is not None
    assert follower.fetch.round == 4


def test_rounds_end_beside_appends_that_never_do() -> None:
    random = Random(3)
    leader = Leader({T0: content(random), T1: content(random)})
    follower = Follower(terms(min_rounds=2, near_lag=5))
    running = transfer(leader, follower)

    def race() -> None:
        leader.applied = Offset(leader.applied + 100)

    running.between = race
    running.run()

    assert follower.assembled is not None
    assert follower.fetch.round <= 3


def test_every_task_does_the_minimum_of_rounds() -> None:
    random = Random(4)
    leader = Leader({T0: content(random), T1: content(random)})
    follower = Follower(terms(min_rounds=5))

    transfer(leader, follower).run()

    assert [each.round for each in follower.fetch.tasks.values()] == [5, 5]


def test_the_log_is_kept_from_the_lowest_image_that_is_complete() -> None:
    random = Random(5)
    leader = Leader({T0: content(random), T1: content(random)})
    follower = Follower(terms(min_rounds=3, near_lag=10_000))
    running = transfer(leader, follower)
    pins = []

    def advance() -> None:
        leader.applied = Offset(leader.applied + 1)
        pins.append((leader.pin, min((each.offset or 0) for each in follower.fetch.tasks.values())))

    running.between = advance
    running.run()

    assert follower.assembled is not None
    assert all(pin is not None and (pin <= lowest or lowest == 0) for pin, lowest in pins)
    assert max(pin or 0 for pin, _ in pins) > 100


def test_a_damaged_block_is_refused_counted_and_asked_for_again() -> None:
    random = Random(6)
    leader = Leader({T0: content(random, blocks=10)})
    follower = Follower(terms((0,), min_rounds=1))
    running = transfer(leader, follower)
    damaged: list[bytes] = []

    def damage_first(body: bytes) -> bytes:
        if len(body) == len(leader.content[T0]) and not damaged:
            damaged.append(body)
            return bytes([body[0] ^ 1]) + body[1:]
        return body

    running.mangle = damage_first
    running.run()

    assert follower.assembled is not None
    assert follower.fetch.damaged_blocks > 0
    assert bytes(follower.staged[T0]) == leader.content[T0]


def test_a_list_that_came_damaged_ends_the_transfer() -> None:
    leader = Leader({T0: content(Random(7))})
    follower = Follower(terms((0,)))
    running = transfer(leader, follower)
    running.mangle = lambda body: bytes(len(body))
    running.run()

    assert "list of hashes" in (follower.failed or "")


def test_a_question_that_comes_before_the_leader_knows_of_the_transfer_is_asked_again() -> None:
    leader = Leader({T0: content(Random(10))})
    follower = Follower(terms((0,)))
    running = Transfer(leader, follower)
    running.run(until_ms=50)
    assert (follower.failed, follower.assembled) == (None, None)

    leader.pin = Offset(leader.applied - 1)
    leader.step(begin(follower.fetch.terms, pinned=leader.pin), running.now)
    running.run()

    assert follower.assembled is not None


def test_a_transfer_that_the_leader_does_not_know_is_refused() -> None:
    leader = Leader({T0: b""})
    follower = Follower(terms((0,)))

    Transfer(leader, follower).run()

    assert follower.failed == "the leader no longer knows this transfer"


@pytest.mark.parametrize(
    "stale",
    [
        {"epoch": Epoch(2)},
        {"incarnation": Incarnation("w1.0")},
        {"attempt": 0},
    ],
)
def test_questions_of_another_transfer_are_refused_and_change_nothing(stale: dict[str, object]) -> None:
    leader = Leader({T0: b"x" * 100})
    leader.step(begin(terms((0,))), 0)
    named = {"epoch": EPOCH, "incarnation": ME, "attempt": 1} | stale
    ask = catchup.AskImage(**named, task=T0, round=1, base=0)  # type: ignore[arg-type]

    ((answer, _),) = leader.step(serve.Heard(key=KEY, message=ask, applied=Offset(0)), 1)

    assert getattr(answer, "reason", None) is catchup.Reason.UNKNOWN
    assert leader.images == {}


def test_a_leader_that_leads_again_ends_the_transfers_of_its_earlier_epoch_only() -> None:
    leader = Leader({T0: b"x" * 100})
    other = (KEY[0], WorkerId("w2"))
    leader.step(begin(terms((0,))), 0)
    leader.step(dataclasses.replace(begin(terms((0,), epoch=Epoch(EPOCH - 1))), key=other), 0)

    leader.step(serve.LeadershipEnded(group=KEY[0], leads=EPOCH), 1)
    assert list(leader.serve.transfers) == [KEY]

    leader.step(serve.LeadershipEnded(group=KEY[0]), 2)
    assert leader.serve.transfers == {}


def test_answers_of_another_transfer_are_ignored() -> None:
    follower = Follower(terms((0,)))
    follower.step(fetch.Begin(), 0)
    refused = catchup.Refused(EPOCH, ME, 7, reason=catchup.Reason.UNKNOWN)

    follower.step(fetch.Heard(message=refused), 1)

    assert follower.failed is None


def test_another_format_is_refused() -> None:
    leader = Leader({T0: b"x" * 100})
    leader.step(begin(terms((0,))), 0)
    ask = catchup.AskImage(EPOCH, ME, 1, task=T0, round=1, base=0, format=catchup.FORMAT + 1)

    ((answer, _),) = leader.step(serve.Heard(key=KEY, message=ask, applied=Offset(0)), 1)

    assert getattr(answer, "reason", None) is catchup.Reason.FORMAT
    assert leader.notes == ["transfer_refused"]


def test_a_follower_that_is_silent_is_given_up_with_its_images_and_its_pin() -> None:
    leader = Leader({T0: b"x" * 100})
    leader.step(begin(terms((0,)), pinned=50), 0)
    assert leader.serve.next_deadline() == PATIENCE_MS

    leader.step(serve.Tick(), PATIENCE_MS)

    assert leader.serve.transfers == {}
    assert leader.pins == [None]
    assert (leader.dropped, leader.notes) == (1, ["transfer_given_up"])


def test_when_the_log_could_not_be_kept_the_follower_is_told_which_option_to_raise() -> None:
    leader = Leader({T0: b"x" * 100})
    follower = Follower(terms((0,)))
    leader.step(begin(follower.fetch.terms), 0)
    follower.step(fetch.Begin(), 0)

    ((answer, _),) = leader.step(serve.PinReleased(key=KEY), 1)
    follower.step(fetch.Heard(message=answer), 2)

    assert follower.failed is not None
    assert "replication.far.horizon.max.pinned.entries" in follower.failed


def test_a_newer_attempt_takes_the_place_of_an_older_one() -> None:
    leader = Leader({T0: b"x" * 100})
    leader.step(begin(terms((0,))), 0)
    leader.step(begin(terms((0,), attempt=2)), 1)

    assert leader.dropped == 1
    assert [each.begun.attempt for each in leader.serve.transfers.values()] == [2]


def test_all_transfers_of_a_worker_share_one_allowance() -> None:
    random = Random(8)
    leader = Leader({T0: content(random, blocks=4_000, tail=0)}, bytes_per_second=20_000)
    follower = Follower(terms((0,), min_rounds=1))
    running = transfer(leader, follower)

    running.run(until_ms=100_000)

    assert follower.assembled is not None
    # The list and the blocks; the last message may still be unpaid.
    assert running.now >= 64_000 * 1000 // 20_000 * 0.9


@pytest.mark.parametrize("bytes_per_second", [20_000_000, 5_000_000, 1_000_000, 300_000])
def test_a_slow_link_carries_everything_about_once(bytes_per_second: int) -> None:
    whole = content(Random(15), blocks=4 * blocks.PART_BYTES // BLOCK_BYTES, tail=0)
    leader = Leader({T0: whole}, patience_ms=Millis(60_000))
    follower = Follower(terms((0,), min_rounds=1, silence_max_ms=Millis(15_000)))
    running = transfer(leader, follower)
    running.bytes_per_second = bytes_per_second

    running.run(until_ms=400_000)

    assert follower.assembled is not None
    # The list of such small blocks is as long as they are.
    ideal_bytes, probes_bytes = 2 * len(whole), 5 * blocks.PART_BYTES
    assert running.sent_bytes <= ideal_bytes + probes_bytes
    assert running.now <= (ideal_bytes + probes_bytes) * 1_000 / bytes_per_second + 200
    assert running.backlog_bytes <= fetch.WINDOW * blocks.PART_BYTES + probes_bytes


def test_no_more_is_asked_for_than_a_slow_disk_has_still_to_take(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = content(Random(15), blocks=2 * fetch.WINDOW * blocks.PART_BYTES // BLOCK_BYTES, tail=0)
    follower = Follower(terms((0,), min_rounds=1))
    step = follower.fetch.step
    waiting: list[fetch.Effect] = []

    def stepped(event: fetch.Event, now: Millis) -> list[fetch.Effect]:
        made = step(event, now)
        stores = fetch.Store | fetch.StoreAhead
        waiting.extend(each for each in made if isinstance(each, stores))
        return [each for each in made if not isinstance(each, stores)]

    monkeypatch.setattr(follower.fetch, "step", stepped)
    transfer(Leader({T0: whole}), follower).run(until_ms=2_000)
    assert len(waiting) == fetch.WINDOW


def test_the_allowance_can_be_changed_while_a_transfer_runs() -> None:
    random = Random(9)
    leader = Leader({T0: content(random, blocks=4_000, tail=0)}, bytes_per_second=1)
    follower = Follower(terms((0,), min_rounds=1))
    running = transfer(leader, follower)
    running.run(until_ms=3_000)
    assert follower.assembled is None

    leader.step(serve.Limit(bytes_per_second=0, patience_ms=Millis(60_000)), running.now)
    running.run(until_ms=10_000)

    assert follower.assembled is not None


def test_what_is_asked_for_twice_is_sent_once() -> None:
    leader = Leader({T0: b"x" * 10 * BLOCK_BYTES}, bytes_per_second=1_000)
    leader.step(begin(terms((0,))), 0)
    ask_image = catchup.AskImage(EPOCH, ME, 1, task=T0, round=1, base=0)
    leader.step(serve.Heard(key=KEY, message=ask_image, applied=Offset(0)), 0)
    ask = catchup.AskBlocks(EPOCH, ME, 1, ask=1, task=T0, round=1, runs=((0, 10),))
    other = catchup.AskBlocks(EPOCH, ME, 1, ask=2, task=T0, round=1, runs=((0, 10),))

    first = leader.step(serve.Heard(key=KEY, message=ask, applied=Offset(0)), 0)
    second = leader.step(serve.Heard(key=KEY, message=other, applied=Offset(0)), 0)
    third = leader.step(serve.Heard(key=KEY, message=other, applied=Offset(0)), 1)

    assert [type(message) for message, _ in first] == [catchup.Blocks]
    assert second == []
    assert [type(message) for message, _ in third] == [catchup.Waiting]


@pytest.mark.parametrize("runs", [((9, 2),), ((-1, 1),), ((0, 0),), ((10, 1),)])
def test_blocks_that_an_image_does_not_have_are_not_served(runs: tuple[catchup.Run, ...]) -> None:
    leader = Leader({T0: b"x" * 10 * BLOCK_BYTES})
    leader.step(begin(terms((0,))), 0)
    ask_image = catchup.AskImage(EPOCH, ME, 1, task=T0, round=1, base=0)
    leader.step(serve.Heard(key=KEY, message=ask_image, applied=Offset(0)), 0)
    ask = catchup.AskBlocks(EPOCH, ME, 1, ask=1, task=T0, round=1, runs=runs)

    assert leader.step(serve.Heard(key=KEY, message=ask, applied=Offset(0)), 0) == []


def test_a_follower_that_is_at_work_is_not_given_up() -> None:
    leader = Leader({T0: b"x" * 100})
    leader.step(begin(terms((0,))), 0)
    for now in range(0, 10 * PATIENCE_MS, PATIENCE_MS // 2):
        working = catchup.Working(EPOCH, ME, 1)
        leader.step(serve.Heard(key=KEY, message=working, applied=Offset(0)), now)
        leader.step(serve.Tick(), now)
    assert list(leader.serve.transfers) == [KEY]
    assert leader.notes == []


def test_what_is_being_done_for_a_transfer_is_told_to_its_leader() -> None:
    follower = Follower(terms((0,)))
    assert follower.step(fetch.Working(), 0) == [catchup.Working(EPOCH, ME, 1)]
