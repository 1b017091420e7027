"""What the functions of a module may be, and what their author reads when they may not."""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, cast

import pytest

from stretto import Depot, Module, PState, microbatch, query, step, stream
from stretto.artifact.importing import manifest
from stretto.control import ModuleManifest
from stretto.errors import DeclarationError
from stretto.module.module import declarations
from stretto.pstate.types import Plain
from stretto.specs.modules import QuerySpec, TopologySpec


def line_of(text: str) -> int:
    """The line of this file that holds ``text`` for the first time."""
    source = inspect.getsource(sys.modules[__name__]).splitlines()
    return next(number for number, line in enumerate(source, 1) if text in line)


@dataclass
class Visit:
    page: str


def helped(module: Any, page: str) -> None:
    module.helped_pages.add(page)


class Site(Module):
    visits = Depot(partition_by="page")
    more_visits = Depot()
    alarms = Depot()
    views = PState(dict[str, int])
    last = PState(dict[str, dict[str, Visit]])
    helped_pages = PState(set[str])
    hidden = PState(set[str])
    loud = PState(set[int])

    @stream(visits, more_visits, retry="all-after", writes=[hidden])
    def see(self, visit: Visit) -> None:
        self.views.increment(visit.page)
        self._remember(visit)
        helped(self, visit.page)

    def _remember(self, visit: Visit) -> None:
        for _ in range(1):
            list(map(lambda page: self.later.at(page)(visit), [visit.page]))  # noqa: C417

    @step
    def later(self, visit: Visit) -> None:
        self.last.set(visit.page, "now", value=visit)

    @microbatch(alarms, batch=True)
    def ring(self, alarms: list[int]) -> None:
        for alarm in alarms:
            if self.views.get("x"):
                self.shout.everywhere()(alarm)

    @step(batch=True)
    def shout(self, calls: list[tuple[int]]) -> None:
        self.loud.add(len(calls))

    @query(key="page")
    def views_of(self, page: str) -> int:
        return int(self.views.get(page))


def test_a_manifest_tells_what_a_worker_drives() -> None:
    found: ModuleManifest = manifest(Site, "site:Site")
    assert found.topologies == (
        TopologySpec(
            name="see",
            kind="stream",
            depots=("visits", "more_visits"),
            pstates=("helped_pages", "hidden", "last", "views"),
            retry="all-after",
        ),
        TopologySpec(name="ring", kind="microbatch", depots=("alarms",), pstates=("loud",), batch=True),
    )
    assert found.queries == (
        QuerySpec(name="views_of", parameters=("page",), key="page", key_type=Plain("str")),
    )
    functions = declarations(Site).functions
    assert functions.topologies["see"].steps == {"later"}
    assert functions.writers["last"] == "see"


def test_a_module_inherits_functions_and_can_replace_what_they_use() -> None:
    class Louder(Site):
        visits = Depot(partition_by=lambda record, tasks: 0)

        @step
        def later(self, visit: Visit) -> None:
            self.views.set(visit.page, value=0)

    found = declarations(Louder).functions.topologies["see"]
    assert found.depots == ("visits", "more_visits")
    assert "last" not in found.writes
    assert Louder.visits.spec.rule == "custom"


def refused(declare: Callable[[], None], marker: str) -> str:
    """The sentence, after checking that it names the line which holds ``marker``."""
    with pytest.raises(DeclarationError) as error:
        declare()
    place = f"{__file__}:{line_of(marker)}: "
    assert str(error.value).startswith(place), str(error.value)
    return str(error.value).removeprefix(place)


def test_two_topologies_that_write_one_pstate_are_refused() -> None:
    def declare() -> None:
        class Wrong(Module):
            one = Depot()
            two = Depot()
            counts = PState(dict[str, int])

            @stream(one)
            def first(self, record: str) -> None:
                self.count.at(record)(record)

            @microbatch(two)  # marker two writers
            def second(self, record: str) -> None:
                self.count.at(record)(record)

            @step
            def count(self, word: str) -> None:
                self.counts.increment(word)

    assert refused(declare, "# marker two writers") == (
        "Wrong.second: it writes PState counts, and so does first; a PState has one writing topology: "
        "give each its own, or let one topology take the records of both depots"
    )


