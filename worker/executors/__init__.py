"""Executors: child processes of a worker that run the code of its module, so that the worker never does.

| module | holds |
|---|---|
| ``protocol`` | what a worker and an executor say to each other, as bytes |
| ``child`` | the executor's process: imports the module, answers one request after the other |
| ``lanes`` | what a batch sees there: the task's LMDB file, and the batches before it that are not applied |
| ``rounds`` | what rounds of microbatches changed there, until it is collected |
| ``process`` | one such process, as its worker sees it: started, written to, heard, killed |
| ``pool`` | all of a worker's: who runs what, until when, and what becomes of it if it does not end |
| ``replies`` | how a request ends: answered, or lost |

A function that hangs, crashes or exits costs its executor and the requests that were waiting there, and
nothing else: no lease, no membership, no other group's appends. Start with ``protocol``.

It imports nothing else of the worker: neither topologies nor microbatches, which ask it to run things, nor
the process, of which ``pool`` says in a protocol what it needs.
"""
