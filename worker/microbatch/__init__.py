"""Microbatches: a topology that takes effect exactly once, on all tasks or on none.

One microbatch is (id, version). Task 0 keeps the *record* of the latest one; the leader of task 0 runs its
:class:`~stretto.worker.microbatch.machines.coordinator.Coordinator`, and the leader of each task a
:class:`~stretto.worker.microbatch.machines.participant.Participant`. Both are pure: events in, effects out.

1. **Primed.** The record fixes which records of every depot partition are the input. It is replicated.
2. **Run.** Tasks run their records, then the calls that hop to them, round after round, until none are left.
   What they change stays in the executors, as a layer that nobody else sees.
3. **Staged.** Every task that ran anything replicates its changes, for this (id, version), invisible.
4. **Committed.** When all have, task 0 replicates that. This is the one moment that decides.
5. **Rolled.** Every task replicates that the staged changes take effect, in one transaction. When all have,
   the next id may be primed.

Whatever goes wrong before 4 discards: the same input again as version + 1. After it there is only forward,
and every step may be repeated. :mod:`~stretto.worker.microbatch.machines.guards` has the rules this rests on.

What decides is two pure machines, in ``machines/``; ``microbatches`` is their driver in a worker. Start with
this page, then ``machines/coordinator.py``. What is replicated, and what it does when it is applied, is in
:mod:`stretto.state.microbatch_entries`.

It may import ``worker.topology``, whose rows, entries and network it shares, ``worker.executors`` and
``worker.replica``; and not the worker's process: what the driver needs of that, it says in a protocol.
"""
