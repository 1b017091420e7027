"""Streams that hop, under faults: ``stretto sim --stream``.

Start with :mod:`stretto.sim.stream.simulation`.
"""
