"""Harmful edits of a Python source, one at a time: what a slip of the hand would do to it.

An edit replaces a span of the text, so that its diff is as small as the slip. What cannot do harm is left
alone: log lines, what only telemetry sees, the words of errors, reprs, annotations, decorators and the fields
of a class, constants of a module, a tick more or less of a clock, and the conditions of
:func:`stretto.vocabulary.invariants.check`, which never fail.
"""

from __future__ import annotations

import ast
import difflib
import itertools
import re
from collections.abc import Iterator
from dataclasses import dataclass

COMPARISONS: dict[type[ast.cmpop], tuple[str, str]] = {
    ast.Lt: ("<", "<="),
    ast.LtE: ("<=", "<"),
    ast.Gt: (">", ">="),
    ast.GtE: (">=", ">"),
    ast.Eq: ("==", "!="),
    ast.NotEq: ("!=", "=="),
    ast.Is: ("is", "is not"),
    ast.IsNot: ("is not", "is"),
    ast.In: ("in", "not in"),
    ast.NotIn: ("not in", "in"),
}
ARITHMETIC: dict[type[ast.operator], tuple[str, str]] = {
    ast.Add: ("+", "-"),
    ast.Sub: ("-", "+"),
    ast.Mult: ("*", "//"),
    ast.FloorDiv: ("//", "*"),
}
ORDERED = (ast.Lt, ast.LtE, ast.Gt, ast.GtE)
EXTREMES = {"min": "max", "max": "min"}

LOG_NAMES = frozenset({"log", "_log", "logger"})
"""A call of a method of one of these writes a line, and does nothing else."""
SEEN_BY_TELEMETRY = frozenset({"meter", "_meter", "telemetry", "_telemetry", "meters", "_meters", "since"})
HARMLESS_CALLS = frozenset({"check", "assert_never", "print", "cast", "TypeVar", "NewType", "Protocol"})
HARMLESS_FUNCTIONS = frozenset({"__repr__", "__str__", "__rich__", "describe"})
HARMLESS_KEYWORDS = frozenset({"daemon", "name", "default", "why", "what", "help"})
TIMED_CALLS = frozenset({"patience_ms", "call_after", "sleep", "wait", "join", "poll"})
_TIMES = re.compile(r"now\b|deadline|monotonic|_at\b|SECONDS|_MS\b|_MS_|patience")
"""What is compared with a clock: a tick sooner or later does no harm."""
CONSTANT_MAX = 8
"""Small numbers are indices, steps and bounds of a rule; large ones are sizes and times, where one more or
less means nothing."""


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Edit:
    """One edit of one file, named by where it begins and what kind it is."""

    file: str
    line: int
    column: int
    kind: str
    start: int
    end: int
    text: str

    @property
    def name(self) -> str:
        """By which it can be made again, as long as the file is the same."""
        return f"{self.file}:{self.line}:{self.column}:{self.kind}"

    def applied(self, source: str) -> str:
        """The source with the edit made."""
        return source[: self.start] + self.text + source[self.end :]

    def lines(self, source: str) -> tuple[str, str]:
        """The first line that the edit changes, before and after, without its indentation."""
        begin = source.rfind("\n", 0, self.start) + 1
        before = source[begin:].split("\n", 1)[0]
        after = self.applied(source)[begin:].split("\n", 1)[0]
        return before.strip(), after.strip()

    def diff(self, source: str) -> str:
        """What the edit does, as a unified diff with a line around it."""
        return "".join(
            difflib.unified_diff(
                source.splitlines(keepends=True),
                self.applied(source).splitlines(keepends=True),
                f"a/{self.file}",
                f"b/{self.file}",
                n=1,
            )
        )


def edits_of(source: str, file: str) -> list[Edit]:
    """All edits of a source, in the order of the text."""
    return sorted(_Finder(source, file).found())


