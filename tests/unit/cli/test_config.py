"""One precedence for every setting: flag, environment, file, default."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType
from typing import Annotated

import pytest
import typer

from stretto import cli

VERBS = "stretto_cli_test_config_verbs"


def daemon(  # noqa: PLR0917 - an option of a command is a parameter of its function
    data_dir: Annotated[Path, typer.Option()] = Path("default-dir"),
    zookeeper: Annotated[str, typer.Option()] = "default-zookeeper",
    cluster: Annotated[str, typer.Option()] = "default-cluster",
    session_millis: Annotated[int, typer.Option(min=10)] = 100,
    as_json: Annotated[bool, typer.Option("--json")] = False,
    label: Annotated[list[str] | None, typer.Option()] = None,
) -> None:
    typer.echo(f"{data_dir} {zookeeper} {cluster} {session_millis} {as_json} {label}")


@pytest.fixture(autouse=True)
def verbs(monkeypatch: pytest.MonkeyPatch) -> None:
    """A verb and a group with one, instead of the real ones."""
    module = ModuleType(VERBS)
    group = typer.Typer()
    group.command("launch")(daemon)
    module.daemon, module.deploy = daemon, group  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, VERBS, module)
    table = {"daemon": (f"{VERBS}:daemon", "Run."), "deploy": (f"{VERBS}:deploy", "Deploy.")}
    monkeypatch.setattr(cli, "COMMANDS", table)
    monkeypatch.delenv("STRETTO_CONFIG", raising=False)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "stretto.toml"
    path.write_text(
        '[cluster]\nzookeeper = "shared:2181"\nname = "shared-cluster"\nbootstrap = "not-for-this-verb:1"\n'
        '[daemon]\ndata-dir = "of-file"\nsession-millis = 30\njson = true\nlabel = ["a=1", "b=2"]\n'
        '[deploy.launch]\nzookeeper = "of-launch:2181"\n'
    )
    return path


def run(capsys: pytest.CaptureFixture[str], *args: str) -> tuple[int, str]:
    """Exit code and all that was printed."""
    with pytest.raises(SystemExit) as exit_:
        cli.main(args)
    assert isinstance(exit_.value.code, int)
    out, err = capsys.readouterr()
    return exit_.value.code, (out + err).strip()


def test_without_anything_defaults_hold(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(capsys, "daemon") == (0, "default-dir default-zookeeper default-cluster 100 False None")


@pytest.mark.parametrize("before", [True, False])
def test_a_file_beats_defaults(capsys: pytest.CaptureFixture[str], file: Path, before: bool) -> None:
    args = ["--config", str(file), "daemon"] if before else ["daemon", "--config", str(file)]
    expected = "of-file shared:2181 shared-cluster 30 True ['a=1', 'b=2']"
    assert run(capsys, *args) == (0, expected)


def test_the_environment_beats_the_file_and_a_flag_beats_both(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, file: Path
) -> None:
    monkeypatch.setenv("STRETTO_CONFIG", str(file))
    monkeypatch.setenv("STRETTO_DAEMON_DATA_DIR", "of-environment")
    monkeypatch.setenv("STRETTO_DAEMON_SESSION_MILLIS", "40")

    _, out = run(capsys, "daemon", "--session-millis", "50")

    assert out.split()[:4] == ["of-environment", "shared:2181", "shared-cluster", "50"]


def test_what_is_said_for_one_verb_beats_what_is_said_for_all(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, file: Path
) -> None:
    _, out = run(capsys, "--config", str(file), "deploy", "launch")
    assert out.split()[1:3] == ["of-launch:2181", "shared-cluster"]

    monkeypatch.setenv("STRETTO_ZOOKEEPER", "of-all")
    monkeypatch.setenv("STRETTO_CLUSTER", "of-all")
    monkeypatch.setenv("STRETTO_DEPLOY_LAUNCH_ZOOKEEPER", "of-one")
    _, out = run(capsys, "--config", str(file), "deploy", "launch")
    assert out.split()[1:3] == ["of-one", "of-all"]


def test_a_file_named_after_the_verb_beats_one_named_before_and_the_environments(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in ("environment", "before", "after"):
        (tmp_path / name).write_text(f'[cluster]\nzookeeper = "{name}"\n')
    monkeypatch.setenv("STRETTO_CONFIG", str(tmp_path / "environment"))
    before, after = ["--config", str(tmp_path / "before")], ["--config", str(tmp_path / "after")]

    assert run(capsys, "daemon")[1].split()[1] == "environment"
    assert run(capsys, *before, "daemon")[1].split()[1] == "before"
    assert run(capsys, *before, "daemon", *after)[1].split()[1] == "after"


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("[deamon]\n", "there is no table [deamon]; did you mean 'daemon'?"),
        ("[cluster]\nzokeeper = 1\n", "[cluster] has no key 'zokeeper'; did you mean 'zookeeper'?"),
        ("[daemon]\ndata_dir = 'd'\n", "[daemon] has no key 'data_dir'; did you mean 'data-dir'?"),
        ("[daemon]\nconfig = 'c'\n", "[daemon] has no key 'config'; did you mean"),
        ("daemon = 1\n", "daemon is a table; write [daemon]"),
        ("[daemon\n", "is not TOML: Expected ']'"),
    ],
)
def test_what_a_file_cannot_say_is_refused_with_what_it_can(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, text: str, sentence: str
) -> None:
    file = tmp_path / "stretto.toml"
    file.write_text(text)

    code, told = run(capsys, "--config", str(file), "daemon")

    assert code == 2
    assert told.startswith(f"stretto: {file}")
    assert sentence in told


def test_a_file_that_is_not_there_is_named(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    code, told = run(capsys, "--config", str(tmp_path / "none.toml"), "daemon")
    assert (code, told) == (1, f"stretto: cannot use {tmp_path / 'none.toml'}: No such file or directory")


def test_a_bad_value_is_told_with_where_it_comes_from(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file = tmp_path / "stretto.toml"
    file.write_text("[daemon]\nsession-millis = 3\n")
    code, told = run(capsys, "--config", str(file), "daemon")
    assert code == 2
    assert told.endswith(f"(it comes from {file})")

    monkeypatch.setenv("STRETTO_DAEMON_SESSION_MILLIS", "many")
    code, told = run(capsys, "daemon")
    assert code == 2
    assert "--session-millis" in told
    assert told.endswith("(it comes from the environment)")
