"""Where micro-batches begin and end."""

from __future__ import annotations

import pytest

from pyspark_stretto.options import Options
from pyspark_stretto.streaming import admitted, beginning, check_reachable
from stretto.errors import StrettoError, UsageError

OPTIONS = Options(module="Counts", depot="events")
BOUNDS = {0: (0, 10), 1: (5, 20)}


def test_without_a_limit_a_batch_goes_to_the_ends() -> None:
    assert admitted({0: 1, 1: 5}, {0: 10, 1: 5}, None) == {0: 10, 1: 5}


@pytest.mark.parametrize("most", [1, 2, 3, 10, 99, 101])
def test_a_batch_has_as_many_records_as_are_admitted_and_there(most: int) -> None:
    at = {0: 7, 1: 0, 2: 50}
    end = admitted(at, {0: 7, 1: 90, 2: 60}, most)
    assert sum(end.values()) - sum(at.values()) == min(most, 100)
    assert end[0] == 7
    assert end[1] <= 90
    assert end[2] <= 60


def test_tasks_share_a_batch_by_what_waits_on_them_and_none_starves() -> None:
    assert admitted({0: 0, 1: 0}, {0: 900, 1: 100}, 100) == {0: 90, 1: 10}
    at = {0: 0, 1: 0}
    for _ in range(30):
        at = admitted(at, {0: at[0] + 1_000_000, 1: 3}, 10)
    assert at[1] >= 0
    assert admitted({0: 0, 1: 0}, {0: 3, 1: 3}, 1) in ({0: 1, 1: 0}, {0: 0, 1: 1})


def test_ends_that_lie_behind_move_nothing_back() -> None:
    assert admitted({0: 8}, {0: 5}, None) == {0: 8}


def test_a_query_begins_where_the_depot_does_or_where_it_is_told() -> None:
    assert beginning(OPTIONS, BOUNDS) == {0: 0, 1: 5}
    assert beginning(Options(start=7), BOUNDS) == {0: 7, 1: 7}
    assert beginning(Options(start={1: 20}), BOUNDS) == {0: 0, 1: 20}
    with pytest.raises(UsageError, match="option start is 11 on task 0, where depot None has 0 to 10"):
        beginning(Options(start=11), BOUNDS)
    with pytest.raises(UsageError, match="names task 2"):
        beginning(Options(start={2: 0}), BOUNDS)


def test_a_checkpoint_of_records_that_are_not_there_is_told() -> None:
    check_reachable(OPTIONS, {0: 10, 1: 5}, BOUNDS)
    with pytest.raises(StrettoError, match="records 4 to 5 of task 1 were removed by the retention"):
        check_reachable(OPTIONS, {0: 10, 1: 4}, BOUNDS)
    with pytest.raises(
        UsageError, match="the checkpoint is at offset 11 of task 0, where depot events ends at 10"
    ):
        check_reachable(OPTIONS, {0: 11, 1: 5}, BOUNDS)
    with pytest.raises(UsageError, match="begin with a new checkpoint"):
        check_reachable(OPTIONS, {0: 10}, BOUNDS)
