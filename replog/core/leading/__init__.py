"""The leader's part of the core: appends, followers, the ISR, reads under the lease, and handing over.

Start with :mod:`~stretto.replog.core.leading.leader`.
"""
