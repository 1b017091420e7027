"""The replication protocol of one replica of a task group, as a pure state machine.

``Replica.step(event, now) -> list[Effect]`` is the one door: nothing else changes a replica. There is no
clock, randomness, IO or logging in this folder; a lint rule bans the imports. A worker drives it
with ZeroMQ, a disk and ZooKeeper, the simulator with virtual ones.

===============  ==========================================================================
``replica``      the shell: what every role shares, dispatch, changes of role
``leader``       appends, apply offset, stall timer, reads under the lease
``membership``   who is in the ISR, and the compare-and-set that changes it
``progress``     what a leader knows of one follower, and what it sends it next
``handover``     resigning in favour of another member
``follower``     reconciliation with the leader's lineage, persisting, confirming, applying
``election``     when a follower may stand, and what the answer means
``lineage``      epochs of a log and the point where two logs part
``producers``    idempotent appends
``record``       the group's record in the metastore
``guards``       every safety rule, by name
``events``, ``effects``, ``messages``  the vocabulary
===============  ==========================================================================
"""
