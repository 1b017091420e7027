"""Which replicas a worker has, from the assignment that gives it one to the deletion of its folder.

Begin with ``hosting``, which compares the assignment with what is here.

| module | holds |
|---|---|
| ``hosting`` | replicas that are taken on, and given up when nobody counts on them any more |
| ``replicas`` | those that are here: opened, begun, stopped and opened again, closed |
| ``regrouping`` | the worker's part in a change of its module's grouping |
| ``retention`` | records that are trimmed, and what an update deleted |

It imports ``stretto.worker.replica`` and ``stretto.worker.topology``, and may import all that is below it
(see :mod:`stretto.worker`). The worker and its other parts are protocols here, in the module that uses them.
"""
