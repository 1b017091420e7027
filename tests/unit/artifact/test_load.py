"""What a person names after ``--module``: found, packed and described, or refused in a sentence."""

from __future__ import annotations

import os
import select
import textwrap
import zipfile
from pathlib import Path

import pytest

from stretto.artifact import Artifact, describe, load
from stretto.artifact.archive import Entry, pack
from stretto.artifact.sources import find
from stretto.control import ModuleManifest
from stretto.errors import ModuleError, UsageError
from stretto.specs.modules import DepotSpec

WORD_COUNT = """
    from stretto import Depot, Module

    class WordCount(Module):
        sentences = Depot(partition_by="user")
"""


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write(path: str, text: str) -> None:
    file = Path(path)
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(textwrap.dedent(text).lstrip("\n"))


def loaded(source: str) -> tuple[Artifact, ModuleManifest]:
    return load(source, Path("out"))


def names_in(artifact: Artifact) -> list[str]:
    return zipfile.ZipFile(artifact.path).namelist()


def refusal(source: str) -> ModuleError:
    with pytest.raises(ModuleError) as refused:
        loaded(source)
    assert "\n" not in str(refused.value)
    return refused.value


@pytest.fixture
def shop() -> None:
    """A package whose module imports from beside itself."""
    write("src/shop/__init__.py", "from shop.orders import Orders\n")
    write("src/shop/fields.py", "ORDER = 'order'\n")
    write(
        "src/shop/orders.py",
        """
        from stretto import Depot, Module
        from .fields import ORDER

        class Orders(Module, name="orders"):
            placed = Depot(partition_by=ORDER)
        """,
    )
    write("src/shop/data/countries.csv", "de\n")
    write("src/shop/.hidden", "")
    write("src/shop/__pycache__/fields.pyc", "")
    write("src/not_of_it.py", "")


SHOP_FILES = ["shop/__init__.py", "shop/data/countries.csv", "shop/fields.py", "shop/orders.py"]
ORDERS = (DepotSpec(name="placed", partition_by="order"),)
SAMPLES = {"placed": '{"order": "..."}'}


@pytest.mark.parametrize(
    "source", ["wordcount.py", "wordcount.py:WordCount", "wordcount:WordCount", "wordcount"]
)
def test_a_file_is_packed_alone_and_described(source: str) -> None:
    write("wordcount.py", WORD_COUNT)
    artifact, manifest = loaded(source)
    assert names_in(artifact) == ["wordcount.py"]
    assert artifact.path == Path("out", f"{artifact.digest}.zip")
    assert manifest == ModuleManifest(
        name="WordCount",
        entry="wordcount:WordCount",
        depots=(DepotSpec(name="sentences", partition_by="user"),),
        samples={"sentences": '{"user": "..."}'},
    )


def test_types_of_pstates_are_described_with_the_classes_in_them() -> None:
    write(
        "bank.py",
        """
        from dataclasses import dataclass
        from stretto import Module, PState

        @dataclass
        class Account:
            owner: str
            balance: int = 0

        class Bank(Module):
            accounts = PState(dict[int, Account])
            owned = PState(dict[str, set[int]])
        """,
    )
    _, manifest = loaded("bank.py")
    assert {pstate.name: str(pstate.type) for pstate in manifest.pstates} == {
        "accounts": "dict[int, Account(owner: str, balance: int = ...)]",
        "owned": "dict[str, set[int]]",
    }


def test_a_pstate_that_cannot_be_is_refused_with_its_line() -> None:
    write("bank.py", "from stretto import Module, PState\n\nclass Bank(Module):\n    total = PState(int)\n")
    assert str(refusal("bank.py")).startswith("bank.py:4: Bank.total: a PState is a dict or a set")


@pytest.mark.parametrize(
    ("source", "entry"),
    [
        ("src/shop:Orders", "shop:Orders"),
        ("src/shop", "shop:Orders"),
        ("src/shop/orders.py:Orders", "shop.orders:Orders"),
        ("src/shop/orders.py", "shop.orders:Orders"),
        ("shop.orders:Orders", "shop.orders:Orders"),
        ("shop:Orders", "shop:Orders"),
    ],
)
def test_a_package_goes_along_whole_without_caches(
    shop: None, monkeypatch: pytest.MonkeyPatch, source: str, entry: str
) -> None:
    monkeypatch.syspath_prepend("src")
    artifact, manifest = loaded(source)
    assert names_in(artifact) == SHOP_FILES
    assert manifest == ModuleManifest(name="orders", entry=entry, depots=ORDERS, samples=SAMPLES)


