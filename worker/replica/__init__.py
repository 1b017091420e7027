"""One replica of a task group in a worker: its log, its applied state, and the driver of its core.

Begin with ``group``: :class:`~stretto.worker.replica.group.Group` steps the core and carries out its effects,
and its ``Host`` is all that a replica needs of the worker.

| module | holds |
|---|---|
| ``group`` | the driver: events in, effects out |
| ``tickets`` | who waits for the core's answers |
| ``outbox`` | entries for followers, until the end of the loop's turn |
| ``applier``, ``apply_batching`` | the threads that apply and read the state; how much is applied at once |
| ``fsync``, ``shortening`` | when a write counts; truncating and cutting the log off the loop |
| ``storage``, ``takeover`` | a replica's folder: opened, renewed, seeded, taken over from another grouping |
| ``disk`` | threads for work on files |
| ``digests`` | what a state adds up to at a marker |
| ``meter``, ``views`` | what is measured of a replica, and told of it to people |

It imports the core and the log (``stretto.replog``), the applied state (``stretto.state``),
``stretto.catchup``, ``stretto.snapshot`` and what is below these; of ``stretto.worker`` it imports nothing
else.
"""
