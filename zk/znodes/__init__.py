"""The znodes: where each is, and what it holds.

No other package spells a path. Start with :mod:`~stretto.zk.znodes.paths`.
"""
