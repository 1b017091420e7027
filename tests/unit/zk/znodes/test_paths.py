from __future__ import annotations

import pytest

from stretto.errors import UsageError
from stretto.options import CLUSTER, Level
from stretto.replog.core.record import Registration
from stretto.vocabulary.groups import GroupKey
from stretto.vocabulary.types import Incarnation, WorkerId
from stretto.zk.znodes.paths import Paths

WORKER = WorkerId("worker-1")
LIFE = Incarnation("0f1e")


def test_the_layout_is_the_one_that_others_rely_on() -> None:
    paths = Paths()
    group = GroupKey("counts", 3, 7)
    assert paths.conductor_leader == "/stretto/conductor/leader"
    assert paths.node("n1", LIFE) == "/stretto/nodes/n1/0f1e"
    assert paths.worker(WORKER) == "/stretto/workers/worker-1"
    assert paths.registration(WORKER, LIFE) == "/stretto/workers/worker-1/0f1e"
    assert paths.registration_of(Registration(WORKER, LIFE)) == paths.registration(WORKER, LIFE)
    assert paths.spec("counts") == "/stretto/modules/counts/spec"
    assert paths.assignment("counts") == "/stretto/modules/counts/assignment"
    assert paths.group(group) == "/stretto/modules/counts/groups/3/7"
    assert paths.resign(group) == "/stretto/modules/counts/groups/3/7/resign"
    assert paths.options == "/stretto/options"
    assert paths.options_of(CLUSTER) == "/stretto/options/cluster"
    module = "/stretto/options/modules/counts"
    assert paths.options_of(Level.of("counts")) == module
    assert paths.options_of(Level.of("counts", depot="d")) == f"{module}/depots/d"
    assert paths.options_of(Level.of("counts", topology="t")) == f"{module}/topologies/t"
    assert paths.options_of(Level.of("counts", pstate="p")) == f"{module}/pstates/p"
    assert str(group) == "counts/3/7"


def test_clusters_share_an_ensemble_under_different_roots() -> None:
    assert Paths("/prod/stretto").workers == "/prod/stretto/workers"


@pytest.mark.parametrize("root", ["", "/", "stretto", "/stretto/", "//stretto", "/a/../b", "/zookeeper"])
def test_a_root_that_zookeeper_would_refuse_is_refused_in_a_sentence(root: str) -> None:
    with pytest.raises(UsageError, match="cannot be the metastore's root"):
        Paths(root)


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "a\x00b", "line\nbreak"])
def test_a_name_cannot_leave_its_place(name: str) -> None:
    for path in (Paths().module, lambda name: Paths().worker(WorkerId(name))):
        with pytest.raises(UsageError, match="cannot be a name in the metastore"):
            path(name)
