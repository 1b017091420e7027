"""Reading: depots, PStates, queries, and the applied state in bulk.

Start with :mod:`~stretto.client.reading.pstate` or :mod:`~stretto.client.reading.depot`.
"""
