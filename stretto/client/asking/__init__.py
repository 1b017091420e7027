"""Questions to the replicas of a task: asked of the leader, or of a follower where staleness is allowed.

Start with :mod:`~stretto.client.asking.question`.
"""
