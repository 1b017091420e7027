"""The machine of streams: one stream topology on one task, in one epoch of its leader.

``Stream.step(event, now)`` returns effects, and nothing else changes a stream. Start with ``stream``.

| module | holds |
|---|---|
| ``stream`` | the machine, and the life of a batch |
| ``events``, ``effects``, ``settings`` | what happens to it, what it wants done, and what options say |
| ``stored`` | what it keeps in rows of its task, and finds there when it begins |
| ``batches`` | what it has under way |
| ``cursor`` | how far it is with one depot |
| ``pace`` | how many records run at once |
| ``failed`` | records that failed: tried again when, or parked |
| ``outbox``, ``inbox`` | hops to other tasks that are not done, and hops of others that have run here |
| ``guards`` | every safety rule of hops, by name, for the simulator's mutants |

It is pure, by the ban of ``replog/core``: no clock, no chance, no IO, no threads, no logs.
``stretto.sim.stream`` runs it in a simulated world. It may import the vocabulary, ``stretto.pstate``, and
what executors answer (``worker.executors.protocol`` and ``replies``), and nothing else of the worker.
"""
