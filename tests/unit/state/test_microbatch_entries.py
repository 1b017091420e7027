"""What entries of microbatches do to the state of a task."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from stretto.errors import StorageError
from stretto.pstate.changes import Changes, pack
from stretto.pstate.ordered import EVERYTHING
from stretto.replog.frame import Kind
from stretto.state import microbatch_entries
from stretto.state.applied import AppliedState
from stretto.state.microbatch_entries import (
    Batch,
    Commit,
    Missed,
    Prime,
    Result,
    Returned,
    Roll,
    Source,
    Span,
    Stage,
    Version,
)
from stretto.vocabulary.types import TaskId
from tests.support.entries import TASKS, Log, open_state

T0 = TASKS[0]
NAME = "transfers"


class Scene:
    """A task that entries are applied to."""

    def __init__(self, folder: Path) -> None:
        self.state: AppliedState = open_state(folder)
        self._log = Log()

    def apply(self, *applied: microbatch_entries.Entry) -> None:
        """All in one transaction."""
        frames = [
            self._log.add(Kind.MICROBATCH, task=T0, payload=microbatch_entries.encode(each))
            for each in applied
        ]
        self.state.apply(frames)

    def rows(self, pstate: str = "counts") -> dict[bytes, bytes]:
        with self.state.reading_pstate(T0, pstate) as rows:
            return dict(rows.scan(*EVERYTHING))

    def batch(self) -> Batch | None:
        return microbatch_entries.batch_of(NAME, self.rows(microbatch_entries.DATABASE).get)

    def rolled(self) -> int:
        return microbatch_entries.rolled_of(NAME, self.rows(microbatch_entries.DATABASE).get)


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    scene = Scene(tmp_path / "state")
    yield scene
    scene.state.close()


def batch(id_: int, version: int, end: int = 1) -> Batch:
    return Batch(Version(id_, version), {}, (Span("requests", T0, 0, end),))


def stage(id_: int, version: int, value: bytes) -> Stage:
    return Stage(NAME, Version(id_, version), pack({"counts": Changes(puts=((b"a", value),))}))


def test_what_is_staged_is_invisible_until_it_is_rolled(scene: Scene) -> None:
    scene.apply(stage(1, 0, b"one"))
    assert scene.rows() == {}
    scene.apply(Roll(NAME, Version(1, 0)))
    assert scene.rows() == {b"a": b"one"}
    assert scene.rolled() == 1


def test_what_is_rolled_is_staged_no_longer_and_takes_effect_once(scene: Scene) -> None:
    scene.apply(stage(1, 0, b"one"), Roll(NAME, Version(1, 0)))
    assert list(scene.rows(microbatch_entries.DATABASE)) == [microbatch_entries._key("rolled", NAME)]
    before = scene.state.digest(T0)
    scene.apply(Roll(NAME, Version(1, 0)))
    assert scene.state.digest(T0) == before


def test_another_version_than_the_staged_one_does_not_take_effect(scene: Scene) -> None:
    scene.apply(stage(1, 0, b"one"), stage(1, 1, b"two"), Roll(NAME, Version(1, 0)))
    assert scene.rows() == {}
    scene.apply(Roll(NAME, Version(1, 1)))
    assert scene.rows() == {b"a": b"two"}


def test_a_version_that_was_staged_again_takes_effect_as_staged_last(scene: Scene) -> None:
    scene.apply(stage(1, 0, b"one"), stage(1, 0, b"same"), Roll(NAME, Version(1, 0)))
    assert scene.rows() == {b"a": b"same"}


def test_what_is_lost_counts_as_rolled_with_a_word_for_people_and_only_if_it_is_lost(scene: Scene) -> None:
    lost = pack({"$failures": Changes(puts=((b"a", b"told"),))})
    scene.apply(stage(1, 0, b"one"), Missed(NAME, Version(1, 0), lost))
    assert scene.rolled() == 0
    scene.apply(Roll(NAME, Version(1, 0)), Missed(NAME, Version(1, 0), lost))
    assert (scene.rows(), scene.rows("$failures")) == ({b"a": b"one"}, {})
    scene.apply(stage(2, 0, b"stale"), Missed(NAME, Version(2, 1), lost))
    assert scene.rolled() == 2
    assert (scene.rows(), scene.rows("$failures")) == ({b"a": b"one"}, {b"a": b"told"})
    scene.apply(Roll(NAME, Version(2, 1)), Roll(NAME, Version(2, 0)))
    assert scene.rows() == {b"a": b"one"}


def test_a_record_is_followed_by_a_higher_version_and_once_committed_by_a_higher_id(scene: Scene) -> None:
    scene.apply(Prime(NAME, batch(1, 0)), Prime(NAME, batch(1, 0, end=5)), Prime(NAME, batch(2, 0)))
    assert scene.batch() == batch(1, 0)
    scene.apply(Prime(NAME, batch(1, 1)), Prime(NAME, batch(1, 0)))
    assert scene.batch() == batch(1, 1)
    scene.apply(Commit(NAME, Version(1, 1), (T0,)), Prime(NAME, batch(1, 2)))
    current = scene.batch()
    assert current is not None
    assert current.version == Version(1, 1)
    assert current.committed
    scene.apply(Prime(NAME, batch(2, 0)))
    assert scene.batch() == batch(2, 0)


def test_only_the_version_under_way_is_committed(scene: Scene) -> None:
    scene.apply(Commit(NAME, Version(1, 0), (T0,)))
    assert scene.batch() is None
    scene.apply(Prime(NAME, batch(1, 0)), Prime(NAME, batch(1, 1)), Commit(NAME, Version(1, 0), (T0,)))
    current = scene.batch()
    assert current is not None
    assert not current.committed


def test_progress_goes_on_where_a_batch_ends() -> None:
    spans = (Span("requests", T0, 3, 9), Span("refunds", TaskId(1), 0, 2))
    first = Batch(Version(1, 0), {"requests": {T0: 3, TaskId(1): 4}}, spans)
    assert first.progress_after() == {"requests": {T0: 9, TaskId(1): 4}, "refunds": {TaskId(1): 2}}
    assert first.progress == {"requests": {T0: 3, TaskId(1): 4}}


def test_topologies_do_not_meet(scene: Scene) -> None:
    scene.apply(stage(1, 0, b"one"), Roll("another", Version(1, 0)))
    assert scene.rows() == {}


def test_what_is_staged_counts_in_the_digest_and_survives_a_restart(tmp_path: Path, scene: Scene) -> None:
    empty = scene.state.digest(T0)
    scene.apply(stage(1, 0, b"one"))
    staged = scene.state.digest(T0)
    assert staged != empty
    scene.state.close()
    scene.state = open_state(tmp_path / "state")
    assert scene.state.digest(T0) == staged


def test_a_malformed_entry_cannot_be_applied(scene: Scene) -> None:
    frame = Log().add(Kind.MICROBATCH, task=T0, payload=b"\x93")
    with pytest.raises(StorageError, match="an entry of a microbatch is malformed"):
        scene.state.apply([frame])


RETURNED = Returned(
    Version(1, 0),
    (Span("requests", T0, 0, 1), Span("others", T0, 0, 1)),
    (Result("requests", 0, b"7"),),
    ((Source("others", T0, 0), "ValueError: no"),),
)


def returned(scene: Scene) -> Returned | None:
    return microbatch_entries.returned_of(NAME, scene.rows(microbatch_entries.DATABASE).get)


def staged_with(version: Version) -> Stage:
    told = msgspec.structs.replace(RETURNED, version=version)
    return msgspec.structs.replace(stage(*version, b"1"), returned=microbatch_entries.encode(told))


def test_what_a_run_returned_is_kept_for_the_next_leader_until_another_one_is_staged(scene: Scene) -> None:
    scene.apply(staged_with(Version(1, 0)), Roll(NAME, Version(1, 0)))
    assert returned(scene) == RETURNED
    scene.apply(stage(2, 0, b"2"))
    assert returned(scene) is None


def test_a_version_that_nobody_waits_for_keeps_nothing_of_what_an_earlier_one_returned(scene: Scene) -> None:
    scene.apply(staged_with(Version(1, 0)), stage(1, 1, b"2"), Roll(NAME, Version(1, 1)))
    assert (scene.rolled(), returned(scene)) == (1, None)


def test_what_an_earlier_version_returned_is_not_told_of_one_that_was_lost(scene: Scene) -> None:
    scene.apply(staged_with(Version(1, 0)), Missed(NAME, Version(1, 1), pack({})))
    assert (scene.rolled(), returned(scene)) == (1, None)


def test_of_a_depot_that_is_gone_nothing_is_told_that_was_returned() -> None:
    key, row = microbatch_entries._key("returned", NAME), microbatch_entries.encode(RETURNED)
    assert microbatch_entries.without_depot(key, row, "nobody") is None
    changed = microbatch_entries.without_depot(key, row, "others")
    assert changed is not None
    assert microbatch_entries._decode_returned(changed).spans == (Span("requests", T0, 0, 1),)
