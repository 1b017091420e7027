"""The picture of the demo fits the terminal, and says how to stop it."""

from __future__ import annotations

import pytest
from rich.console import Console

from stretto import control
from stretto.cli.demo.load import Account
from stretto.cli.demo.view import render
from stretto.vocabulary.groups import GroupKey
from stretto.vocabulary.types import Epoch, TaskId, WorkerId
from stretto.wire.messages import GroupView

WORKERS = tuple(WorkerId(f"WordCount-{number}") for number in range(3))
EXPORTS = ['export PATH=/home/ann/stretto/.venv/bin:"$PATH"', "export STRETTO_BOOTSTRAP=127.0.0.1:27940"]
LAST_TRY = "stretto leadership disallow node-1"


def picture(width: int, height: int, *problems: str) -> list[str]:
    nodes = tuple(
        control.NodeView(
            node=f"node-{number}",
            address="127.0.0.1:1",
            labels={},
            workers=1,
            running=1,
            leaders=1,
            leadership_allowed=True,
        )
        for number in (1, 2, 3)
    )
    module = control.ModuleView(
        module="WordCount",
        state="running",
        artifact="",
        tasks=8,
        threads=4,
        workers=1,
        replication_factor=3,
        depots=(),
        pstates=(),
        processes=tuple(
            control.WorkerView(worker=worker, node=f"node-{number}", address="127.0.0.1:2")
            for number, worker in enumerate(WORKERS, start=1)
        ),
        groups=4,
        led=4,
        problems=problems,
    )
    groups = [
        GroupView(
            GroupKey("WordCount", 1, number),
            (TaskId(number),),
            WORKERS,
            Epoch(2),
            WORKERS[number % 3],
            WORKERS[:2],
            8,
        )
        for number in range(4)
    ]
    frame = render(
        nodes=nodes,
        module=module,
        groups=groups,
        account=Account(1_285_573, 0, 0, 16_879.0, 176.0, ""),
        pids={str(worker): 32_700 + number for number, worker in enumerate(WORKERS)},
        exports=EXPORTS,
        ui="http://127.0.0.1:8888",
    )
    console = Console(width=width, height=height, color_system=None, force_terminal=False)
    with console.capture() as captured:
        console.print(frame)
    return [line.strip() for line in captured.get().splitlines()]


@pytest.mark.parametrize(("width", "height"), [(80, 24), (200, 50)])
def test_a_terminal_of_the_usual_size_has_all_of_it(width: int, height: int) -> None:
    lines = picture(width, height)
    assert len(lines) <= height
    assert lines[0] == "stretto demo: WordCount is running; Ctrl-C stops it"
    assert [worker for worker in WORKERS if not any(worker in line for line in lines)] == []
    assert [line for line in lines if line[:1].isdigit() and line.endswith("2 of 3    WordCount-2")] != []
    assert [line for line in EXPORTS if line not in lines] == []
    assert lines[-1] == LAST_TRY


def test_where_lines_are_few_the_last_things_to_try_are_left_out_and_nothing_else() -> None:
    lines = picture(60, 20)
    assert len(lines) == 20
    assert "Ctrl-C stops it" in lines[0]
    assert [worker for worker in WORKERS if not any(worker in line for line in lines)] == []
    assert "kill -9 32700    # WordCount-0 leads: watch it fail over" in lines
    assert LAST_TRY not in lines


def test_what_is_wrong_is_never_left_out_for_things_to_try() -> None:
    problems = [f"something is wrong with group {number}" for number in range(8)]
    lines = picture(80, 24, *problems)
    assert len(lines) <= 24
    assert [problem for problem in problems if f"! {problem}" not in lines] == []
    # A heading without anything below it would announce nothing.
    assert picture(80, 16)[-1] == "all well"