def test_a_step_of_two_topologies_may_read() -> None:
    class Fine(Module):
        one = Depot()
        two = Depot()
        counts = PState(dict[str, int])

        @stream(one)
        def first(self, record: str) -> None:
            self.counts.increment(record)
            self.look.at(record)(record)

        @stream(two)
        def second(self, record: str) -> None:
            self.look.at(record)(record)

        @step
        def look(self, word: str) -> None:
            self.counts.get(word)

    assert declarations(Fine).functions.writers == {"counts": "first"}


def test_a_step_that_nobody_reaches_is_refused() -> None:
    def declare() -> None:
        class Wrong(Module):
            one = Depot()

            @stream(one)
            def first(self, record: str) -> None:
                pass

            @step  # marker unreached
            def count(self, word: str) -> None:
                self.count.at(word)(word)

    assert refused(declare, "# marker unreached").startswith(
        "Wrong.count: no topology hops to this step; hop"
    )


def test_a_depot_of_elsewhere_is_refused() -> None:
    elsewhere = Depot()

    def declare() -> None:
        class Wrong(Module):
            sentences = Depot()

            @stream(elsewhere)  # marker elsewhere
            def first(self, record: str) -> None:
                pass

    assert "is no Depot of this module; there is sentences" in refused(declare, "# marker elsewhere")

    def another() -> None:
        class Wrong(Module):
            visit = Depot()

            @stream(Site.visits)  # marker another module's
            def first(self, record: str) -> None:
                pass

    assert refused(another, "# marker another module's") == (
        "Wrong.first: visits is no Depot of this module; did you mean visit?"
    )


def test_a_topology_of_no_depot_is_refused() -> None:
    def declare() -> None:
        class Wrong(Module):
            @stream()  # marker no depot
            def first(self, record: str) -> None:
                pass

    assert "say whose records it takes: @stream(depot)" in refused(declare, "# marker no depot")


def test_a_decorator_without_its_depot_is_refused() -> None:
    with pytest.raises(DeclarationError, match=r"first: @stream needs its depots: @stream\(depot\)"):

        class Wrong(Module):
            @stream  # type: ignore[arg-type]
            def first(self, record: str) -> None:  # type: ignore[misc]
                pass


def plain(self: Any) -> None:
    pass


def two(self: Any, one: int, other: int) -> None:
    pass


def starred(self: Any, *records: int) -> None:
    pass


def unknown(self: Any, record: Nonsense) -> None:  # type: ignore[name-defined]  # noqa: F821
    pass


class Opaque:
    pass


def opaque(self: Any, record: Opaque) -> None:
    pass


def opaque_inside(self: Any, record: dict[str, list[Opaque]]) -> None:
    pass


def mixed(self: Any, record: Visit | list[int] | tuple[int, ...]) -> None:
    pass


async def coroutine(self: Any, record: int) -> None:
    pass


def generator(self: Any, record: int) -> Iterator[int]:
    yield record


@pytest.mark.parametrize(
    ("function", "sentence"),
    [
        (plain, "it takes self and a record, and nothing else"),
        (two, "it takes self and a record, and nothing else"),
        (starred, r"its parameter \*records: 'int' is not plain; name each one"),
        (unknown, "name 'Nonsense' is not defined; define or import it above the module"),
        (opaque, "Opaque cannot be decoded; use plain types, dataclasses"),
        (opaque_inside, "Opaque cannot be decoded; use plain types, dataclasses"),
        (mixed, "cannot be decoded: Type unions may not contain more than one array-like"),
        (coroutine, "it is a coroutine, which nobody awaits"),
        (generator, "it is a generator, which nobody"),
    ],
)
def test_functions_that_take_no_record_are_refused(function: Any, sentence: str) -> None:
    depot = Depot()
    with pytest.raises(DeclarationError, match=sentence) as error:
        type("Wrong", (Module,), {"depot": depot, "first": stream(depot)(function)})
    line = function.__code__.co_firstlineno
    assert str(error.value).startswith(f"{__file__}:{line}: Wrong.first: ")


