"""What the documents name exists, and what must be documented is.

The table of guards in ``docs/PROTOCOL.md`` is made from the code: when a guard, a mutant or a ``catches``
line changes, the test that compares them prints the table to paste. The pages of ``docs/reference/`` are made
from the code as a whole: ``make reference`` writes them, and a test compares.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import re
import subprocess
import sys
import textwrap
import types
from pathlib import Path
from typing import get_args

import pytest
from typer.core import TyperGroup

from docs import generate
from stretto import cli, testing
from stretto.module.module import declarations
from stretto.options import TABLE
from stretto.replog.core import effects, events, messages
from stretto.replog.core.guards import Guards
from stretto.sim.replication.mutants import MUTANTS
from stretto.sim.replication.scenario import scripts
from stretto.ui.telemetry.metrics import COUNTERS, GAUGES, HISTOGRAMS
from tests.unit.code_names import FOLDERS, CodeNames, code_names, files

ROOT = Path(__file__).resolve().parents[2]
PAGES = ["README.md", "CONTRIBUTING.md", "CHANGELOG.md"]
PAGES += sorted(str(path.relative_to(ROOT)) for path in (ROOT / "docs").rglob("*.md"))

#: Names of the standard library, of Spark and of other projects that the pages speak of.
ELSEWHERE = {"DataFrame", "Decimal", "Enum", "Exception", "Literal", "NaN", "NamedTuple", "None", "TypedDict"}
ELSEWHERE |= {"True", "UUID", "from_json", "io_uring"}
#: Paths of the metastore that look like those of files.
ZNODES = {"conductor/destroyed", "conductor/leader"}
#: Files that a page tells its reader to write, and a setting that looks like a module.
WRITTEN = {"conftest.py", "job.py", "shop.py", "wordcount.py"}
CONFIGURED = {"stretto.toml", "stretto.zip"}
#: Names that CONTRIBUTING.md says the code does not have.
AVOIDED = {"Manager", "last_offset"}

GUARD_NAMES = [field.name for field in dataclasses.fields(Guards)]
MUTANT_NAMES = [mutant.name for mutant in MUTANTS]
SCENARIO_NAMES = [script.name for script in scripts()]

TABLE_BEGINS = "<!-- guards: begin -->\n"
TABLE_ENDS = "<!-- guards: end -->\n"


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


@pytest.mark.filterwarnings("ignore::litestar.exceptions.LitestarDeprecationWarning")
@pytest.mark.parametrize("page", generate.PAGES)
def test_pages_of_the_reference_are_those_of_the_code(page: str) -> None:
    made = generate.PAGES[page]()
    assert made == text_of(f"docs/reference/{page}"), f"docs/reference/{page} is stale: run 'make reference'"


def test_every_option_and_every_verb_is_in_the_reference() -> None:
    options, commands = text_of("docs/reference/options.md"), text_of("docs/reference/cli.md")
    assert [option.name for option in TABLE if f"`{option.name}`" not in options] == []
    assert [verb for verb in cli.COMMANDS if f"\n## stretto {verb}\n" not in commands] == []


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
    folders = "|".join((*FOLDERS, "docs", "tests", r"\.ci"))
    paths = re.findall(rf"`((?:{folders})/[\w./-]*)`", text)
    assert [path for path in paths if not (ROOT / path).exists() and path not in ZNODES] == []


@pytest.mark.parametrize("page", PAGES)
def test_source_files_that_a_page_names_without_a_folder_exist(page: str) -> None:
    """``pace.py`` is a file of the code, or one that the page itself tells the reader to write."""
    names = {path.name for path in files()} | {path.name for path in (ROOT / "examples").rglob("*.py")}
    assert [name for name in re.findall(r"`(\w+\.py)`", text_of(page)) if name not in names | WRITTEN] == []


@pytest.mark.parametrize("page", PAGES)
def test_links_to_parts_of_a_page_lead_there(page: str) -> None:
    for link, part in re.findall(r"\]\(([^)#\s]*)#([^)\s]+)\)", text_of(page)):
        if "://" not in link:
            target = (ROOT / page).parent / link if link else ROOT / page
            heads = re.findall(r"^#+ (.+)$", target.read_text("utf-8"), re.MULTILINE)
            assert part in {slug(head) for head in heads}, f"{page}: {link}#{part}"


def slug(head: str) -> str:
    """A heading as an address, as GitHub and the site both make it."""
    return re.sub(r"[^\w\- ]", "", head.lower()).strip().replace(" ", "-")


def shown_by(page: str) -> CodeNames:
    """What the programs of a page define."""
    names = CodeNames()
    for program in programs(page):
        with contextlib.suppress(SyntaxError):  # an excerpt
            names.add(program)
    return names


@pytest.mark.parametrize("page", PAGES)
def test_members_of_classes_that_a_page_names_exist(page: str) -> None:
    """``Class.method`` in backquotes, with or without arguments."""
    code, shown_here = code_names(), shown_by(page)
    for name, member in re.findall(r"`([A-Z]\w*[a-z]\w*)\.([A-Za-z_]\w*)[^`]*`", text_of(page)):
        assert name in code.classes or name in shown_here.classes, f"{page}: there is no class {name}"
        members = code.members(name) | shown_here.members(name)
        assert member in members, f"{page}: {name} has no {member}"


@pytest.mark.parametrize("page", PAGES)
def test_classes_and_other_names_that_a_page_names_exist(page: str) -> None:
    """``CamelCase`` and ``snake_case`` in backquotes, with or without arguments."""
    known = code_names().words | shown_by(page).words | ELSEWHERE | AVOIDED
    named = re.findall(r"`([A-Z][a-z]\w*|[a-z]\w*_\w+)(?:\([^`]*\))?`", text_of(page))
    assert [name for name in named if name not in known] == []


def test_names_that_the_code_is_said_to_avoid_are_not_in_it() -> None:
    assert AVOIDED & code_names().words == set()


@pytest.mark.parametrize("page", PAGES)
def test_modules_that_a_page_names_exist(page: str) -> None:
    """``stretto.testing.module(...)`` in backquotes, and whatever programs import of stretto."""
    text = text_of(page)
    named = re.findall(r"`((?:pyspark_)?stretto(?:\.\w+)+)", text)
    for program in programs(page):
        for module, names in re.findall(
            r"^from ((?:pyspark_)?stretto\S*) import (.+)$", program, re.MULTILINE
        ):
            named += [f"{module}.{name.strip()}" for name in names.split(",")]
    assert [name for name in named if name not in CONFIGURED and not is_there(name)] == []


def is_there(dotted: str) -> bool:
    """Whether it is a module, or leads from a module to something that it has."""
    path, _, name = dotted.rpartition(".")
    with contextlib.suppress(ImportError):
        importlib.import_module(dotted)
        return True
    try:
        found = importlib.import_module(path)
    except ImportError:
        return "." in path and is_there(path)
    return hasattr(found, name)


def test_the_site_is_whole_and_fetches_nothing_from_elsewhere(tmp_path: Path) -> None:
    """Every link leads somewhere, every page is in the navigation, and no page loads what others serve."""
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    pages = list(tmp_path.rglob("*.html"))
    assert len(pages) >= len(PAGES) - 3
    for page in pages:
        loaded = re.findall(
            r'<(?:script|img|link|iframe)\b[^>]*?(?:src|href)="?(https?:[^"\s>]+)', page.read_text("utf-8")
        )
        assert loaded == [], page


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


FIRST_MODULE = "docs/start/first-module.md"


def test_the_first_module_passes_its_test() -> None:
    module, test = programs(FIRST_MODULE)[:2]
    run_program(test, WordCount=run_program(module).WordCount).test_words_are_counted()


def test_the_module_of_readme_is_the_beginning_of_the_example() -> None:
    [module] = [each for each in programs("README.md") if "class WordCount" in each]
    assert module in text_of("examples/wordcount/wordcount.py")


def test_functions_that_the_pages_on_modules_show_are_sound() -> None:
    """Put into a class that has what they use."""
    [batches] = [each for each in programs("docs/build/topologies.md") if "Counter(" in each]
    [queries] = [each for each in programs("docs/build/queries.md") if "nlargest" in each]
    program = (
        programs(FIRST_MODULE)[0].partition("class WordCount")[0]
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
    [program] = [each for each in programs("docs/build/modules.md") if "class Shop" in each]
    declared = declarations(run_program(program).Shop)
    assert {name: str(pstate.type) for name, pstate in declared.pstates.items()} == {
        "totals": "dict[str, int]",
        "accounts": "dict[int, Account(owner: str, balance: int = ...)]",
        "daily": "dict[str, dict[date, int]]",
        "history": "dict[str, list[str]]",
        "tags": "dict[str, set[str]]",
        "blocked": "set[str]",
    }
