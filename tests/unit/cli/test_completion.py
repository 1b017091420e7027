"""Shells ask the command itself what could come next, also for verbs that are loaded only then."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from stretto.cli import COMMANDS


def stretto(*args: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "stretto", *args]
    return subprocess.run(
        command, env={**os.environ, **environment}, capture_output=True, text=True, check=False
    )


def completions(line: str) -> list[str]:
    """What bash is told for a line whose last word is being typed."""
    words = line.split(" ")
    done = stretto(_STRETTO_COMPLETE="complete_bash", COMP_WORDS=line, COMP_CWORD=str(len(words) - 1))
    assert done.stderr == ""
    return done.stdout.split()


def test_verbs_are_completed() -> None:
    assert set(completions("stretto ")) == set(COMMANDS)
    assert completions("stretto zoo") == ["zookeeper"]


def test_verbs_of_a_group_are_completed() -> None:
    assert completions("stretto replog ") == ["dump", "verify"]
    assert completions("stretto replog ver") == ["verify"]


def test_options_are_completed() -> None:
    assert completions("stretto --ver") == ["--version"]
    assert completions("stretto zookeeper --da") == ["--data-dir"]
    assert completions("stretto replog dump --js") == ["--json"]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_for_a_shell_is_shown(shell: str) -> None:
    done = stretto("--show-completion", shell, _TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION="1")

    assert done.returncode == 0
    assert "_STRETTO_COMPLETE" in done.stdout
    assert f"complete_{shell}" in done.stdout
