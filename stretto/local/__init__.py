"""A whole cluster on one machine, as ``stretto up`` and tests run it.

Start with :mod:`~stretto.local.cluster`.
"""
