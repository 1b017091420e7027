"""PStates against plain Python: any changes, in any batches, applied at any time, lost or not.

Changes go the way they go in a worker: an editor makes them, they are packed into an entry, the entry waits,
and the applied state takes it. What a batch sees is compared with dicts, sets and lists that had the same
done to them; what is applied, with those as they were when that entry was made.
"""

from __future__ import annotations

import copy
from contextlib import ExitStack
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from stretto.errors import UsageError
from stretto.pstate import types
from stretto.pstate.changes import Changes, check_payload, pack, parse
from stretto.pstate.edit import Editor, View
from stretto.pstate.overlay import Overlay
from stretto.pstate.tree import compile_type
from stretto.pstate.types import Type, describe
from stretto.replog.frame import Frame, Kind, payload
from stretto.state.applied import AppliedState
from stretto.vocabulary.types import TaskId
from tests.support.entries import Log, digests, open_state, quick_folder

T0 = TaskId(0)
NAME = "counts"

SHAPES: list[Any] = [
    dict[str, int],
    dict[str, dict[int, int]],
    dict[str, set[str]],
    dict[int, list[str]],
    set[tuple[str, int]],
    dict[str, dict[str, dict[int, float]]],
    dict[str, dict[str, list[int]]],
]
#: Few, so that they meet, and with what could be mistaken for the end of a key.
KEYS: dict[str, st.SearchStrategy[Any]] = {
    "str": st.sampled_from(["", "a", "a\0", "a\0b", "ab", "b", "\U0010ffff"]),
    "int": st.sampled_from([-300, -1, 0, 1, 255, 256]),
}
VALUES: dict[str, st.SearchStrategy[Any]] = {
    "str": st.text(max_size=4),
    "int": st.integers(-(2**40), 2**40),
    "float": st.floats(allow_nan=False, allow_infinity=False, width=32),
}
ABSENT = object()


def keys_of(type_: Type) -> st.SearchStrategy[Any]:
    match type_:
        case types.Plain(name=name):
            return KEYS[name]
        case types.Tuple(items=items):
            return st.tuples(*map(keys_of, items))
        case _:
            raise AssertionError(type_)


def values_of(type_: Type) -> st.SearchStrategy[Any]:
    match type_:
        case types.Plain(name=name):
            return VALUES[name]
        case types.Dict(key=key, value=value):
            return st.dictionaries(keys_of(key), values_of(value), max_size=3)
        case types.Set(item=item):
            return st.sets(keys_of(item), max_size=3)
        case types.List(item=item):
            return st.lists(values_of(item), max_size=3)
        case _:
            raise AssertionError(type_)


def pruned(value: Any) -> Any:
    """Without empty collections, which are the same as none."""
    if isinstance(value, dict):
        return {key: each for key, old in value.items() if (each := pruned(old)) not in ({}, set(), [])}
    return value


