"""Which steps and PStates a function's code leads to, however it is written."""

from __future__ import annotations

from typing import Any

from stretto.module.reach import reach

PSTATES = ["a", "b", "c", "d", "e", "counts", "seen", "looked", "of_base"]


def helper(module: Any, key: Any) -> None:
    module.counts.add(key)


class Base:
    of_base: Any

    def common(self, key: Any) -> None:
        self.of_base.set(key)


class Code(Base):
    a: Any
    b: Any
    c: Any
    d: Any
    e: Any
    seen: Any
    looked: Any

    def count(self, key: Any) -> None:
        self.a.increment(key)
        list(map(lambda each: self.b.delete(each), [key]))  # noqa: C417, PLW0108

    def other(self, key: Any) -> None:
        self.looked.get(key)

    def in_a_loop(self: Any, keys: Any) -> None:
        for key in keys:
            self.count.at(key)(key)

    def in_a_comprehension(self: Any, keys: Any) -> Any:
        return [self.other.on(0)(key) for key in keys]

    def by_helpers(self: Any, key: Any) -> None:
        self.helping(key)
        helper(self, key)

    def helping(self, key: Any) -> Any:
        def inner() -> Any:
            return self.c.append(key, value=self.d.get(key))

        return inner()

    def by_base(self, key: Any) -> None:
        super().common(key)

    @property
    def shorter(self) -> Any:
        return self.e.truncate(length=1)

    def by_property(self) -> Any:
        return self.shorter

    def of_something_else(self, record: Any) -> Any:
        record.counts.append(3)
        record.count.at(1)(2)
        return self.seen.count(record), self.seen.keys(record.a.add)


STEPS: Any = {"count": Code.count, "other": Code.other}


def found(function: Any) -> tuple[set[str], set[str]]:
    reached = reach(function, Code, STEPS, PSTATES)
    return reached.steps, set(reached.writes)


def test_hops_are_found_with_what_their_steps_write() -> None:
    assert found(Code.in_a_loop) == ({"count"}, {"a", "b"})
    assert found(Code.in_a_comprehension) == ({"other"}, set())


def test_functions_of_the_module_its_bases_and_its_file_are_followed() -> None:
    assert found(Code.by_helpers) == (set(), {"c", "counts"})
    assert found(Code.by_base) == (set(), {"of_base"})
    assert found(Code.by_property) == (set(), {"e"})


def test_what_is_called_the_same_in_a_record_or_in_a_pstate_is_something_else() -> None:
    assert found(Code.of_something_else) == (set(), set())
