"""The unit runner chooses the task that a cluster does: the cases of :mod:`tests.support.placements`."""

from __future__ import annotations

import msgspec
import pytest

import stretto.testing
from stretto.errors import UsageError
from tests.support.placements import ANY, CASES, TASKS, Case, Placed, Refused


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_the_unit_runner_chooses_the_tasks_of_the_table(case: Case) -> None:
    with stretto.testing.module(Placed, tasks=TASKS) as m:
        if isinstance(case.expected, Refused):
            with pytest.raises(UsageError, match=case.expected.why):
                m.append(case.depot, case.by("unit"))
            return
        m.append(case.depot, case.by("unit"))
        [task] = [task for task, records in enumerate(m._depots[case.depot]) if records]
        assert case.expected in (task, ANY)
        assert msgspec.json.decode(m._depots[case.depot][task][0]) == case.plain("unit")


def test_bytes_need_a_task_where_a_cluster_wants_one() -> None:
    with stretto.testing.module(Placed, tasks=TASKS) as m:
        with pytest.raises(UsageError, match="depot by_field is partitioned by 'key', and bytes do not tell"):
            m.append("by_field", b"{}")
        m.append("by_field", b"{}", task=3)
        m.append("on_one", b"{}", b"{}")
        m.append("anywhere", b"{}")
        assert [len(records) for records in m._depots["on_one"]] == [2, 0, 0, 0, 0, 0, 0, 0]
