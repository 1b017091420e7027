"""Microbatches under faults: ``stretto sim --microbatch``.

A world of its own: several tasks, where the other one has the replicas of one group. See
:mod:`stretto.sim.microbatch.simulation`.
"""
