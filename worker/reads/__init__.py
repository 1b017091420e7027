"""Reads of clients in a worker: of rows and of depots, under the leader's lease or within a staleness.

| module | holds |
|---|---|
| ``reads`` | any read: asked of the core, looked up on the reading thread, answered; open it first |
| ``point_reads`` | the short way of most: rows that the loop itself looks up |
| ``page_residency`` | whether the rows are likely in memory, so that the loop may |
| ``row_queries`` | what is asked about rows: checked, and looked up in the applied state |
| ``parked_reads`` | reads that wait at the end of a depot until it grows |

It may import ``stretto.worker.replica`` and what is below it; of the worker itself it knows ``Host``.
"""
