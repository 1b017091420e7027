"""What the documents name exists, and what must be documented is.

The table of guards in ``docs/PROTOCOL.md`` and that of options in ``docs/OPTIONS.md`` are made from the code:
when a guard, a mutant, a ``catches`` line or an option changes, the test that compares them prints the table
to paste.
"""

from __future__ import annotations

import dataclasses
import re
import sys
import textwrap
import types
from pathlib import Path
from typing import get_args

import pytest
from typer.core import TyperGroup

from stretto import cli, testing
from stretto.module.module import declarations
from stretto.options import TABLE, shown
from stretto.replog.core import effects, events, messages
from stretto.replog.core.guards import Guards
from stretto.sim.replication.mutants import MUTANTS
from stretto.sim.replication.scenario import scripts
from stretto.ui.telemetry.metrics import COUNTERS, GAUGES, HISTOGRAMS

ROOT = Path(__file__).resolve().parents[2]
PAGES = ["README.md", "CONTRIBUTING.md", "CHANGELOG.md", "docs/ARCHITECTURE.md", "docs/PROTOCOL.md"]
PAGES += ["docs/UI.md", "docs/CONFIGURATION.md", "docs/OPTIONS.md", "docs/MODULES.md"]
PAGES += ["docs/SPARK.md", "docs/SNAPSHOTS.md", "docs/EXPORTS.md"]

GUARD_NAMES = [field.name for field in dataclasses.fields(Guards)]
MUTANT_NAMES = [mutant.name for mutant in MUTANTS]
SCENARIO_NAMES = [script.name for script in scripts()]

TABLE_BEGINS = "<!-- guards: begin -->\n"
TABLE_ENDS = "<!-- guards: end -->\n"
OPTIONS_BEGIN = "<!-- options: begin -->\n"
OPTIONS_END = "<!-- options: end -->\n"


def text_of(page: str) -> str:
    return (ROOT / page).read_text("utf-8")


def guard_table() -> str:
    """A row per mutant of each guard, in the order of the guard table."""
    rows = [("guard", "rule", "clause", "mutant", "scenario made for it"), ("---",) * 5]
    for guard in GUARD_NAMES:
        for mutant in MUTANTS:
            if guard in mutant.changes:
                made_for = [f"`{script.name}`" for script in scripts() if mutant.name in script.catches]
                rows.append(
                    (f"`{guard}`", mutant.rule, mutant.without, f"`{mutant.name}`", ", ".join(made_for))
                )
    return "".join("| " + " | ".join(row) + " |\n" for row in rows)


@pytest.mark.parametrize("file", ["dashboard.json", "alerts.yaml"])
def test_dashboard_and_alerts_ask_for_metrics_that_there_are(file: str) -> None:
    asked = set(re.findall(r"stretto_[a-z_]+", text_of(f"docs/grafana/{file}")))
    there = {*COUNTERS, *GAUGES} | {f"{name}_bucket" for name in HISTOGRAMS}
    assert asked
    assert asked <= there


def test_table_of_guards_is_that_of_the_code() -> None:
    _, _, rest = text_of("docs/PROTOCOL.md").partition(TABLE_BEGINS)
    table, end, _ = rest.partition(TABLE_ENDS)
    assert end, f"docs/PROTOCOL.md has no table between {TABLE_BEGINS!r} and {TABLE_ENDS!r}"
    assert table == guard_table(), f"docs/PROTOCOL.md: put this between the two comments\n\n{guard_table()}"


def option_table() -> str:
    rows = [("option", "default", "may be", "set for", "what it does"), ("---",) * 5]
    for option in TABLE:
        default = option.default_means if option.default is None else shown(option.default)
        unit = f" {option.unit}" if option.unit else ""
        rows.append(
            (f"`{option.name}`", f"{default}{unit}", option.takes, ", ".join(option.scopes), option.doc)
        )
    return "".join("| " + " | ".join(row) + " |\n" for row in rows)


def test_table_of_options_is_that_of_the_code() -> None:
    _, _, rest = text_of("docs/OPTIONS.md").partition(OPTIONS_BEGIN)
    table, end, _ = rest.partition(OPTIONS_END)
    assert end, f"docs/OPTIONS.md has no table between {OPTIONS_BEGIN!r} and {OPTIONS_END!r}"
    assert table == option_table(), f"docs/OPTIONS.md: put this between the two comments\n\n{option_table()}"


def test_every_guard_is_told_with_its_rule() -> None:
    prose = text_of("docs/PROTOCOL.md").partition(TABLE_BEGINS)[0]
    assert [guard for guard in GUARD_NAMES if f"`{guard}`" not in prose] == []


def test_every_scenario_is_told() -> None:
    protocol = text_of("docs/PROTOCOL.md")
    assert [name for name in SCENARIO_NAMES if f"`{name}`" not in protocol] == []


@pytest.mark.parametrize("union", [messages.AnyMessage, events.Event, effects.Effect])
def test_every_message_event_and_effect_is_told(union: object) -> None:
    protocol = text_of("docs/PROTOCOL.md")
    names = [each.__name__ for each in get_args(union)]
    assert names
    assert [name for name in names if f"`{name}`" not in protocol] == []


