"""What is done with an edit: in a copy, with the tests that belong to it, and within a time."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.mutants.__main__ import equivalents
from tests.mutants.belonging import ALSO, NOT_TARGETS, ROOMS, STARTS, TARGETS, Suite, targets
from tests.mutants.edits import edits_of
from tests.support.waiting import wait_until

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def known() -> Suite:
    return Suite(ROOT)


def test_the_tests_of_a_module_are_asked_first(known: Suite) -> None:
    assert known.of("replog/commit.py").quick[0] == "tests/unit/replog/test_commit.py"
    assert known.of("worker/reads/parked_reads.py").quick[0] == "tests/unit/worker/reads/test_parked_reads.py"


def test_the_tests_of_a_modules_own_room_are_asked_before_others_and_all_of_them(known: Suite) -> None:
    asked = known.of("stretto/client/appending/producer.py").quick
    own = [each for each in asked if each.startswith("tests/unit/client/")]
    assert asked[: len(own)] == tuple(own)
    assert {
        "tests/unit/client/appending/test_append_and_wait.py",
        "tests/unit/client/appending/test_depot.py",
    } <= set(own)


def test_tests_that_reach_a_module_by_way_of_another_belong_to_it(known: Suite) -> None:
    # The log imports it, and is what its tests are written against.
    assert "tests/unit/replog/test_log.py" in known.of("replog/tail.py").quick
    # It is started, not imported.
    assert "tests/unit/worker/executors/test_executors.py" in known.of("worker/executors/child.py").quick


def test_what_the_tables_name_is_there(known: Suite) -> None:
    assert targets(ROOT)
    for pattern in (*TARGETS, *NOT_TARGETS, *ALSO):
        assert list(ROOT.glob(pattern)), pattern
    named = {each for paths in ROOMS.values() for each in paths}
    named |= {f"tests/{each}" for paths in ALSO.values() for each in paths}
    for path in named | set(STARTS) | set(STARTS.values()):
        assert (ROOT / path).exists(), path


def test_equivalents_are_edits_of_this_tree() -> None:
    """What is listed for a line that has changed since is to be looked at again."""
    listed = equivalents(ROOT)
    found = set()
    for file in {file for file, *_ in listed}:
        source = (ROOT / file).read_text()
        found |= {(file, *edit.lines(source)) for edit in edits_of(source, file)}
    assert listed - found == set()


def small_tree(root: Path) -> None:
    """A project with a module, and a test that notices one of its edits."""
    files = {
        "zk/sums.py": "def double(a):\n    return a + a\n\ndef forget(a):\n    a.clear()\n",
        "tests/unit/zk/test_sums.py": (
            "from stretto.zk.sums import double, forget\n"
            "def test_double():\n    assert double(4) == 8\n"
            "def test_forget():\n    forget([])\n"
        ),
        "tests/mutants/equivalents.toml": "equivalent = []\n",
        "pyproject.toml": "[tool.pytest.ini_options]\nmarkers = ['soak: long']\n"
        "addopts = ['--import-mode=importlib', '-ra']\n",
        "stretto/__init__.py": "",
        "zk/__init__.py": "",
    }
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    (root / "stretto" / "zk").symlink_to("../zk")
    for name in ("__main__", "belonging", "copies", "edits", "runs"):
        (root / f"tests/mutants/{name}.py").write_text((ROOT / f"tests/mutants/{name}.py").read_text())
    subprocess.run(["git", "init", "-q", str(root)], check=True)


def mutants(root: Path, *arguments: str) -> str:
    command = [sys.executable, "-m", "tests.mutants", "--quick", *arguments]
    return subprocess.run(command, cwd=root, check=True, capture_output=True, text=True, timeout=100).stdout


def test_a_run_tells_the_rate_and_the_survivors_and_leaves_the_tree_as_it_was(tmp_path: Path) -> None:
    small_tree(tmp_path)
    before = {path: path.read_bytes() for path in sorted(tmp_path.glob("zk/*.py"))}
    told = mutants(tmp_path, "--seed", "3")
    assert "2 of 3 edits were noticed, 66.7% (seed 3)" in told
    assert "-    a.clear()\n+    pass\n" in told
    assert "again: make mutants ONLY=zk/sums.py:5:5:call-removed" in told
    assert {path: path.read_bytes() for path in sorted(tmp_path.glob("zk/*.py"))} == before
    names = [line.split()[3] for line in told.splitlines() if line.startswith(("noticed", "SURVIVED"))]
    again = mutants(tmp_path, "--seed", "3")
    assert names == [
        line.split()[3] for line in again.splitlines() if line.startswith(("noticed", "SURVIVED"))
    ]


def test_an_edit_that_is_named_is_made_alone_and_one_that_never_ends_is_noticed(tmp_path: Path) -> None:
    small_tree(tmp_path)
    (tmp_path / "zk/sums.py").write_text("def double(a):\n    while a < 0:\n        pass\n    return a + a\n")
    (tmp_path / "tests/unit/zk/test_sums.py").write_text(
        "from stretto.zk.sums import double\n"
        "import pytest\n"
        "@pytest.mark.timeout(2, func_only=True)\n"
        "def test_double():\n    assert double(4) == 8\n"
    )
    told = mutants(tmp_path, "--only", "zk/sums.py:2:11:condition-negated")
    assert "1 of 1 edits were noticed" in told


def test_a_run_that_is_interrupted_leaves_nothing_behind(tmp_path: Path) -> None:
    small_tree(tmp_path / "tree")
    (tmp_path / "tree/tests/unit/zk/test_sums.py").write_text(
        "from stretto.zk.sums import double\n"
        "import os, pathlib, time\n"
        "def test_double():\n"
        "    pathlib.Path(os.environ['BEGUN']).write_text(str(os.getpid()))\n"
        "    time.sleep(60)\n"
    )
    begun = tmp_path / "begun"
    environment = os.environ | {"BEGUN": str(begun), "TMPDIR": str(tmp_path)}
    command = [sys.executable, "-m", "tests.mutants", "--quick"]
    with subprocess.Popen(command, cwd=tmp_path / "tree", env=environment) as running:
        wait_until("a test runs", lambda: begun.exists() and begun.read_text())
        running.terminate()
        assert running.wait(60) == 0
    assert not Path(f"/proc/{begun.read_text()}").exists()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["begun", "tree"]
