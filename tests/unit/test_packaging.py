"""What a user installs holds every subsystem, though these are links in the source tree."""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def build(target: str, source: Path, into: Path) -> Path:
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "--target", target, "--directory", str(into)],
        cwd=source,
        capture_output=True,
        check=True,
    )
    (built,) = into.iterdir()
    return built


def files_of(package: str) -> set[str]:
    return {
        str(Path(folder, name).relative_to(ROOT))
        for folder, _, names in os.walk(ROOT / package, followlinks=True)
        if "__pycache__" not in folder and "/." not in folder.removeprefix(str(ROOT))
        for name in names
        if name != "ruff.toml"
    }


@pytest.fixture(scope="module")
def expected() -> set[str]:
    return files_of("stretto") | files_of("pyspark_stretto")


def packaged(wheel: Path) -> set[str]:
    return {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}


def test_wheel_holds_every_file_of_every_subsystem(tmp_path: Path, expected: set[str]) -> None:
    assert "stretto/replog/__init__.py" in expected
    assert packaged(build("wheel", ROOT, tmp_path)) == expected


def test_wheel_built_from_the_sdist_is_the_same(tmp_path: Path, expected: set[str]) -> None:
    sdist = build("sdist", ROOT, tmp_path / "sdist")
    with tarfile.open(sdist) as archive:
        # Releases of 3.11 before 3.11.4 know no filters; from 3.12 on, choosing none is a warning.
        archive.extraction_filter = getattr(tarfile, "data_filter", None)
        archive.extractall(tmp_path / "source")
    (source,) = (tmp_path / "source").iterdir()

    assert packaged(build("wheel", source, tmp_path / "wheel")) == expected
