"""The network: the loop that owns sockets, connections in both directions, and calls asked and answered.

Clients, workers, supervisors and conductors all use it; it knows messages and calls, and nothing of who sends
them. Start with :mod:`~stretto.network.loop`, then :mod:`~stretto.network.endpoint` for who listens and
:mod:`~stretto.network.routing` for who asks.
"""
