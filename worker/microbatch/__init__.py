"""Microbatches: a topology that takes effect exactly once, on all tasks or on none.

One microbatch is (id, version). Task 0 keeps the *record* of the latest one; the leader of task 0 runs its
:class:`~stretto.worker.microbatch.coordinator.Coordinator`, and the leader of each task a
:class:`~stretto.worker.microbatch.participant.Participant`. Both are pure: events in, effects out.

1. **Primed.** The record fixes which records of every depot partition are the input. It is replicated.
2. **Run.** Tasks run their records, then the calls that hop to them, round after round, until none are left.
   What they change stays in the executors, as a layer that nobody else sees.
3. **Staged.** Every task that ran anything replicates its changes, for this (id, version), invisible.
4. **Committed.** When all have, task 0 replicates that. This is the one moment that decides.
5. **Rolled.** Every task replicates that the staged changes take effect, in one transaction. When all have,
   the next id may be primed.

Whatever goes wrong before 4 discards: the same input again as version + 1. After it there is only forward,
and every step may be repeated. :mod:`~stretto.worker.microbatch.guards` has the rules this rests on.

| module | holds |
|---|---|
| ``entries`` | what is replicated, and what it does to the rows of a task when it is applied |
| ``messages`` | what coordinator and participants tell each other |
| ``machine`` | events, effects and settings of both |
| ``coordinator``, ``participant`` | the machines |
| ``guards`` | every safety rule, by name, for the simulator's mutants |
| ``waiting`` | appenders that wait until their records are processed, and what they are told |
| ``desk`` | the driver of both machines in a worker |
"""
