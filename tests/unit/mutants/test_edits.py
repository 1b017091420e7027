"""Which slips of the hand are made, and which lines are left alone."""

from __future__ import annotations

import ast
from collections import Counter
from pathlib import Path

import pytest

from tests.mutants.belonging import targets
from tests.mutants.edits import edits_of

ROOT = Path(__file__).parents[3]


def lines_after(line: str, *, name: str = "f") -> set[tuple[str, str]]:
    """Kind of each edit of a line in a function, and what becomes of the line."""
    source = f"def {name}(self, a, b, c):\n    {line}\n"
    return {(edit.kind, edit.lines(source)[1]) for edit in edits_of(source, "m.py")}


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("self.close()", {("call-removed", "pass")}),
        ("x = a < b", {("comparison", "x = a <= b")}),
        ("x = a is not b", {("comparison", "x = a is b")}),
        ("x = a not in b", {("comparison", "x = a in b")}),
        ("x = not a", {("not-removed", "x = (a)")}),
        (
            "x = a and (b or c)",
            {("and-to-or", "x = (a or (b or c))"), ("or-to-and", "x = a and ((b and c))")},
        ),
        ("x = max(a, b)", {("min-max", "x = min(a, b)")}),
        ("x = a[0]", {("off-by-one", "x = a[1]")}),
        ("x = a - b", {("arithmetic", "x = a + b")}),
        ("x = f(a, durable=True)", {("flag-flipped", "x = f(a, durable=False)")}),
        ("return a", {("return-none", "return None")}),
        ("self.a = b", {("assignment-removed", "pass")}),
        ("self.a += b", {("assignment-removed", "pass")}),
        ("raise ValueError(f'{a} < {b + 1}')", {("raise-removed", "pass")}),
        (
            "x = [each for each in a if each]",
            {("condition-negated", "x = [each for each in a if not (each)]")},
        ),
    ],
)
def test_each_kind_of_slip_is_made(line: str, expected: set[tuple[str, str]]) -> None:
    assert lines_after(line) == expected


@pytest.mark.parametrize("condition", ["a", "a < b"])
def test_a_condition_is_negated(condition: str) -> None:
    source = f"def f(a, b):\n    while {condition}:\n        pass\n"
    [negated] = [edit for edit in edits_of(source, "m.py") if edit.kind == "condition-negated"]
    assert negated.lines(source) == (f"while {condition}:", f"while not ({condition}):")


@pytest.mark.parametrize(
    "line",
    [
        "log.info('opened', count=a + 1)",
        "self._log.error('failed')",
        "self.meter.created(a < b)",
        "self._meter.count += 1",
        "check(a <= b, 'it goes back')",
        "x: int | None",
        "'a docstring' 'of two'",
        "x = f'{a + 1} of {b}'",
        "x = Thread(target=a, daemon=True)",
        "x = a[70_000]",
        "x = self.now < a.deadline",
        "x = patience_ms(a - 1)",
        "if not a.closed: log.error('failed')",
    ],
)
def test_what_does_no_harm_is_left_alone(line: str) -> None:
    assert lines_after(line) == set()


def test_reprs_fields_decorators_and_constants_are_left_alone() -> None:
    source = '''
LIMIT = 3 + 1

@dataclass(frozen=True)
class A:
    """Of 1 or 2."""

    x: int = 1

    def __repr__(self) -> str:
        return str(self.x + 1)

    def __init__(self) -> None:
        self.y = None
'''
    assert edits_of(source, "m.py") == []


def test_columns_are_counted_in_characters() -> None:
    source = "def f(a, b):\n    x = 'ä', a < b\n"
    [edit] = edits_of(source, "m.py")
    assert edit.applied(source) == "def f(a, b):\n    x = 'ä', a <= b\n"
    assert edit.name == "m.py:2:16:comparison"


def test_operators_over_several_lines_are_swapped() -> None:
    source = "def f(a, b, c):\n    return (\n        a\n        and b  # and so on\n        and c\n    )\n"
    [swapped] = [edit for edit in edits_of(source, "m.py") if edit.kind == "and-to-or"]
    assert swapped.applied(source) == source.replace("        and", "        or").replace(
        "        a\n", "        (a\n"
    ).replace("or c\n", "or c)\n")


def test_every_edit_of_this_tree_can_be_parsed_changes_something_and_has_a_name_of_its_own() -> None:
    found = 0
    for file in targets(ROOT):
        source = (ROOT / file).read_text()
        edits = edits_of(source, file)
        assert [each for each, count in Counter(edit.name for edit in edits).items() if count > 1] == []
        # To parse them all takes a minute.
        for edit in edits[::100]:
            ast.parse(edit.applied(source))
            assert edit.applied(source) != source
            found += 1
    assert found > 100
