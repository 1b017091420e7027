"""The follower's part of the core: taking entries, standing for leader, and reads of bounded staleness.

Start with :mod:`~stretto.replog.core.following.follower`.
"""
