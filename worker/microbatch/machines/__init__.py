"""The machines of microbatches: one coordinator for each topology, and one participant for each of its tasks.

Both have ``step(event, now)``, which returns effects, and nothing else changes them. They live at most as
long as the epoch in which their worker leads the task: a driver makes them when the leader has applied what
it inherited, and forgets them when it no longer leads, or when the code changes. Start with ``coordinator``.

| module | holds |
|---|---|
| ``coordinator``, ``participant`` | the machines: the side of task 0, and the side of each task |
| ``events``, ``effects``, ``settings`` | what happens to them, what they want done, and what options say |
| ``messages`` | what coordinator and participants tell each other |
| ``guards`` | every safety rule, by name, for the simulator's mutants |

They are pure, by the ban of ``replog/core``: no clock, no chance, no IO, no threads, no logs.
``stretto.sim.microbatch`` runs them in a simulated world. They may import the vocabulary and
``stretto.state.microbatch_entries``, and nothing else of the worker.
"""