class _Finder:
    def __init__(self, source: str, file: str) -> None:
        self._source = source
        self._file = file
        #: Where each line begins, in characters; the parser counts columns in bytes.
        self._lines = source.splitlines(keepends=True)
        self._starts = [0]
        for line in self._lines:
            self._starts.append(self._starts[-1] + len(line))

    def found(self) -> Iterator[Edit]:
        for node in ast.parse(self._source).body:
            yield from self._outside(node)

    def _outside(self, node: ast.stmt) -> Iterator[Edit]:
        """Of a module or a class only the functions are looked at."""
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield from self._function(node)
        elif isinstance(node, ast.ClassDef):
            for each in node.body:
                yield from self._outside(each)

    def _function(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[Edit]:
        if node.name in HARMLESS_FUNCTIONS:
            return
        body = node.body
        if isinstance(body[0], ast.Expr) and isinstance(body[0].value, ast.Constant):
            body = body[1:]
        is_setup = node.name in {"__init__", "__post_init__"}
        for each in body:
            yield from self._statement(each, is_setup=is_setup)

    def _statement(self, node: ast.stmt, *, is_setup: bool) -> Iterator[Edit]:
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                yield from self._function(node)
                return
            case ast.ClassDef():
                return
            case ast.Expr(value=value):
                call = value.value if isinstance(value, ast.Await) else value
                if isinstance(call, ast.Call):
                    if _is_harmless(call):
                        return
                    yield self._edit(node, "call-removed", "pass")
            case ast.Assign(targets=[target]) | ast.AugAssign(target=target) if _is_telemetry(target):
                return
            case ast.Assign(targets=targets) if not is_setup and _are_attributes(targets):
                yield self._edit(node, "assignment-removed", "pass")
            case ast.AugAssign(target=target) if not is_setup and _are_attributes([target]):
                yield self._edit(node, "assignment-removed", "pass")
            case ast.Return(value=value) if value is not None and not _is_none(value):
                if isinstance(value, ast.Constant) and isinstance(value.value, bool):
                    pass
                else:
                    yield self._edit(node, "return-none", "return None")
            case ast.Raise(exc=error):
                if error is not None:
                    yield self._edit(node, "raise-removed", "pass")
                return
            case ast.Continue():
                yield self._edit(node, "continue-breaks", "break")
            case ast.If(body=body, orelse=[]) if all(map(_does_nothing, body)):
                return
            case ast.If(test=test) | ast.While(test=test):
                yield from self._condition(test)
            case ast.AnnAssign(value=value):
                if value is not None:
                    yield from self._expression(value)
                return
            case _:
                pass
        for each in ast.iter_child_nodes(node):
            yield from self._child(each, is_setup=is_setup)

    def _child(self, node: ast.AST, *, is_setup: bool) -> Iterator[Edit]:
        if isinstance(node, ast.stmt):
            yield from self._statement(node, is_setup=is_setup)
        elif isinstance(node, ast.expr):
            yield from self._expression(node)
        else:
            # Handlers of exceptions, cases of a match, items of a with: what they hold.
            for each in ast.iter_child_nodes(node):
                if not isinstance(each, ast.pattern):
                    yield from self._child(each, is_setup=is_setup)

    def _condition(self, test: ast.expr) -> Iterator[Edit]:
        """Comparisons are turned around by themselves, and a `not` is removed."""
        if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
            return
        if isinstance(test, ast.Compare) and type(test.ops[0]) in {
            ast.Eq,
            ast.NotEq,
            ast.Is,
            ast.IsNot,
            ast.In,
        }:
            return
        yield self._edit(test, "condition-negated", f"not ({self._text(test)})")

    def _expression(self, node: ast.expr) -> Iterator[Edit]:
        match node:
            case ast.Call():
                if _is_harmless(node) or _is_timed(node):
                    return
                if isinstance(node.func, ast.Name) and node.func.id in EXTREMES and len(node.args) > 0:
                    yield self._edit(node.func, "min-max", EXTREMES[node.func.id])
            case ast.JoinedStr():
                return
            case ast.Compare(left=left, ops=ops, comparators=comparators):
                for before, op, after in zip([left, *comparators], ops, comparators, strict=False):
                    if isinstance(op, ORDERED) and _TIMES.search(self._text(node)):
                        continue
                    yield from self._operator(before, after, *COMPARISONS[type(op)], "comparison")
            case ast.BoolOp():
                yield self._swapped(node)
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                yield self._edit(node, "not-removed", f"({self._text(operand)})")
            case ast.BinOp(left=left, op=op, right=right) if type(op) in ARITHMETIC:
                if not _is_text(left) and not _is_text(right):
                    yield from self._operator(left, right, *ARITHMETIC[type(op)], "arithmetic")
            case ast.IfExp(test=test):
                yield from self._condition(test)
            case ast.Constant(value=bool() as value):
                yield self._edit(node, "flag-flipped", str(not value))
            case ast.Constant(value=int() as value) if abs(value) <= CONSTANT_MAX:
                yield self._edit(node, "off-by-one", str(value + 1))
            case _:
                pass
        for each in ast.iter_child_nodes(node):
            if isinstance(each, ast.keyword):
                if each.arg not in HARMLESS_KEYWORDS:
                    yield from self._expression(each.value)
            elif isinstance(each, ast.comprehension):
                yield from self._expression(each.iter)
                for test in each.ifs:
                    yield from self._condition(test)
                    yield from self._expression(test)
            elif isinstance(each, ast.expr):
                yield from self._expression(each)

    def _swapped(self, node: ast.BoolOp) -> Edit:
        """All operators of one `and` or `or`; in parentheses, for they bind differently."""
        word, other = ("and", "or") if isinstance(node.op, ast.And) else ("or", "and")
        start, end = self._span(node)
        text = self._source[start:end]
        # From the last to the first, so that the places of those before stay what they are.
        for left, right in reversed(list(itertools.pairwise(node.values))):
            since, until = self._span(left)[1] - start, self._span(right)[0] - start
            at = text.rindex(word, since, until)
            text = text[:at] + other + text[at + len(word) :]
        return self._edit(node, f"{word}-to-{other}", f"({text})")

    def _operator(self, left: ast.expr, right: ast.expr, text: str, other: str, kind: str) -> Iterator[Edit]:
        since, until = self._span(left)[1], self._span(right)[0]
        gap = self._source[since:until]
        if gap.count(text) == 1:
            at = since + gap.index(text)
            yield self._at(at, at + len(text), kind, other)

    def _edit(self, node: ast.expr | ast.stmt, kind: str, text: str) -> Edit:
        return self._at(*self._span(node), kind, text)

    def _at(self, start: int, end: int, kind: str, text: str) -> Edit:
        line = self._source.count("\n", 0, start) + 1
        column = start - self._starts[line - 1] + 1
        return Edit(file=self._file, line=line, column=column, kind=kind, start=start, end=end, text=text)

    def _span(self, node: ast.expr | ast.stmt) -> tuple[int, int]:
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        return self._offset(node.lineno, node.col_offset), self._offset(node.end_lineno, node.end_col_offset)

    def _offset(self, line: int, column: int) -> int:
        return self._starts[line - 1] + len(self._lines[line - 1].encode()[:column].decode())

    def _text(self, node: ast.expr) -> str:
        start, end = self._span(node)
        return self._source[start:end]


def _is_none(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is None


def _is_text(node: ast.expr) -> bool:
    return isinstance(node, ast.JoinedStr) or (
        isinstance(node, ast.Constant) and isinstance(node.value, str | bytes)
    )


def _are_attributes(targets: list[ast.expr]) -> bool:
    return all(isinstance(each, ast.Attribute) for each in targets)


def _is_telemetry(target: ast.expr) -> bool:
    return bool(_names(target) & SEEN_BY_TELEMETRY)


def _is_harmless(call: ast.Call) -> bool:
    if isinstance(call.func, ast.Name):
        return call.func.id in HARMLESS_CALLS
    names = _names(call.func)
    return bool(names & (LOG_NAMES | SEEN_BY_TELEMETRY))


def _does_nothing(node: ast.stmt) -> bool:
    """Nothing but what is left alone anyway."""
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Call) and _is_harmless(node.value)


def _is_timed(call: ast.Call) -> bool:
    """It waits for a time, and nothing but the time is reckoned in its arguments."""
    name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
    return name in TIMED_CALLS and not any(isinstance(each, ast.Call | ast.Lambda) for each in call.args)


def _names(node: ast.expr) -> set[str]:
    """Of what something is an attribute of: of ``self.host.meter.noted``, all but ``noted``."""
    found: set[str] = set()
    while isinstance(node, ast.Attribute):
        node = node.value
        if isinstance(node, ast.Attribute):
            found.add(node.attr)
        elif isinstance(node, ast.Name):
            found.add(node.id)
    return found