def test_a_wheel_is_the_same_artifact_whenever_and_however_it_was_built(shop: None) -> None:
    digests = set()
    for number, compression in enumerate([zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED]):
        wheel = Path(f"shop-{number}.whl")
        with zipfile.ZipFile(wheel, "w", compression) as archive:
            for name in SHOP_FILES[::-1] if number else SHOP_FILES:
                archive.write(Path("src", name), name)
        artifact, manifest = loaded(f"{wheel}:shop.orders:Orders")
        expected = ModuleManifest(name="orders", entry="shop.orders:Orders", depots=ORDERS, samples=SAMPLES)
        assert manifest == expected
        digests.add(artifact.digest)
    assert digests == {loaded("src/shop")[0].digest}


@pytest.mark.parametrize(
    ("source", "sentence"),
    [
        ("wordcont.py:WordCount", "there is no file wordcont.py; did you mean wordcount.py?"),
        ("nowhere/x.py", "there is no file nowhere/x.py; check the path"),
        ("src", "src is no package; name one of its files, such as src/not_of_it.py, or add an __init__.py"),
        ("shoop.orders:Orders", "no module 'shoop' is here or can be imported; write FILE.py:Name"),
        ("src/shop/ordrs.py", "there is no file src/shop/ordrs.py; did you mean src/shop/orders.py?"),
        ("wordcount.py:", "'wordcount.py:' names no module"),
        ("wordcount.py:Word Count", "names no module"),
        ("no/such/folder:X", "there is no file or folder no/such/folder"),
        ("wordcount.more:X", "wordcount is a single file, without a module 'more'"),
        ("math:X", "math is no Python source that can be packed"),
        ("my-count.py", "my-count.py cannot be imported under that name; rename it"),
        ("json.py", "code called 'json' would hide the module of that name"),
        ("x.whl", "x.whl needs the module in it as well; write x.whl:pkg.mod:Name"),
        ("x.whl:a:b:c", "'a:b:c' names nothing in a wheel"),
        ("x.whl:shop:Orders", "there is no file x.whl"),
        ("broken.whl:shop:Orders", "broken.whl is no wheel that can be read"),
    ],
)
def test_what_cannot_be_found_is_refused_with_what_to_do(shop: None, source: str, sentence: str) -> None:
    for name in ("wordcount.py", "my-count.py", "json.py"):
        write(name, WORD_COUNT)
    write("broken.whl", "not a zip")
    with pytest.raises(UsageError) as refused:
        loaded(source)
    assert sentence in str(refused.value)


def test_a_module_missing_in_a_package_or_wheel_is_told_with_the_nearest(shop: None) -> None:
    with zipfile.ZipFile("shop.whl", "w") as archive:
        archive.write("src/shop/orders.py", "shop/orders.py")
    with pytest.raises(UsageError, match=r"has no module 'shop.order'; did you mean shop.orders\?"):
        find("shop.whl:shop.order:Orders")


def test_a_link_that_leads_back_is_refused(shop: None) -> None:
    Path("src/shop/data/again").symlink_to("../../shop")
    with pytest.raises(UsageError, match="leads back to a folder that it is in"):
        find("src/shop")


def test_an_error_while_importing_is_the_authors_own_traceback_trimmed_to_their_frames() -> None:
    write(
        "code/broken.py",
        """
        import json

        def read(text):
            return json.loads(text)

        read("{")
        """,
    )
    error = refusal("code/broken.py")
    assert "code/broken.py cannot be imported: it raises JSONDecodeError" in str(error)
    lines = [line.strip() for line in error.traceback.splitlines() if not set(line) <= set(" ^~")]
    assert lines == [
        "Traceback (most recent call last):",
        'File "code/broken.py", line 6, in <module>',
        'read("{")',
        'File "code/broken.py", line 4, in read',
        "return json.loads(text)",
        lines[-1],
    ]
    assert lines[-1].startswith("json.decoder.JSONDecodeError: Expecting property name")


