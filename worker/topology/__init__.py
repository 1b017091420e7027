"""Topologies in a worker: what their functions did in an executor becomes entries of the replog.

| module | holds |
|---|---|
| ``stream`` | a stream topology on one task, as a state machine: what to run, to append and to send next |
| ``work`` | what happens to it, and what it wants done |
| ``rows`` | what it keeps in replicated state beside PStates: progress, retries, failures |
| ``desk`` | the driver of all streams of a worker |
| ``hops`` | steps that run on other tasks: sent to their leaders, and taken from others |
| ``entries`` | entries that the worker itself appends |
"""
