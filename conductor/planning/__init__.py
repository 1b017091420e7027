"""The conductor's planners: pure functions from what the cluster is to what should change.

The purity ban of the core holds here. Start with :mod:`~stretto.conductor.planning.assignment` for where a
module runs, and :mod:`~stretto.conductor.planning.leadership` for who leads.
"""
