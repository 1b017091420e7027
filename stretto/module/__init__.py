"""The module API: what a person declares, and what runs their functions on one task.

Nothing here knows a socket or a file, or does anything by the clock. It imports PStates, specs and the
vocabulary. Start with ``module``, the class that a person's module derives from.

A *topology* is a function that takes the records of depots, and the steps that it hops to, on this task or
on another. What they did to the PStates of a task comes out as changes of rows, what is to run elsewhere as
calls; the driver makes both last. The same code runs in executors and in :mod:`stretto.testing`.

| module | holds |
|---|---|
| ``module``, ``declaration`` | the classes ``Module``, ``Depot`` and ``PState`` |
| ``partition`` | how a record chooses its task, and what a value looks like as a record |
| ``functions`` | the decorators, and what they make of a function |
| ``signatures`` | what a function takes, and how that is decoded |
| ``reach`` | which steps a function hops to and which PStates it writes, as its code says |
| ``checks`` | what a module's functions may be; the errors that name the line |
| ``work`` | what goes into a run and what comes out of it |
| ``bound`` | ``self`` in a function: PStates and steps of one task during one run |
| ``runner`` | the run itself |
| ``fields``, ``samples`` | which fields a record has in JSON; a record made up by its type |
"""
