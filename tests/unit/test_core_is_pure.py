"""The lint really bans what would make ``replog/core``, planners and the machines of topologies impure."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

BANNED_MODULES = [
    "asyncio",
    "datetime",
    "io",
    "kazoo",
    "lmdb",
    "logging",
    "multiprocessing",
    "os",
    "pathlib",
    "random",
    "secrets",
    "select",
    "socket",
    "structlog",
    "subprocess",
    "tempfile",
    "threading",
    "time",
    "uuid",
    "zmq",
]

BANNED_CALLS = ["open('x')", "print('x')", "exec('x')", "eval('x')", "breakpoint()"]

PLANNERS = [
    "catchup/machines/blocks/hash_lists.py",
    "catchup/machines/fetch/machine.py",
    "catchup/machines/serve/machine.py",
    "conductor/planning/assignment.py",
    "conductor/planning/leadership.py",
    "conductor/planning/spread.py",
    "state/microbatch_entries.py",
]

#: Rooms that are pure as a whole.
MACHINES = [
    "worker/microbatch/machines",
    "worker/topology/machine",
]

PURE = [
    *PLANNERS,
    *(path.relative_to(ROOT).as_posix() for room in MACHINES for path in sorted((ROOT / room).rglob("*.py"))),
]

PURITY_RULES = {"TID251", "PTH123", "T201", "S102", "S307", "T100"}

#: What no rule of the linter sees: IO by another name, and values that differ from one process to the next,
#: so that the same seed would give another trace.
IMPURE_BUILTINS = {"__import__", "compile", "hash", "id", "input"}


def ruff(*arguments: str, source: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "ruff", "check", "--no-cache", "--output-format", "concise", *arguments],
        input=source,
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )


def flagged_lines(source: str, path: str) -> set[int]:
    """Lines of ``source`` that a purity rule flags when the file stands at ``path``."""
    report = ruff("--stdin-filename", path, "-", source=source)
    assert report.returncode in {0, 1}, report.stderr
    findings = [line.split(maxsplit=2)[:2] for line in report.stdout.splitlines() if line.startswith(path)]
    return {int(place.split(":")[1]) for place, rule in findings if rule in PURITY_RULES}


@pytest.mark.parametrize(
    "statements",
    [
        [f"import {module}" for module in BANNED_MODULES],
        [f"import {module} as harmless" for module in BANNED_MODULES],
        [f"from {module} import anything" for module in BANNED_MODULES],
        ["import os.path", "from os.path import join", "import concurrent.futures"],
        BANNED_CALLS,
    ],
    ids=["import", "import-as", "from-import", "submodules", "builtins"],
)
@pytest.mark.parametrize("path", ["replog/core/x.py", "conductor/planning/assignment.py"])
def test_every_impure_statement_is_flagged_in_the_core(statements: list[str], path: str) -> None:
    flagged = flagged_lines("\n".join(statements), path)

    missed = [statement for line, statement in enumerate(statements, start=1) if line not in flagged]
    assert missed == []


def test_the_ban_holds_in_folders_inside_the_core() -> None:
    assert flagged_lines("import time", "replog/core/roles/x.py") == {1}


@pytest.mark.parametrize("path", [*PURE, *(f"{room}/x.py" for room in MACHINES)])
def test_the_ban_holds_in_every_planner_and_machine(path: str) -> None:
    assert flagged_lines("import time\nimport kazoo\nopen('x')", path) == {1, 2, 3}


@pytest.mark.parametrize("path", PLANNERS)
def test_every_planner_is_where_the_ban_is_tested(path: str) -> None:
    assert (ROOT / path).is_file()


@pytest.mark.parametrize(
    "path", ["replog/x.py", "conductor/x.py", "state/x.py", "worker/microbatch/x.py", "worker/topology/x.py"]
)
def test_the_ban_ends_at_the_core_the_planners_and_the_machines(path: str) -> None:
    assert flagged_lines("import time\nopen('x')", path) == set()


def test_pure_imports_pass_in_the_core() -> None:
    source = "import bisect\nimport dataclasses\nimport msgspec\nfrom stretto.vocabulary.types import Offset"

    assert flagged_lines(source, "replog/core/x.py") == set()


@pytest.mark.parametrize("path", ["replog/core", "conductor", *MACHINES])
def test_the_core_is_pure_without_suppressions(path: str) -> None:
    report = ruff("--select", ",".join(sorted(PURITY_RULES)), "--ignore-noqa", path)

    assert report.returncode == 0, report.stdout + report.stderr


def test_the_core_calls_no_impure_builtin() -> None:
    calls = [
        f"{path.relative_to(ROOT)}:{node.lineno} {node.func.id}()"
        for path in [*sorted((ROOT / "replog" / "core").rglob("*.py")), *(ROOT / each for each in PURE)]
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in IMPURE_BUILTINS
    ]

    assert calls == []
