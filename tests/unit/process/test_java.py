"""What needs Java says so at once, whatever is wrong with the Java that is there."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from stretto.process.java import NEEDED, JavaMissing, require_java

MODERN = "echo 'openjdk version \"17.0.15\" 2025-04-15' >&2"


def install(folder: Path, script: str) -> Path:
    """Put a java into a folder of programs."""
    folder.mkdir(parents=True, exist_ok=True)
    java = folder / "java"
    java.write_text(f"#!/bin/sh\n{script}\n")
    java.chmod(0o755)
    return java


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The only folder of the PATH; there is no JAVA_HOME."""
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    return tmp_path / "bin"


def refusal() -> str:
    with pytest.raises(JavaMissing) as refused:
        require_java()
    return str(refused.value)


def test_none_at_all_is_told_in_the_sentence_that_make_has(programs: Path) -> None:
    assert refusal() == f"{NEEDED} (there is none on PATH)"
    assert f'echo "{NEEDED}"' in (Path(__file__).parents[3] / "Makefile").read_text()


@pytest.mark.parametrize(
    "version",
    [
        'openjdk version "17.0.15" 2025-04-15',
        'openjdk version "22-ea" 2024-03-19',
        'Picked up JAVA_TOOL_OPTIONS: -Xmx1g\njava version "21" 2023-09-19 LTS',
    ],
)
def test_one_that_is_new_enough_is_found_however_it_writes_its_version(programs: Path, version: str) -> None:
    java = install(programs, f"cat >&2 <<'END'\n{version}\nEND".replace("cat", "/bin/cat"))
    assert require_java() == str(java)


@pytest.mark.parametrize(("said", "version"), [("11.0.2", 11), ("1.8.0_392", 8), ("16", 16)])
def test_one_that_is_too_old_is_named_with_its_version(programs: Path, said: str, version: int) -> None:
    java = install(programs, f"echo 'openjdk version \"{said}\" 2019-01-15' >&2")
    assert refusal() == f"{NEEDED} ({java} is Java {version})"


@pytest.mark.parametrize(
    ("script", "why"),
    [
        ("echo 'No Java runtime present, requesting install.' >&2; exit 1", "No Java runtime present"),
        ("exit 0", "it says nothing"),
        (f"{MODERN}; exit 126", "openjdk version"),
    ],
)
def test_one_that_does_not_run_is_told_with_what_it_says(programs: Path, script: str, why: str) -> None:
    java = install(programs, script)
    assert refusal().startswith(f"{NEEDED} ({java} does not run: {why}")


def test_one_for_another_machine_does_not_run(programs: Path) -> None:
    java = install(programs, "")
    java.write_bytes(b"\x7fELF of something else")
    assert refusal() == f"{NEEDED} ({java} does not run: Exec format error)"


def test_java_home_is_preferred_to_the_path_as_spark_does(
    programs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(programs, MODERN)
    home = tmp_path / "a jdk"
    monkeypatch.setenv("JAVA_HOME", str(home))
    assert refusal() == f"{NEEDED} (there is none in JAVA_HOME, which is {home})"
    java = install(home / "bin", "echo 'openjdk version \"11.0.2\"' >&2")
    assert refusal() == f"{NEEDED} ({java} is Java 11, which JAVA_HOME names)"
    monkeypatch.setenv("JAVA_HOME", "")
    assert require_java() == str(programs / "java")


@pytest.mark.parametrize(
    "command",
    [
        ("up", "--data-dir", "data"),
        ("demo",),
        ("demo", "--data-dir", "data"),
        ("zookeeper", "--data-dir", "data", "--port", "0"),
        ("export", "WordCount", "counts", "--to", "exports"),
        ("bench",),
    ],
    ids=" ".join,
)
def test_a_command_that_needs_java_says_so_before_it_starts_or_writes_anything(
    tmp_path: Path, command: tuple[str, ...]
) -> None:
    place = tmp_path / "here"
    place.mkdir()
    done = subprocess.run(
        [sys.executable, "-m", "stretto", *command],
        cwd=place,
        env={"PATH": str(tmp_path), "TMPDIR": str(place)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (
        1,
        "",
        f"stretto: {NEEDED} (there is none on PATH)\n",
    )
    assert list(place.iterdir()) == []
