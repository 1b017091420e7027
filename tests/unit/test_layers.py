"""The contract of layers in pyproject.toml holds for every package, and notices a wrong import."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
CONTRACT = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]


def lint_imports(folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [Path(sys.executable).with_name("lint-imports"), "--no-logo", "--no-cache"],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(folder), "COLUMNS": "200"},
        capture_output=True,
        text=True,
        check=False,
    )


def test_every_package_and_module_at_the_top_has_a_layer() -> None:
    [layers] = [each["layers"] for each in CONTRACT["contracts"] if each["type"] == "layers"]
    listed = {name for line in layers for name in re.split(r" [|:] ", line)}
    there = {f"stretto.{path.parent.name}" for path in (ROOT / "stretto").glob("*/__init__.py")}
    there |= {f"stretto.{path.stem}" for path in (ROOT / "stretto").glob("*.py")} - {"stretto.__init__"}
    assert listed == there - {"stretto.examples"} | {"pyspark_stretto"}


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """The tree as it is, to be spoiled."""
    for name in ("stretto", "pyspark_stretto"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__", "static"))
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("file", "line", "told"),
    [
        (
            "vocabulary/types.py",
            "import stretto.cli",
            "stretto.vocabulary is not allowed to import stretto.cli",
        ),
        (
            "state/depot.py",
            "from stretto.worker.process import Worker",
            "stretto.state is not allowed to import stretto.worker",
        ),
        ("worker/reads/reads.py", "import stretto.worker.process", "No cycles are allowed in stretto.worker"),
    ],
)
def test_one_wrong_import_is_noticed_also_if_it_is_for_types_only(
    copy: Path, file: str, line: str, told: str
) -> None:
    spoiled = copy / "stretto" / file
    with spoiled.open("a") as text:
        text.write(f"\nfrom typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    {line}\n")
    ran = lint_imports(copy)
    assert ran.returncode == 1
    assert told in ran.stdout


def test_the_tree_keeps_its_contract(copy: Path) -> None:
    ran = lint_imports(copy)
    assert (ran.returncode, "0 broken" in ran.stdout) == (0, True), ran.stdout
