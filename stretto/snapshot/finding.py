"""Where a snapshot lies, by its name: the cluster knows, also of modules that are gone."""

from __future__ import annotations

from stretto import control
from stretto.client.operating.cluster import Cluster
from stretto.errors import UsageError
from stretto.vocabulary.suggest import did_you_mean


def folder_of(cluster: Cluster, module: str, name: str) -> str:
    """The folder of a snapshot; raises UsageError if there is none of that name, or it is not complete."""
    known = cluster.ask(control.Snapshots(module=module))
    for snapshot in known:
        if snapshot.name == name:
            if snapshot.state != "complete":
                raise UsageError(f"snapshot {name} of {module} is {snapshot.state}; wait for it")
            return snapshot.folder
    if not known:
        raise UsageError(
            f"module {module} has no snapshot {name}, nor any other; see 'stretto snapshot list'"
        )
    nearest = did_you_mean(name, [snapshot.name for snapshot in known])
    raise UsageError(f"module {module} has no snapshot {name}; {nearest}")
