"""``deploy``, ``append`` and ``tail`` on a whole cluster; what is refused, and why."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from stretto.local.cluster import LocalCluster
from stretto.module.partition import task_of
from tests.support.commands import Done, start, stretto
from tests.support.waiting import wait_until
from tests.unit.test_docs import programs, run_program

MODULE = """
from stretto import Depot, Module

class Orders(Module):
    placed = Depot(partition_by="customer")
    notes = Depot()
"""
SHAPE = {"tasks": "4", "threads": "2", "workers": "1", "replication-factor": "3"}


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "orders.py"
    path.write_text(MODULE)
    return path


def on(cluster: LocalCluster) -> list[str]:
    return ["--bootstrap", cluster.bootstrap[0]]


def launch(cluster: LocalCluster, module: str, *args: str, **shape: str) -> Done:
    given = SHAPE | {name.replace("_", "-"): value for name, value in shape.items()}
    flags = [part for name, value in given.items() for part in (f"--{name}", value)]
    return stretto("deploy", "launch", "--module", module, *flags, *args, *on(cluster))


def names(cluster: LocalCluster) -> set[str]:
    listed = json.loads(stretto("module-status", "--json", *on(cluster)).out)
    return {each["module"] for each in listed}


@pytest.fixture
def no_orders_left(whole_cluster: LocalCluster) -> Iterator[None]:
    """Whatever becomes of the test, others find the cluster without its module."""
    yield
    if "Orders" in names(whole_cluster):
        assert stretto("deploy", "destroy", "Orders", "--yes", *on(whole_cluster)).code == 0


@pytest.mark.usefixtures("no_orders_left")
def test_a_module_is_launched_filled_read_and_destroyed(
    whole_cluster: LocalCluster, source: Path, tmp_path: Path
) -> None:
    launched = launch(whole_cluster, f"{source}:Orders")
    # On a busy machine it tells what it waits for, and a replica may be behind.
    assert launched.code == 0, launched
    assert all(line.startswith("still launching: ") for line in launched.err.splitlines())
    assert [line for line in launched.lines if not line.startswith("! ")] == [
        "Orders runs: 4 tasks in 2 groups, 3 workers on 3 nodes.",
        '  append:  stretto append Orders placed \'{"customer": "..."}\'',
        "  follow:  stretto tail Orders placed",
        "  look:    stretto task-groups-status Orders",
    ]
    again = launch(whole_cluster, f"{source}:Orders")
    assert (again.code, again.out) == (2, "")
    assert again.err.startswith("stretto: there is a module Orders already; choose another --name")

    file = tmp_path / "orders.ndjson"
    file.write_text("".join(f'{{"customer": "c{n % 7}", "n": {n}}}\n' for n in range(500)))
    filled = stretto("append", "Orders", "placed", "--file", str(file), *on(whole_cluster))
    assert (filled.code, filled.err) == (0, "")
    read = stretto("tail", "Orders", "placed", "--from-start", "--no-follow", "--json", *on(whole_cluster))
    rows = [json.loads(line) for line in read.lines]
    assert sorted(row["record"]["n"] for row in rows) == list(range(500))
    assert all(row["task"] == task_of(row["record"]["customer"], 4) for row in rows)
    of_one = [row["record"]["n"] for row in rows if row["record"]["customer"] == "c3"]
    assert of_one == sorted(of_one)

    for unknown in (("append", "Orders", "place", "1"), ("tail", "Orders", "place")):
        refused = stretto(*unknown, *on(whole_cluster))
        assert refused.code == 2
        assert refused.err == "stretto: module Orders has no depot place; did you mean placed?\n"
    refused = stretto("append", "Order", "placed", "1", *on(whole_cluster))
    assert (refused.code, refused.err) == (2, "stretto: there is no module Order; did you mean Orders?\n")

    unasked = stretto("deploy", "destroy", "Orders", *on(whole_cluster))
    assert (unasked.code, unasked.out) == (2, "")
    assert "add --yes" in unasked.err
    assert "Orders" in names(whole_cluster)
    gone = stretto("deploy", "destroy", "Orders", "--yes", *on(whole_cluster))
    assert (gone.code, gone.out) == (0, "Orders is gone\n"), gone
    assert all(line.startswith("still being destroyed: ") for line in gone.err.splitlines())
    assert not list(whole_cluster.folder.glob("node-*/workers/Orders-*"))
    assert "Orders" not in names(whole_cluster)
    unknown_now = stretto("deploy", "destroy", "Orders", "--yes", *on(whole_cluster))
    assert unknown_now.code == 2
    assert unknown_now.err.startswith("stretto: there is no module Orders; ")


EXAMPLE = Path(__file__).resolve().parents[3] / "examples" / "wordcount" / "wordcount.py"


@pytest.fixture
def no_words_left(whole_cluster: LocalCluster) -> Iterator[None]:
    yield
    if "WordCount" in names(whole_cluster):
        assert stretto("deploy", "destroy", "WordCount", "--yes", *on(whole_cluster)).code == 0


@pytest.mark.usefixtures("no_words_left")
def test_a_file_is_all_that_a_launch_needs_and_what_it_and_the_readme_show_can_be_done(
    whole_cluster: LocalCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    launched = stretto("deploy", "launch", str(EXAMPLE), *on(whole_cluster))
    assert launched.code == 0, launched
    chosen, runs, *steps = [line for line in launched.lines if not line.startswith("! ")]
    assert chosen == (
        "chosen for 3 nodes: --tasks 16 (for good) --threads 6 --workers 1 --replication-factor 3"
    )
    assert runs == "WordCount runs: 16 tasks in 6 groups, 3 workers on 3 nodes."
    [append] = [line.split(maxsplit=1)[1] for line in steps if line.strip().startswith("append:")]
    _, *words = shlex.split(append)
    appended = stretto(*words, *on(whole_cluster))
    assert (appended.code, appended.err) == (0, ""), appended
    parked = stretto("failures", "WordCount", "--json", *on(whole_cluster))
    assert "..." not in parked.out, parked
    counted = stretto("select", "WordCount", "counts", "...", *on(whole_cluster))
    assert counted.out.strip() == "1", counted
    for page, printed in {"docs/operate/deploy.md": "2\n", "README.md": "1\n"}.items():
        [program] = [each for each in programs(page) if "client.depot(" in each]
        run_program(program.replace("127.0.0.1:7400", whole_cluster.bootstrap[0]))
        assert capsys.readouterr().out == printed


def test_a_launch_that_leaves_something_open_says_what_to_give(
    whole_cluster: LocalCluster, tmp_path: Path
) -> None:
    several = tmp_path / "several.py"
    several.write_text("from stretto import Module\nclass First(Module): ...\nclass Second(Module): ...\n")
    for args, sentence in {
        (): "say which code to launch: stretto deploy launch FILE.py",
        (str(several), "--module", "x.py"): f"say {several}, or --module x.py, and not both",
        (str(several),): f"{several} defines First, Second; say which, as {several}:First",
    }.items():
        refused = stretto("deploy", "launch", *args, *on(whole_cluster))
        assert (refused.code, refused.out, refused.err) == (2, "", f"stretto: {sentence}\n"), refused


def test_a_launch_under_another_name_need_not_be_waited_for(
    whole_cluster: LocalCluster, source: Path
) -> None:
    launched = launch(
        whole_cluster, str(source), "--name", "renamed", "--no-wait", "--option", "replication.min.isr=1"
    )
    assert (launched.code, launched.err) == (0, "")
    assert launched.out.startswith("renamed is being launched; ")
    try:
        wait_until("it is listed", lambda: "renamed" in names(whole_cluster), 60)
        level = ("--module", "renamed", "--json")
        found = stretto("options", "get", "replication.min.isr", *level, *on(whole_cluster))
        assert json.loads(found.out)["value"] == 1
    finally:
        assert stretto("deploy", "destroy", "renamed", "--yes", *on(whole_cluster)).code == 0


@pytest.mark.parametrize(
    ("shape", "sentence"),
    [
        ({"tasks": "6"}, "6 tasks are not a power of two; ask for 4 or 8"),
        ({"threads": "5"}, "4 tasks cannot occupy 5 threads"),
        ({"workers": "3"}, "2 threads cannot occupy 3 workers"),
        ({"replication_factor": "4"}, "a replication factor of 4 needs 4 nodes, and there are 3"),
        (
            {"option": "replication.min.irs=1"},
            "there is no option replication.min.irs; the nearest is replication.min.isr",
        ),
        ({"option": "replication.min.isr"}, "an option is NAME=VALUE, not 'replication.min.isr'"),
        ({"name": "no spaces"}, "a module cannot be called 'no spaces'"),
    ],
)
def test_what_cannot_run_is_refused_in_one_sentence_and_nothing_is_uploaded(
    whole_cluster: LocalCluster, source: Path, shape: dict[str, str], sentence: str
) -> None:
    source.write_text(MODULE + f"# {sentence}")  # code that no node has yet
    before = uploads(whole_cluster)

    refused = launch(whole_cluster, f"{source}:Orders", **shape)

    assert (refused.code, refused.out) == (2, "")
    assert refused.err.startswith(f"stretto: {sentence}")
    assert refused.err.count("\n") == 1
    assert uploads(whole_cluster) == before
    assert "Orders" not in names(whole_cluster)


def uploads(cluster: LocalCluster) -> set[str]:
    return {path.name for path in cluster.folder.glob("node-*/artifacts/*.zip")}


def test_code_that_does_not_import_shows_its_authors_traceback(
    whole_cluster: LocalCluster, tmp_path: Path
) -> None:
    broken = tmp_path / "broken.py"
    broken.write_text("def helper():\n    return 1 / 0\n\nhelper()\n")

    refused = launch(whole_cluster, str(broken))

    assert (refused.code, refused.out) == (2, "")
    *traceback, sentence = refused.err.splitlines()
    assert traceback[0] == "Traceback (most recent call last):"
    assert any(f'{broken}", line 2, in helper' in line for line in traceback)
    assert traceback[-1] == "ZeroDivisionError: division by zero"
    assert not any("importlib" in line for line in traceback)
    assert sentence.startswith("stretto: ")


def test_a_conductor_waits_for_zookeeper_and_says_where_it_looks() -> None:
    process = start("conductor", "--zookeeper", "127.0.0.1:1", "--address", "127.0.0.1:0")
    try:
        assert process.stderr is not None
        lines = iter(process.stderr.readline, "")
        assert any("metastore_unreachable" in line and "127.0.0.1:1" in line for line in lines)
        assert process.poll() is None
    finally:
        process.terminate()
        process.communicate(timeout=30)
    assert process.returncode == 0


def test_a_conductor_whose_port_is_taken_says_so(whole_cluster: LocalCluster) -> None:
    taken = whole_cluster.bootstrap[0]
    refused = start("conductor", "--zookeeper", whole_cluster.zookeeper, "--address", taken)
    out, err = refused.communicate(timeout=60)
    assert (refused.returncode, out) == (2, "")
    assert err.startswith(f"stretto: cannot listen on {taken}: Address already in use")
    assert err.count("\n") == 1


def test_a_cluster_is_reached_through_a_file_or_any_of_its_daemons(
    whole_cluster: LocalCluster, tmp_path: Path
) -> None:
    file = tmp_path / "stretto.toml"
    file.write_text(f'[cluster]\nbootstrap = "{whole_cluster.bootstrap[1]}"\n')
    sentence = "stretto: there is no module nothing; "

    by_file = stretto("tail", "nothing", "at-all", "--config", str(file))
    by_environment = stretto("tail", "nothing", "at-all", STRETTO_BOOTSTRAP=whole_cluster.bootstrap[2])

    assert (by_file.code, by_environment.code) == (2, 2)
    assert by_file.err.startswith(sentence)
    assert by_environment.err.startswith(sentence)


def test_an_address_at_which_nothing_answers_is_named() -> None:
    refused = stretto("deploy", "destroy", "anything", "--yes", "--bootstrap", "127.0.0.1:1")
    assert (refused.code, refused.out) == (1, "")
    assert refused.err.startswith("stretto: nothing answers at 127.0.0.1:1; ")


def test_nothing_is_coloured_without_a_terminal(whole_cluster: LocalCluster) -> None:
    for command in (
        ["deploy", "launch", "--help"],
        ["tail", "--help"],
        ["module-status", *on(whole_cluster)],
    ):
        done = stretto(*command)
        assert done.code == 0
        assert "\x1b" not in done.out + done.err