class Machine(RuleBasedStateMachine):
    @initialize(shape=st.sampled_from(SHAPES))
    def begin(self, shape: Any) -> None:
        self.closing = ExitStack()
        self.folder = self.closing.enter_context(quick_folder())
        self.state = open_state(self.folder)
        self.type = describe(shape)
        self.root = compile_type(self.type, shape)
        self.log = Log()
        self.empty: Any = set() if isinstance(self.type, types.Set) else {}
        #: As of what is applied, and as of each entry that waits.
        self.applied: Any = copy.deepcopy(self.empty)
        self.waiting: list[tuple[Frame, Any]] = []
        self.batch = Changes()
        self.model: Any = copy.deepcopy(self.empty)

    def teardown(self) -> None:
        if hasattr(self, "state"):
            self.state.close()
            self.closing.close()

    # The two sides.

    def edit(self, change: Any) -> Any:
        """Run ``change`` on an editor that sees everything, and keep what it did."""
        with self.state.reading_pstate(T0, NAME) as rows:
            below = Overlay(rows)
            for frame, _ in self.waiting:
                below.add(parse(payload(frame))[NAME])
            editor = Editor(self.root, below)
            editor._overlay.add(self.batch)
            found = change(editor)
            self.batch = editor.changes()
        return found

    def at(self, path: list[Any], *, make: bool = False) -> Any:
        """What the model has there."""
        here, type_ = self.model, self.type
        for key in path:
            assert isinstance(type_, types.Dict)
            type_ = type_.value
            if make and key not in here:
                here[key] = {types.Dict: dict, types.Set: set, types.List: list}[type(type_)]()
            here = here.get(key, ABSENT)
            if here is ABSENT:
                return ABSENT
        return here

    def draw_path(self, data: st.DataObject, of: type[Type]) -> tuple[list[Any], Any] | None:
        """To a collection of that kind, and its type; None if the shape has none."""
        path: list[Any] = []
        type_: Type = self.type
        while not (isinstance(type_, of) and (not isinstance(type_, types.Dict) or data.draw(st.booleans()))):
            if not isinstance(type_, types.Dict):
                return None
            if isinstance(type_.value, types.Plain) and of is types.Dict:
                return path, type_
            path.append(data.draw(keys_of(type_.key)))
            type_ = type_.value
        return path, type_

    # Changes.

    @rule(data=st.data())
    def set(self, data: st.DataObject) -> None:
        found = self.draw_path(data, types.Dict)
        if found is None:
            return
        path, type_ = found
        key, value = data.draw(keys_of(type_.key)), data.draw(values_of(type_.value))
        self.edit(lambda editor: editor.set(*path, key, value=value))
        self.at(path, make=True)[key] = copy.deepcopy(value)
        self.model = pruned(self.model)

    @rule(data=st.data())
    def delete(self, data: st.DataObject) -> None:
        found = self.draw_path(data, types.Dict)
        if found is None:
            return
        path, type_ = found
        key = data.draw(keys_of(type_.key))
        self.edit(lambda editor: editor.delete(*path, key))
        here = self.at(path)
        if here is not ABSENT:
            here.pop(key, None)
        self.model = pruned(self.model)

    @rule()
    def delete_everything(self) -> None:
        self.edit(lambda editor: editor.delete())
        self.model = copy.deepcopy(self.empty)

    @rule(data=st.data(), by=st.integers(-3, 3))
    def increment(self, data: st.DataObject, by: int) -> None:
        found = self.draw_path(data, types.Dict)
        if found is None:
            return
        path, type_ = found
        key = data.draw(keys_of(type_.key))
        if not isinstance(type_.value, types.Plain):
            with pytest.raises(UsageError, match="only a number goes up"):
                self.edit(lambda editor: editor.increment(*path, key, by=by))
            return
        here = self.at(path, make=True)
        here[key] = here.get(key, 0) + by
        assert self.edit(lambda editor: editor.increment(*path, key, by=by)) == here[key]

    @rule(data=st.data())
    def append(self, data: st.DataObject) -> None:
        found = self.draw_path(data, types.List)
        if found is None:
            return
        path, type_ = found
        value = data.draw(values_of(type_.item))
        here = self.at(path, make=True)
        here.append(value)
        assert self.edit(lambda editor: editor.append(*path, value=value)) == len(here) - 1

    @rule(data=st.data(), index=st.integers(0, 4))
    def set_an_element(self, data: st.DataObject, index: int) -> None:
        found = self.draw_path(data, types.List)
        if found is None:
            return
        path, type_ = found
        value = data.draw(values_of(type_.item))
        here = self.at(path)
        if here is ABSENT or index >= len(here):
            with pytest.raises(UsageError, match="has no position"):
                self.edit(lambda editor: editor.set(*path, index, value=value))
        else:
            here[index] = value
            self.edit(lambda editor: editor.set(*path, index, value=value))

    @rule(data=st.data(), length=st.integers(0, 4))
    def truncate(self, data: st.DataObject, length: int) -> None:
        found = self.draw_path(data, types.List)
        if found is None:
            return
        path, _ = found
        here = self.at(path)
        if here is not ABSENT:
            del here[length:]
        self.edit(lambda editor: editor.truncate(*path, length=length))
        self.model = pruned(self.model)

    @rule(data=st.data(), there=st.booleans())
    def add_or_discard(self, data: st.DataObject, there: bool) -> None:
        found = self.draw_path(data, types.Set)
        if found is None:
            return
        path, type_ = found
        member = data.draw(keys_of(type_.item))
        here = self.at(path, make=True)
        if there:
            here.add(member)
            self.edit(lambda editor: editor.add(*path, member))
        else:
            here.discard(member)
            self.edit(lambda editor: editor.discard(*path, member))
        self.model = pruned(self.model)

    # Entries.

    @rule()
    def write_the_batch(self) -> None:
        packed = pack({NAME: self.batch})
        check_payload(packed, {NAME})
        frame = self.log.add(Kind.STATE, payload=packed)
        self.waiting.append((frame, copy.deepcopy(self.model)))
        self.batch = Changes()

    @precondition(lambda self: self.waiting)
    @rule(data=st.data())
    def apply(self, data: st.DataObject) -> None:
        count = data.draw(st.integers(1, len(self.waiting)))
        self.state.apply([frame for frame, _ in self.waiting[:count]])
        self.applied = self.waiting[count - 1][1]
        del self.waiting[:count]

    @rule()
    def lose_what_is_not_applied(self) -> None:
        del self.log.frames[len(self.log.frames) - len(self.waiting) :]
        self.waiting.clear()
        self.batch = Changes()
        self.model = copy.deepcopy(self.applied)

    @rule()
    def restart(self) -> None:
        before = digests(self.state)
        self.state.checkpoint()
        self.state.close()
        self.state = open_state(self.folder)
        assert digests(self.state) == before

    # Reads.

    @invariant()
    def what_is_applied_is_what_the_last_applied_entry_knew(self) -> None:
        if hasattr(self, "state"):
            with self.state.reading_pstate(T0, NAME) as rows:
                assert View(self.root, rows).get(default=self.empty) == self.applied

    @rule()
    def a_batch_sees_everything(self) -> None:
        assert self.edit(lambda editor: editor.get(default=self.empty)) == self.model
        assert self.edit(lambda editor: list(editor.keys())) == sorted(self.model)

    @rule(data=st.data())
    def parts_are_read_alone(self, data: st.DataObject) -> None:
        path: list[Any] = []
        type_: Type = self.type
        while isinstance(type_, types.Dict) and data.draw(st.booleans()):
            path.append(data.draw(keys_of(type_.key)))
            type_ = type_.value
        here = self.at(path)
        empty = here is ABSENT or here in (set(), {}, [])
        assert self.edit(lambda editor: editor.get(*path, default=ABSENT)) == (ABSENT if empty else here)
        assert self.edit(lambda editor: editor.contains(*path)) == (not empty)
        if not isinstance(type_, types.Plain):
            assert self.edit(lambda editor: editor.count(*path)) == (0 if empty else len(here))
        if isinstance(type_, types.Dict | types.Set):
            self.ranges(data, path, type_, set() if empty else here)

    def ranges(self, data: st.DataObject, path: list[Any], type_: types.Dict | types.Set, here: Any) -> None:
        keys = keys_of(type_.key if isinstance(type_, types.Dict) else type_.item)
        start, end = data.draw(st.none() | keys), data.draw(st.none() | keys)
        wanted = [
            key for key in sorted(here) if (start is None or start <= key) and (end is None or key < end)
        ]
        assert self.edit(lambda editor: list(editor.keys(*path, start=start, end=end))) == wanted
        assert self.edit(lambda editor: editor.count(*path, start=start, end=end)) == len(wanted)
        if isinstance(type_, types.Dict):
            items = self.edit(lambda editor: list(editor.items(*path, start=start, end=end)))
            assert items == [(key, here[key]) for key in wanted]


TestPStates = Machine.TestCase
TestPStates.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


def test_replicas_that_applied_the_same_entries_have_the_same_digest_and_others_do_not() -> None:
    root = compile_type(describe(dict[str, int]))
    with ExitStack() as closing:
        states = [open_state(closing.enter_context(quick_folder())) for _ in range(2)]
        for state in states:
            closing.callback(state.close)
        log = Log()
        for number in range(3):
            with states[0].reading_pstate(T0, NAME) as rows:
                editor = Editor(root, rows)
                editor.increment("a", by=number + 1)
                log.add(Kind.STATE, payload=pack({NAME: editor.changes()}))
            states[0].apply(log.frames)
        states[1].apply(log.frames[:2])
        assert value_of(states[1]) == 3
        assert digests(states[0]) != digests(states[1])
        states[1].apply(log.frames)
        assert value_of(states[1]) == value_of(states[0]) == 6
        assert digests(states[0]) == digests(states[1])


def value_of(state: AppliedState) -> Any:
    with state.reading_pstate(T0, NAME) as rows:
        return View(compile_type(describe(dict[str, int])), rows).get("a")
