"""Files of tasks, wherever they come from, as the beginning of a group."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from stretto.state.environment import Environment
from stretto.state.pstate import PREFIX
from stretto.state.task_meta import APPLIED, PRODUCER, SEALED, U64, encode_producer, producers_in
from stretto.vocabulary.types import Offset, ProducerId, TaskId

if TYPE_CHECKING:
    from stretto.state.environment import WriteTransaction

HOPS = "$hops"
"""Database of what topologies send to other tasks; its keys begin with a topology."""


def make_seed(folders: Mapping[TaskId, Path], end: Offset) -> None:
    """Turn task files of a snapshot into those of one group whose log begins at ``end``.

    A producer is open in the whole group or not at all: one that any task knows, all of them know. What tasks
    know of one another's hops is forgotten. All of them were answered when the tasks were cut, and numbers
    that one task remembers may be of hops that another made behind its own cut, and will make again.
    """
    environments: dict[TaskId, Environment] = {}
    try:
        for task, folder in folders.items():
            environments[task] = Environment(folder)
        known: set[ProducerId] = set()
        for task, environment in environments.items():
            known.update(environment.write(partial(_producers_in, environment, task)))
        for environment in environments.values():
            environment.write(partial(_begin_at, environment, known, end))
            environment.write(partial(_forget_hops, environment))
            environment.sync()
    finally:
        for environment in environments.values():
            environment.close()


def _producers_in(environment: Environment, task: TaskId, txn: WriteTransaction) -> list[ProducerId]:
    return [producer for producer, _ in producers_in(txn, environment.open_db("meta", txn), task)]


def _forget_hops(environment: Environment, txn: WriteTransaction) -> None:
    txn.drop(environment.open_db(PREFIX + HOPS, txn), delete=False)


def _begin_at(
    environment: Environment, known: Collection[ProducerId], end: Offset, txn: WriteTransaction
) -> None:
    meta = environment.open_db("meta", txn)
    for producer in known:
        txn.put(PRODUCER + U64.pack(producer), encode_producer(None), overwrite=False, db=meta)
    txn.put(APPLIED, U64.pack(end), db=meta)
    txn.delete(SEALED, db=meta)
