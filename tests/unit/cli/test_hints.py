"""Lines that people copy into a shell do there what they say, wherever stretto lies."""

from __future__ import annotations

import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from stretto import cli
from stretto.cli.hints import exports
from stretto.errors import UsageError
from stretto.network.keys import ClusterKey

REACH = "127.0.0.1:27940"


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of an installed command that is not on the PATH, below one with a space in its name."""
    folder = tmp_path / "my clone" / ".venv" / "bin"
    folder.mkdir(parents=True)
    for name in ("python", "stretto"):
        (folder / name).write_text("#!/bin/sh\n")
        (folder / name).chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(folder / "python"))
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    return folder


@pytest.mark.parametrize("shell", ["sh", "bash"])
def test_a_shell_finds_the_command_and_the_cluster_after_them(
    installed: Path, tmp_path: Path, shell: str
) -> None:
    key = tmp_path / "a key"
    script = [*exports(REACH, key), 'command -v stretto; echo "$STRETTO_BOOTSTRAP"; echo "$STRETTO_KEY"']
    done = subprocess.run(
        [shell, "-c", "\n".join(script)],
        capture_output=True,
        text=True,
        check=True,
        env={"PATH": "/usr/bin:/bin:/opt/some folder"},
    )
    assert done.stdout.splitlines() == [str(installed / "stretto"), REACH, str(key)]


def test_there_are_none_where_the_command_is_found_and_the_cluster_too(
    installed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert exports("127.0.0.1:7400", None) == [f'export PATH={shlex.quote(str(installed))}:"$PATH"']
    monkeypatch.setenv("PATH", f"/usr/bin:{installed}")
    assert exports("127.0.0.1:7400", None) == []
    assert exports(REACH, None) == [f"export STRETTO_BOOTSTRAP={REACH}"]


def test_commands_that_name_a_file_name_it_for_a_shell(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "a key"
    with pytest.raises(SystemExit):
        cli.main(["keys", "generate", str(path)])
    assert shlex.split(capsys.readouterr().out.partition("with ")[2]) == ["--key", str(path)]
    path.write_text("no key")
    with pytest.raises(UsageError) as refused:
        ClusterKey.load(path)
    command = str(refused.value).partition("make one with: ")[2]
    assert shlex.split(command) == ["stretto", "keys", "generate", str(path)]
