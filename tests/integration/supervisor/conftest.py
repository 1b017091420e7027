"""What the tests of supervisors share."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from kazoo.client import KazooClient

from stretto.zk.server.embedded import EmbeddedZooKeeper
from stretto.zk.znodes.paths import Paths
from tests.integration.supervisor.node import Node, Start
from tests.support.servers import operator, paths, proxy, zookeeper

__all__ = ["operator", "paths", "proxy", "zookeeper"]

_NODES = pytest.StashKey[list[Node]]()


@pytest.fixture
def nodes(
    request: pytest.FixtureRequest,
    tmp_path: Path,
    zookeeper: EmbeddedZooKeeper,
    operator: KazooClient,
    paths: Paths,
) -> Iterator[Start]:
    """Makes nodes, which it does not start; at the end no process of theirs is left."""
    made = request.node.stash[_NODES] = []
    with ExitStack() as closing:

        def new(name: str = "n1", hosts: str = zookeeper.address, folder: Path = tmp_path) -> Node:
            node = Node(folder, name, hosts, operator, paths)
            closing.callback(node.finish)
            made.append(node)
            return node

        yield new


@pytest.fixture
def node(nodes: Start) -> Node:
    return nodes()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
    call: pytest.CallInfo[None],
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.failed:
        for node in item.stash.get(_NODES, []):
            report.sections.append((f"node {node.name}", node.describe()))
        report.sections.append(("reproduce with", f"pytest '{item.nodeid}' --count 20 -x"))
    return report
