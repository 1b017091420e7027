"""The worker process: the replicas of its task groups, their clients and their peers, on one loop.

Begin with ``process``: the :class:`~stretto.worker.process.Worker` makes all parts, hands them what comes
from the network and the metastore, and tells one part what it must know of another. Then read ``replica``:
the driver of a group, which everything else goes through.

| where | holds |
|---|---|
| ``process`` | the worker: its parts, its sessions, its options, and how it stops |
| ``settings``, ``start``, ``__main__`` | from a command line to a worker that runs |
| ``clients``, ``calls``, ``metadata`` | what clients ask: appends, calls of the control plane, who leads |
| ``telemetry``, ``snapshots`` | what the worker measures; its part in snapshots of the module |
| ``replica/`` | one replica: the driver of the replication core, its log and its applied state |
| ``reads/`` | reads of the applied state |
| ``executors/`` | child processes that run the module's functions |
| ``topology/``, ``microbatch/`` | the topologies, which become entries of the replog |
| ``hosting/`` | which replicas the worker has: opened, stopped, moved, regrouped, trimmed |
| ``scans/`` | pinned states that are read as a whole, by a child process |

A package imports only those to its left, and none of them the modules of this folder::

    stretto.catchup < replica < reads, executors < topology < microbatch < hosting, scans < worker

What a package needs of the worker it says as a protocol, mostly called ``Host``.
"""

if __name__ == "worker":
    raise ImportError("this folder installs as stretto.worker; write 'import stretto.worker'")