def listless(self: Any, records: int) -> None:
    pass


def tupleless(self: Any, calls: list[str]) -> None:
    pass


def test_with_batch_a_function_takes_a_list() -> None:
    depot = Depot()
    with pytest.raises(
        DeclarationError, match=r"with batch its parameter is a list of the records, .* not int"
    ):
        type("Wrong", (Module,), {"depot": depot, "first": stream(depot, batch=True)(listless)})
    with pytest.raises(DeclarationError, match=r"annotate it as list\[tuple\[str\]\]"):
        type("Wrong", (Module,), {"hop": step(batch=True)(tupleless)})


@pytest.mark.parametrize(
    ("decorated", "sentence"),
    [
        (
            lambda depot: stream(depot, retry=cast(Any, "twice"))(opaque),
            "retry is one of 'individual', 'all-after', 'none'",
        ),
        (lambda depot: stream(depot, depot)(listless), "it names a depot twice"),
        (
            lambda depot: stream(depot, writes=[depot])(listless),
            "writes names PStates of this module; depot is",
        ),
    ],
)
def test_wrong_options_of_a_topology_are_refused(
    decorated: Callable[[Depot[Any]], Any], sentence: str
) -> None:
    depot = Depot()
    with pytest.raises(DeclarationError, match=sentence):
        type("Wrong", (Module,), {"depot": depot, "first": decorated(depot)})


def test_what_is_no_function_is_refused() -> None:
    depot = Depot()
    for wrong in (staticmethod(plain), functools.partial(two, 1), 7):
        with pytest.raises(
            DeclarationError, match="@stream stands above a function of the module, not above"
        ):
            stream(depot)(wrong)  # type: ignore[arg-type]


def test_names_that_self_has_are_refused() -> None:
    def declare() -> None:
        class Wrong(Module):
            task = PState(set[int])  # type: ignore[assignment]  # marker task

    assert refused(declare, "# marker task") == (
        "Wrong.task: self.task is something else in every module; choose another name"
    )


def test_a_module_has_no_init() -> None:
    with pytest.raises(DeclarationError, match="Wrong: a module has no __init__"):

        class Wrong(Module):
            def __init__(self) -> None:
                pass


def test_one_function_under_two_names_is_refused() -> None:
    with pytest.raises(
        DeclarationError, match=r"Wrong\.again: this is the same topology as 'first'; give each a"
    ):

        class Wrong(Module):
            depot = Depot()

            @stream(depot)
            def first(self, record: int) -> None:
                pass

            again = first


def test_queries_that_change_or_hop_are_refused() -> None:
    def declare() -> None:
        class Wrong(Module):
            counts = PState(dict[str, int])

            @query  # marker changing query
            def ask(self, word: str) -> None:
                self.counts.delete(word)

    assert "a query only reads, and ask changes counts" in refused(declare, "# marker changing query")


def test_a_query_whose_key_is_no_parameter_is_refused() -> None:
    def declare() -> None:
        class Wrong(Module):
            @query(key="wrod")  # marker key
            def ask(self, word: str) -> None:
                pass

    assert refused(declare, "# marker key") == (
        "Wrong.ask: it has no parameter 'wrod' as its key; did you mean word?"
    )


def test_what_combines_takes_the_parts_and_the_arguments() -> None:
    def declare() -> None:
        class Wrong(Module):
            @query
            def ask(self, word: str) -> int:
                return 0

            @ask.combine  # marker combine
            def total(self, parts: list[int]) -> int:
                return sum(parts)

    assert refused(declare, "# marker combine") == (
        "Wrong.total: it takes self, the list of parts, and what its query takes (word)"
    )
