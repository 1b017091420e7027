"""The client's side of operating a cluster: what it is, how it fares, and bringing code to it.

Start with :mod:`~stretto.client.operating.cluster`.
"""
