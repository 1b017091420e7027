"""A module that nobody gave a size gets one that the cluster can run; what is shown after its launch."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stretto.cli.deploying.deploy import next_steps
from stretto.cli.deploying.sizing import Shape, shape_for
from stretto.conductor.planning.assignment import assign
from stretto.control import ModuleView
from stretto.errors import UsageError
from stretto.specs.modules import DepotSpec


def shape(tasks: int, threads: int, workers: int, factor: int) -> Shape:
    return Shape(tasks=tasks, threads=threads, workers=workers, factor=factor)


def placed(nodes: int, of: Shape) -> set[str]:
    """The nodes that a module of this size has processes on."""
    assignment = assign(
        "m",
        generation=0,
        tasks=of.tasks,
        threads=of.threads,
        workers=of.workers,
        factor=of.factor,
        processes={f"node-{number}": 0 for number in range(nodes)},
    )
    return {each.node for each in assignment.workers}


@pytest.mark.parametrize(
    ("nodes", "expected"),
    [
        (1, shape(8, 2, 1, 1)),
        (2, shape(8, 4, 1, 2)),
        (3, shape(16, 6, 1, 3)),
        (4, shape(16, 8, 2, 3)),
        (10, shape(64, 20, 4, 3)),
    ],
)
def test_sizes_follow_the_number_of_nodes(nodes: int, expected: Shape) -> None:
    assert shape_for(nodes) == expected


@given(st.integers(1, 60))
def test_all_nodes_take_part_in_what_was_chosen(nodes: int) -> None:
    assert len(placed(nodes, shape_for(nodes))) == nodes


sizes = st.none() | st.integers(1, 64)


@given(st.integers(1, 20), st.none() | st.sampled_from([1, 2, 4, 8, 64, 256]), sizes, sizes, sizes)
def test_what_is_chosen_fits_what_is_given(
    nodes: int, tasks: int | None, threads: int | None, workers: int | None, factor: int | None
) -> None:
    chosen = shape_for(nodes, tasks=tasks, threads=threads, workers=workers, factor=factor)
    found = (chosen.tasks, chosen.threads, chosen.workers, chosen.factor)
    given = (tasks, threads, workers, factor)
    assert all(size in (None, mine) for size, mine in zip(given, found, strict=True))
    try:
        placed(nodes, chosen)
    except UsageError:
        # Only what a person said can be wrong.
        assert (
            (factor or 0) > nodes
            or (threads or 0) > (tasks or threads or 0)
            or (workers or 0) > min(each for each in (tasks, threads, workers) if each is not None)
        )


def test_without_nodes_it_is_the_planner_who_says_so() -> None:
    with pytest.raises(UsageError, match="needs 1 nodes, and there are 0; start more nodes"):
        placed(0, shape_for(0))


def launched(*depots: DepotSpec) -> ModuleView:
    return ModuleView(
        module="Shop",
        state="running",
        artifact="",
        tasks=8,
        threads=2,
        workers=1,
        replication_factor=1,
        depots=depots,
        pstates=(),
        processes=(),
        groups=2,
        led=2,
        problems=(),
    )


def steps(view: ModuleView, samples: dict[str, str] | None = None) -> list[str]:
    return [line.strip() for line in next_steps(view, samples).splitlines()[1:-1]]


def test_the_record_that_is_shown_is_one_for_a_shell() -> None:
    one, two = DepotSpec(name="one"), DepotSpec(name="two", partition_by="user")
    assert steps(launched(one, two), {"two": '"it\'s"'}) == [
        "append:  stretto append Shop two '\"it'\"'\"'s\"'",
        "follow:  stretto tail Shop two",
    ]


def test_where_no_record_is_known_a_file_is_asked_for_and_a_depot_that_needs_python_is_passed_over() -> None:
    chosen, one = DepotSpec(name="chosen", rule="custom"), DepotSpec(name="one")
    assert steps(launched(chosen, one)) == [
        "append:  stretto append Shop one --file RECORDS.ndjson",
        "follow:  stretto tail Shop one",
    ]
    assert steps(launched(chosen)) == []
