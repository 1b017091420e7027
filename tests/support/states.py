"""Changes of PStates, sent as entries over the wire: what topologies do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from stretto.module.partition import owner_of
from stretto.pstate.changes import pack
from stretto.pstate.edit import Editor
from stretto.pstate.overlay import NoRows
from stretto.pstate.tree import compile_type
from stretto.pstate.types import describe
from stretto.replog.frame import Kind
from stretto.vocabulary.types import ProducerId, TaskId
from stretto.wire import messages as wire
from tests.support.cluster import DEADLINE_SECONDS, Cluster
from tests.support.waiting import wait_until
from tests.support.wires import Wire


def append_changes(cluster: Cluster, task: int, payload: bytes) -> wire.ToClient:
    group = next(number for number, plan in enumerate(cluster.plans) if task in plan.tasks)
    with Wire(cluster.leader(group).address, worker="operator") as caller:
        message = wire.AppendBatch(
            caller.number(), cluster.key_of(group), Kind.STATE, TaskId(task), ProducerId(0), 0, 1
        )
        return caller.ask(message, payload)


def change(
    cluster: Cluster, pstate: str, annotation: Any, changes: dict[Any, Callable[[Editor], Any]]
) -> None:
    """Carry out changes, each on the task of its key, as if nothing was there before."""
    tasks = cluster.assignment.tasks
    root = compile_type(describe(annotation), annotation)
    for task in range(tasks):
        editor = Editor(root, NoRows())
        mine = [edit for key, edit in changes.items() if owner_of(key, tasks) == task]
        for edit in mine:
            edit(editor)
        if mine:
            payload = pack({pstate: editor.changes()})
            wait_until(
                f"task {task} takes changes of {pstate}",
                lambda task=task, payload=payload: is_taken(append_changes(cluster, task, payload)),  # type: ignore[misc]
                DEADLINE_SECONDS,
            )


def is_taken(answer: wire.ToClient) -> bool:
    """Whether changes were taken; if not they are sent again, since applying them twice changes nothing."""
    assert isinstance(answer, wire.Appended | wire.Refused | wire.Unknown), answer
    return isinstance(answer, wire.Appended)


def put(cluster: Cluster, pstate: str, annotation: Any, value: dict[Any, Any]) -> None:
    """Put whole values under keys of a dict."""

    def setter(key: Any) -> Callable[[Editor], Any]:
        return lambda editor: editor.set(key, value=value[key])

    change(cluster, pstate, annotation, {key: setter(key) for key in value})