def test_a_cause_is_trimmed_too() -> None:
    write(
        "broken.py",
        """
        import json

        try:
            json.loads("{")
        except ValueError as error:
            raise RuntimeError("no") from error
        """,
    )
    traceback = refusal("broken.py").traceback
    assert "direct cause" in traceback
    assert "decoder.py" not in traceback
    assert "importlib" not in traceback


def test_a_syntax_error_shows_its_line() -> None:
    write("broken.py", "def f(:\n")
    error = refusal("broken.py")
    assert "broken.py cannot be imported: it raises SyntaxError" in str(error)
    assert error.traceback.splitlines()[0].strip() == 'File "broken.py", line 1'
    assert error.traceback.splitlines()[-1].startswith("SyntaxError:")


def test_a_wrong_declaration_needs_no_traceback() -> None:
    write(
        "wrong.py", "from stretto import Depot, Module\nclass Wrong(Module):\n    a = Depot(partition_by=1)\n"
    )
    error = refusal("wrong.py")
    assert str(error).startswith("wrong.py:3: Wrong.a: partition_by names a field")
    assert error.traceback == ""


def test_what_is_beside_a_file_is_missed_here_and_not_on_the_cluster() -> None:
    write("helpers.py", "")
    write("wordcount.py", "import helpers\n" + textwrap.dedent(WORD_COUNT))
    error = refusal("wordcount.py")
    assert "imports 'helpers', which is neither in its package nor installed" in str(error)
    assert 'File "wordcount.py", line 1' in error.traceback


@pytest.mark.parametrize(
    ("code", "name", "sentence"),
    [
        ("x = 1", "", "m.py defines no module; write a class that derives from stretto.Module"),
        ("from stretto import Module", "", "m.py defines no module"),
        ("class X: pass", "X", "X in m.py is no module: it must derive from stretto.Module"),
        ("from stretto import Module", "Module", "Module in m.py is no module"),
        (WORD_COUNT, "WordCont", "m.py has no class 'WordCont'; did you mean WordCount?"),
        (WORD_COUNT, "Bank", "m.py has no class 'Bank'; there is WordCount"),
        (
            "from stretto import Module\nclass A(Module): pass\nclass B(A): pass",
            "",
            "m.py defines A, B; say which, as m.py:A",
        ),
        ("import sys; sys.exit(0)", "", "m.py cannot be imported: it raises SystemExit"),
        ("import os; os._exit(3)", "", "importing m.py ended its process (exit code 3)"),
        ("import os, signal; os.kill(os.getpid(), 9)", "", "importing m.py ended its process (signal 9)"),
    ],
)
def test_a_file_without_the_module_is_refused(code: str, name: str, sentence: str) -> None:
    write("m.py", code)
    assert sentence in str(refusal(f"m.py:{name}" if name else "m.py"))


def test_code_may_print_start_threads_and_register_exit_handlers() -> None:
    write(
        "noisy.py",
        """
        import atexit, sys, threading, time
        from stretto import Module

        print("{}" * 100_000)
        print("loud", file=sys.stderr)
        threading.Thread(target=time.sleep, args=(1_000,)).start()
        atexit.register(time.sleep, 1_000)

        class Noisy(Module): pass
        Alias = Noisy
        """,
    )
    assert loaded("noisy.py")[1].entry == "noisy:Noisy"


def test_code_that_hangs_is_stopped_with_all_that_it_started(here: Path) -> None:
    hanging = """
        import subprocess, sys, time
        child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1000)"])
        open(PATH, "w").write(str(child.pid))
        time.sleep(1000)
    """
    write("hang.py", hanging.replace("PATH", repr(str(here / "pid"))))
    artifact = pack([Entry(name="hang.py", content=Path("hang.py"))], Path("out"))
    with pytest.raises(ModuleError, match=r"importing hang.py took longer than 5 s and was stopped"):
        describe(artifact.path, "hang", None, label="hang.py", timeout=5)
    try:
        child = os.pidfd_open(int((here / "pid").read_text()))
    except ProcessLookupError:
        return
    ended, _, _ = select.select([child], [], [], 30)
    os.close(child)
    assert ended
