"""The names that the code defines, read from its source: what documents may speak of.

Nothing is imported: a document is judged by the text of the code, so that modules which take long to load, or
which refuse to be loaded twice, cost nothing.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
#: The folders that hold the program. Those that ``stretto/`` links to stand for themselves.
FOLDERS = (
    *("catchup", "conductor", "examples", "pyspark_stretto", "replog", "state"),
    *("stretto", "supervisor", "ui", "worker", "zk"),
)


@dataclass(slots=True)
class CodeNames:
    classes: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    """Of each class: its methods, its fields, and what its methods set on ``self``. Classes of one name count
    as one."""
    bases: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    words: set[str] = field(default_factory=set)
    """Every identifier, and every string that could be one: names of options, columns and threads."""

    def members(self, name: str) -> set[str]:
        """What a class has, with what it inherits from classes of the code."""
        found: set[str] = set()
        seen: set[str] = set()
        todo = [name]
        while todo:
            each = todo.pop()
            if each not in seen:
                seen.add(each)
                found |= self.classes.get(each, set())
                todo += self.bases.get(each, ())
        return found

    def add(self, source: str) -> None:
        for node in ast.walk(ast.parse(source)):
            word = _word(node)
            if word is not None:
                self.words.add(word)
            if isinstance(node, ast.ClassDef):
                self.classes[node.name].update(_members(node))
                self.bases[node.name].update(_last_name(base) for base in node.bases)


#: Where nodes of these kinds keep their name.
_NAMED: dict[type[ast.AST], str] = {
    ast.Name: "id",
    ast.Attribute: "attr",
    ast.arg: "arg",
    ast.alias: "name",
    ast.FunctionDef: "name",
    ast.AsyncFunctionDef: "name",
    ast.ClassDef: "name",
    ast.keyword: "arg",
    ast.Constant: "value",
}


def _word(node: ast.AST) -> str | None:
    where = _NAMED.get(type(node))
    word = None if where is None else getattr(node, where)
    return word if isinstance(word, str) and word.isidentifier() else None


def _members(node: ast.ClassDef) -> Iterator[str]:
    for each in node.body:
        if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef):
            yield each.name
            yield from _set_on_self(each)
        elif isinstance(each, ast.AnnAssign | ast.Assign):
            targets = each.targets if isinstance(each, ast.Assign) else [each.target]
            yield from (target.id for target in targets if isinstance(target, ast.Name))


def _set_on_self(function: ast.AST) -> Iterator[str]:
    for node in ast.walk(function):
        if not isinstance(node, ast.Attribute) or not isinstance(node.ctx, ast.Store):
            continue
        if isinstance(node.value, ast.Name) and node.value.id == "self":
            yield node.attr


def _last_name(base: ast.expr) -> str:
    """``Call`` of ``Call[Result]`` and of ``control.Call``."""
    match base:
        case ast.Subscript(value=inner):
            return _last_name(inner)
        case ast.Attribute(attr=name) | ast.Name(id=name):
            return name
        case _:
            return ""


def files() -> Iterable[Path]:
    for folder in FOLDERS:
        for path in sorted((ROOT / folder).rglob("*.py")):
            if not any(
                parent.is_symlink() for parent in path.relative_to(ROOT).parents if str(parent) != "."
            ):
                yield path


@cache
def code_names() -> CodeNames:
    names = CodeNames()
    for path in files():
        names.add(path.read_text("utf-8"))
    return names
