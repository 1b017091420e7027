"""What the pages tell people to type does what they say, on three nodes as they have."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path

import pytest

from stretto import control
from stretto.cli.cluster import reach
from stretto.local.cluster import LocalCluster
from stretto.zk.server.embedded import free_ports
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.soak, pytest.mark.timeout(300)]

ROOT = Path(__file__).resolve().parents[3]
LAUNCH = "$ stretto deploy launch "
DEPLOY = "docs/operate/deploy.md"
SHELL = "docs/build/command-line.md"
MONITORING = "docs/operate/monitoring.md"
#: It tells of a module that declared more.
STORIES = ("$ stretto deploy update ",)
DEADLINE_SECONDS = 120


@dataclass(frozen=True, slots=True)
class Shown:
    """A command of a page, and the lines that stand below it."""

    command: str
    output: tuple[str, ...]

    @property
    def refusal(self) -> str | None:
        """The sentence with which it is refused, if it is."""
        return next((line for line in self.output if line.startswith("stretto: ")), None)


def shown(page: str, *sections: str) -> list[Shown]:
    """Everything that stands behind a prompt in these sections, or in all, in order."""
    parts = re.split(r"^## ", (ROOT / page).read_text("utf-8"), flags=re.MULTILINE)
    found = []
    for part in parts:
        if not sections or part.partition("\n")[0] in sections:
            lines = [line[4:] if line.startswith("    ") else "" for line in part.splitlines()]
            for number, line in enumerate(lines):
                if line.startswith("$ "):
                    command = list(takewhile(lambda each: each.endswith("\\"), lines[number:]))
                    last = number + len(command)
                    output = takewhile(lambda each: each and not each.startswith("$ "), lines[last + 1 :])
                    found.append(Shown("\n".join([*command, lines[last]]), tuple(output)))
    return found


@dataclass(frozen=True, slots=True)
class Shell:
    """A folder to work in, and an environment in which ``stretto`` reaches the cluster."""

    folder: Path
    bootstrap: str

    def run(self, command: str) -> subprocess.CompletedProcess[str]:
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        return subprocess.run(
            ["bash", "-c", f"set -o pipefail; {command}"],
            cwd=self.folder,
            env=os.environ | {"PATH": path, "STRETTO_BOOTSTRAP": self.bootstrap},
            capture_output=True,
            text=True,
            timeout=DEADLINE_SECONDS,
            check=False,
        )


@pytest.fixture(scope="module")
def shell(whole_cluster: LocalCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shell]:
    """WordCount is launched as the page on deploying does."""
    folder = tmp_path_factory.mktemp("pages") / "a clone"
    folder.mkdir()
    (folder / "examples").symlink_to(ROOT / "examples")
    sentences = [f'{{"user": "user-{number}", "text": "so it goes"}}\n' for number in range(100)]
    (folder / "sentences.ndjson").write_text("".join(sentences))
    (folder / "bad.ndjson").write_text(f'{sentences[0]}{{"user": \n')
    shell = Shell(folder, ",".join(whole_cluster.bootstrap))
    [launch] = [each for each in shown(DEPLOY) if each.command.startswith(LAUNCH)]
    done = shell.run(launch.command.removeprefix("$ "))
    assert done.returncode == 0, done.stderr
    yield shell
    with reach(shell.bootstrap, None) as cluster:
        cluster.ask(control.Destroy(module="WordCount"))


@pytest.fixture
def ui(shell: Shell, tmp_path: Path) -> Iterator[str]:
    [port] = free_ports(1)
    command = ["ui", "--bootstrap", shell.bootstrap, "--port", str(port), "--data-dir", str(tmp_path / "ui")]
    with (tmp_path / "ui.log").open("wb") as log:
        process = subprocess.Popen([sys.executable, "-m", "stretto", *command], stdout=log, stderr=log)
    try:
        ready = f"curl -sf localhost:{port}/api/v1/cluster"
        wait_until("the UI answers", lambda: shell.run(ready).returncode == 0, DEADLINE_SECONDS)
        yield f"localhost:{port}"
    finally:
        process.terminate()
        process.wait(30)


@pytest.mark.skipif(shutil.which("curl") is None, reason="no curl to run what the page shows")
def test_every_request_that_the_page_of_the_ui_shows_is_answered(
    shell: Shell, ui: str, tmp_path: Path
) -> None:
    text = (ROOT / MONITORING).read_text("utf-8").replace("\\\n", " ")
    requests = re.findall(r"^ {4}(curl .*)", text, re.MULTILINE)
    assert len(requests) > 10
    for request in requests:
        # That the page shows how to settle a parked record does not make one.
        if "/failures" not in request:
            command = request.replace("localhost:8888", ui).replace('"/backup"', f'"{tmp_path}"')
            done = shell.run(f"{command} --silent --show-error --fail")
            assert done.returncode == 0, (request, done.stderr)


def test_every_command_that_pages_show_of_a_module_does_what_stands_below_it(shell: Shell) -> None:
    tour = shown("README.md", "A five-minute tour")
    commands = [*tour, *shown(DEPLOY), *shown(SHELL)]
    assert len(tour) > 5
    assert len(commands) > 18
    for each in commands:
        if each.command.startswith((LAUNCH, *STORIES)) or each.command == "$ echo $?":
            continue
        is_paused = each.refusal is not None and "is paused" in each.refusal
        if is_paused:
            assert shell.run("stretto deploy pause WordCount").returncode == 0
        done = shell.run(each.command.removeprefix("$ "))
        if is_paused:
            assert shell.run("stretto deploy resume WordCount").returncode == 0
        if each.refusal is None:
            assert done.returncode == 0, (each.command, done.stderr)
        else:
            assert (done.returncode != 0, done.stderr.strip()) == (True, each.refusal)
        if "scale-executors" in each.command or "reassign" in each.command:
            assert done.stdout.splitlines() == list(each.output), each.command
