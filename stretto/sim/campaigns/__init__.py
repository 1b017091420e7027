"""Campaigns: many seeds, or all mutants, of a simulated world on all cores.

Start with :mod:`~stretto.sim.campaigns.replication`.
"""
