from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import typer
from typer.core import TyperGroup

from stretto import __version__, cli
from stretto.errors import ModuleError, NotEnoughReplicas, OptionError
from stretto.process.interrupts import ending_at_once
from stretto.vocabulary.invariants import InvariantViolation, check

VERBS = "stretto_cli_test_verbs"


@pytest.fixture
def verbs(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """A module of verbs, and a table that lists them instead of the real ones."""
    module = ModuleType(VERBS)
    monkeypatch.setitem(sys.modules, VERBS, module)
    monkeypatch.setattr(cli, "COMMANDS", {"absent": ("stretto.cli.no_such_module:verb", "Cannot load.")})
    return module


def register(verbs: ModuleType, name: str, verb: object, summary: str = "Do it.") -> None:
    setattr(verbs, name, verb)
    cli.COMMANDS[name] = (f"{VERBS}:{name}", summary)


def run(*args: str) -> int:
    with pytest.raises(SystemExit) as exit_:
        cli.main(args)
    assert isinstance(exit_.value.code, int)
    return exit_.value.code


def only_sentence(capsys: pytest.CaptureFixture[str]) -> str:
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    return err.rstrip("\n")


def raising(error: BaseException) -> object:
    def verb() -> None:
        raise error

    return verb


def test_version_is_that_of_the_package(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--version") == 0
    assert capsys.readouterr().out == f"stretto {__version__}\n"


@pytest.mark.parametrize("args", [(), ("--help",), ("-h",)])
def test_help_lists_every_verb_without_loading_any(
    verbs: ModuleType, capsys: pytest.CaptureFixture[str], args: tuple[str, ...]
) -> None:
    assert run(*args) == 0

    out = capsys.readouterr().out
    assert "absent" in out
    assert "Cannot load." in out


def test_help_of_the_real_table_imports_no_verb_and_no_heavy_library() -> None:
    script = (
        "import sys, atexit\n"
        "from stretto.cli import COMMANDS, main\n"
        "verbs = {target.partition(':')[0] for target, _ in COMMANDS.values()}\n"
        "heavy = {'pyspark', 'zmq', 'kazoo', 'lmdb', 'structlog', 'msgspec'}\n"
        "atexit.register(lambda: print(sorted(sys.modules.keys() & (verbs | heavy)), file=sys.stderr))\n"
        "main(['--help'])\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)

    assert done.stderr == "[]\n"


def test_every_entry_of_the_table_is_well_formed() -> None:
    for verb, (target, summary) in cli.COMMANDS.items():
        module, _, attribute = target.partition(":")
        assert module.startswith("stretto."), verb
        assert attribute.isidentifier(), verb
        assert summary.endswith("."), verb


def leaves(command: object, path: str) -> list[tuple[str, str]]:
    """Each verb that can be run, and its help."""
    if isinstance(command, TyperGroup):
        return [leaf for name, each in command.commands.items() for leaf in leaves(each, f"{path} {name}")]
    return [(path, getattr(command, "help", None) or "")]


@pytest.mark.parametrize("verb", cli.COMMANDS)
def test_every_help_has_an_example_and_the_same_first_words_as_the_verb(verb: str) -> None:
    for path, text in leaves(cli._load(verb), f"stretto {verb}"):
        assert "Example" in text, path
        assert text.count(path) >= 1, f"the example of '{path} --help' does not run it"


def test_a_function_becomes_a_verb_with_its_options(
    verbs: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    def count(upto: int, step: int = 1) -> None:
        typer.echo(list(range(0, upto, step)))

    register(verbs, "count", count)

    assert run("count", "6", "--step", "2") == 0
    assert capsys.readouterr().out == "[0, 2, 4]\n"


def test_a_group_of_one_verb_stays_a_group(verbs: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    group = typer.Typer()

    @group.command()
    def dump() -> None:
        typer.echo("dumped")

    register(verbs, "things", group, "Look at things.")

    assert run("things", "dump") == 0
    assert capsys.readouterr().out == "dumped\n"


def test_a_group_without_a_verb_shows_its_help_with_the_line_of_the_table(
    verbs: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    group = typer.Typer()
    group.command("dump")(lambda: None)
    register(verbs, "things", group, "Look at things.")

    assert run("things") == 0
    out = capsys.readouterr().out
    assert "Look at things." in out
    assert "dump" in out


def test_an_error_is_one_sentence_and_exit_code_1(
    verbs: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    register(verbs, "stalled", raising(NotEnoughReplicas("1 of 2 replicas is in the ISR; start another")))

    assert run("stalled") == 1
    assert only_sentence(capsys) == "stretto: 1 of 2 replicas is in the ISR; start another"


def test_a_module_that_does_not_load_shows_its_authors_traceback_before_the_sentence(
    verbs: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    error = ModuleError("m.py cannot be imported; mend the line shown", '  File "m.py", line 1\n    1/0')
    register(verbs, "launch", raising(error))

    assert run("launch") == 2
    shown = '  File "m.py", line 1\n    1/0\nstretto: m.py cannot be imported; mend the line shown\n'
    assert capsys.readouterr().err == shown


def test_asking_for_the_impossible_is_bad_usage(
    verbs: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    register(verbs, "set", raising(OptionError("no option 'min.isr'; did you mean 'replication.min.isr'?")))

    assert run("set") == 2
    assert "did you mean" in only_sentence(capsys)


@pytest.mark.parametrize(
    ("args", "sentence"),
    [
        (("cuont",), "stretto: there is no command 'cuont'; did you mean 'count'? (see 'stretto --help')"),
        (("count",), "stretto: 'stretto count' needs UPTO (see 'stretto count --help')"),
        (
            ("count", "1", "--stpe", "2"),
            "stretto: 'stretto count' has no option --stpe; did you mean --step? (see",
        ),
        (("count", "many"), "stretto: UPTO has to be a whole number, not many (see"),
        (("--nope",), "stretto: 'stretto' has no option --nope (see 'stretto --help')"),
    ],
)
def test_bad_usage_is_one_sentence_and_exit_code_2(
    verbs: ModuleType, capsys: pytest.CaptureFixture[str], args: tuple[str, ...], sentence: str
) -> None:
    def count(upto: int, step: int = 1) -> None:
        raise AssertionError("must not run")

    register(verbs, "count", count)

    assert run(*args) == 2
    assert only_sentence(capsys).startswith(sentence)


def test_a_file_that_cannot_be_used_is_named(verbs: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    register(verbs, "read", raising(FileNotFoundError(2, "No such file or directory", "/no/such/log")))

    assert run("read") == 1
    assert only_sentence(capsys) == "stretto: cannot use /no/such/log: No such file or directory"


def test_an_interrupted_verb_exits_130_in_silence(
    verbs: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    register(verbs, "wait", raising(KeyboardInterrupt()))

    assert run("wait") == 130
    assert capsys.readouterr() == ("", "")


def test_a_verb_chooses_its_exit_code(verbs: ModuleType) -> None:
    register(verbs, "returns", lambda: 1)
    register(verbs, "exits", raising(typer.Exit(3)))

    assert run("returns") == 1
    assert run("exits") == 3


def test_a_bug_keeps_its_traceback(verbs: ModuleType) -> None:
    register(verbs, "bug", raising(ZeroDivisionError()))

    with pytest.raises(ZeroDivisionError):
        cli.main(["bug"])


def test_a_broken_invariant_is_never_swallowed(verbs: ModuleType) -> None:
    register(verbs, "broken", lambda: check(False, "apply offset beyond end"))

    with pytest.raises(InvariantViolation):
        cli.main(["broken"])


def test_python_dash_m_runs_the_command() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "stretto", "--version"], capture_output=True, text=True, check=True
    )

    assert done.stdout == f"stretto {__version__}\n"


@pytest.mark.parametrize("args", [("-5", "--module", "m"), ("--module", "m", "-0.5"), ("--", "-5")])
def test_a_negative_value_is_no_option(capsys: pytest.CaptureFixture[str], args: tuple[str, ...]) -> None:
    assert run("options", "set", "--bootstrap", "127.0.0.1:1", "replication.min.isr", *args) == 1
    assert only_sentence(capsys).startswith("stretto: nothing answers at 127.0.0.1:1")


def test_an_option_that_a_verb_with_negative_values_does_not_have_is_told(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run("options", "set", "replication.min.isr", "-5", "--modul", "m") == 2
    assert "'stretto options set' has no option --modul; did you mean --module?" in only_sentence(capsys)


def test_a_worker_whose_log_is_a_file_does_without_what_takes_memory() -> None:
    code = "import sys, stretto.worker.start; print({'rich', 'typer', 'pydantic'} & {*sys.modules})"
    done = subprocess.run(
        [sys.executable, "-c", f"{code}; import rich.console"], capture_output=True, text=True, check=True
    )
    assert done.stdout == "set()\n"


def test_a_full_disk_under_the_output_is_told_in_one_sentence() -> None:
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "stretto", "--version"],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    assert (done.returncode, done.stderr) == (1, "stretto: cannot write: No space left on device\n")


def test_an_empty_record_is_refused_and_not_taken_for_no_records(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("append", "M", "depot", " ") == 2
    assert only_sentence(capsys).startswith("stretto: the record is empty; give JSON")


def interrupted(tmp_path: Path, *args: str, library: str) -> tuple[int, str]:
    """How a command ends that is interrupted while it loads a library, which swallows what it can."""
    (tmp_path / f"{library}.py").write_text(
        "import sys, time\n"
        "print('loading', flush=True)\n"
        "try:\n"
        "    time.sleep(60)\n"
        "except KeyboardInterrupt:\n"
        "    sys.exit('swallowed')\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-m", "stretto", *args],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": str(tmp_path)},
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "loading\n"
    process.send_signal(signal.SIGINT)
    said = process.communicate(timeout=60)[1]
    return process.returncode, said


def test_ctrl_c_while_a_command_is_loaded_ends_it_in_silence(tmp_path: Path) -> None:
    gone = (-signal.SIGINT, "")
    assert interrupted(tmp_path, "--version", library="typer") == gone
    (tmp_path / "typer.py").unlink()
    assert interrupted(tmp_path, "up", library="msgspec") == gone
    (tmp_path / "msgspec.py").unlink()
    assert interrupted(tmp_path, "ui", library="uvicorn") == gone


@pytest.mark.parametrize("handler", [signal.SIG_IGN, lambda *_: None])
def test_ctrl_c_is_left_to_whoever_ignores_it_or_listens_to_it(handler: Any) -> None:
    before = signal.signal(signal.SIGINT, handler)
    try:
        with ending_at_once():
            assert signal.getsignal(signal.SIGINT) is handler
        assert signal.getsignal(signal.SIGINT) is handler
    finally:
        signal.signal(signal.SIGINT, before)
