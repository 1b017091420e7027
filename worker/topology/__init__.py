"""Stream topologies and queries in a worker: what their functions did in an executor becomes entries.

What decides is a pure machine, in ``machine/``. The modules beside it carry out what the machine wants done.
Start with ``machine/stream.py`` for the theory, with ``streams`` for how a worker runs it.

| module | holds |
|---|---|
| ``machine`` | a stream topology on one task, as a state machine |
| ``streams`` | the driver of all streams of a worker |
| ``hops`` | steps that run on other tasks: sent to their leaders, and taken from others |
| ``rows`` | what a topology keeps in replicated state beside PStates: progress, retries, failures, hops |
| ``entries`` | entries that the worker itself appends |
| ``waiting`` | appenders that wait until topologies have processed their records |
| ``settling`` | people who wait until parked records are settled |
| ``hold`` | topologies held off for a moment, while a snapshot is cut |
| ``queries`` | queries: asked of executors of leaders, combined, answered |
| ``host`` | the worker, as the drivers of topologies see it |

It may import ``worker.executors`` and ``worker.replica``. It imports neither ``worker.microbatch``, which
builds on it, nor the worker's process: what a driver needs of that, it says in a protocol.
"""