@pytest.mark.parametrize("page", PAGES)
def test_guards_and_mutants_that_a_page_names_exist(page: str) -> None:
    """In rules, a name of lower-case words in backquotes after *guard* or *mutant* is one of theirs."""
    listed = re.findall(r"(?:[Gg]uards?|[Mm]utants?):? ((?:`[a-z_]+`(?:, | and )?)+)", text_of(page))
    named = [name for names in listed for name in re.findall(r"`([a-z_]+)`", names)]
    named += re.findall(r"--mutant ([a-z_]+)", text_of(page))
    assert [name for name in named if name not in GUARD_NAMES + MUTANT_NAMES] == []


@pytest.mark.parametrize("page", PAGES)
def test_scenarios_that_a_page_names_exist(page: str) -> None:
    """A name with two dashes in backquotes is a scenario's; after ``--scenario`` stands a part of one."""
    text = text_of(page)
    named = re.findall(r"`([a-z][a-z0-9]*(?:-[a-z0-9]+){2,})`", text)
    assert [name for name in named if name not in SCENARIO_NAMES] == []
    parts = re.findall(r"--scenario ([a-z0-9-]+)", text)
    assert [part for part in parts if not any(part in name for name in SCENARIO_NAMES)] == []


@pytest.mark.parametrize("page", PAGES)
def test_make_targets_that_a_page_names_exist(page: str) -> None:
    targets = set(re.findall(r"^([a-z]+):", text_of("Makefile"), re.MULTILINE))
    commands = re.findall(r"(?:`|\$ )make((?: [a-z]+)+)", text_of(page))
    named = [target for command in commands for target in command.split()]
    assert [target for target in named if target not in targets] == []


@pytest.mark.parametrize("page", PAGES)
def test_commands_that_a_page_names_exist(page: str) -> None:
    """``stretto VERB [SUBVERB] --option ...`` in code is one that the command takes."""
    for line in re.findall(r"(?:`|^ {4}(?:\$ )?)stretto ([a-z][^`\n]*)", text_of(page), re.MULTILINE):
        words = line.split()
        assert words[0] in cli.COMMANDS, f"{page}: stretto {line}"
        command = cli._load(words[0])
        if isinstance(command, TyperGroup) and len(words) > 1:
            for verb in words[1].split("|"):
                assert verb in command.commands, f"{page}: stretto {line}"
            command = command.commands[words[1].split("|")[0]]
        known = {option for parameter in command.params for option in parameter.opts}
        unknown = [word for word in words if word.startswith("--") and word not in known]
        assert unknown == [], f"{page}: stretto {line}"


@pytest.mark.parametrize("page", PAGES)
def test_files_that_a_page_links_or_names_exist(page: str) -> None:
    text = text_of(page)
    folder = (ROOT / page).parent
    links = [link for link in re.findall(r"\]\(([^)#]+)[^)]*\)", text) if "://" not in link]
    assert [link for link in links if not (folder / link).exists()] == []
    paths = re.findall(r"`((?:replog|stretto|worker|tests|docs|\.ci)/[\w./-]+)`", text)
    assert [path for path in paths if not (ROOT / path).exists()] == []


def programs(page: str) -> list[str]:
    """The Python that it shows."""
    return [each.partition("```")[0] for each in text_of(page).split("```python\n")[1:]]


def run_program(program: str, **names: object) -> types.ModuleType:
    written = types.ModuleType("written")
    vars(written).update(names)
    sys.modules["written"] = written  # where dataclasses look for the names in annotations
    try:
        exec(compile(program, "written.py", "exec"), vars(written))
    finally:
        del sys.modules["written"]
    return written


def test_the_first_module_of_modules_passes_its_test() -> None:
    module, test = programs("docs/MODULES.md")[:2]
    run_program(test, WordCount=run_program(module).WordCount).test_words_are_counted()


def test_functions_that_modules_shows_are_sound() -> None:
    """Put into a class that has what they use."""
    shown = programs("docs/MODULES.md")
    [batches] = [each for each in shown if "Counter(" in each]
    [queries] = [each for each in shown if "nlargest" in each]
    program = (
        shown[0].partition("class WordCount")[0]
        + "from collections import Counter\nfrom heapq import nlargest\nfrom stretto import query\n"
        + "class Shown(Module):\n    sentences = Depot()\n    counts = PState(dict[str, int])\n"
        + textwrap.indent(batches + queries, "    ")
    )
    with testing.module(run_program(program).Shown) as m:
        m.append("sentences", {"user": "ada", "text": "the cat and the dog"})
        m.run()
        assert m.query("top", 1) == [[2, "the"]]
        assert m.query("count_of", "cat") == 1


def test_the_module_that_is_declared_in_modules_is_sound() -> None:
    [program] = [each for each in programs("docs/MODULES.md") if "class Shop" in each]
    declared = declarations(run_program(program).Shop)
    assert {name: str(pstate.type) for name, pstate in declared.pstates.items()} == {
        "totals": "dict[str, int]",
        "accounts": "dict[int, Account(owner: str, balance: int = ...)]",
        "daily": "dict[str, dict[date, int]]",
        "history": "dict[str, list[str]]",
        "tags": "dict[str, set[str]]",
        "blocked": "set[str]",
    }
