"""The world of replicas: the real core over the real log, on machines, disks and networks that go wrong.

Start with :mod:`~stretto.sim.replication.simulation`; :mod:`~stretto.sim.replication.checkers` has what must
hold.
"""
