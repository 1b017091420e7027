"""What all simulated worlds share: virtual time, and rules that lack one clause.

Start with :mod:`~stretto.sim.virtual.world`.
"""
