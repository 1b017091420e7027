"""The cluster as handlers see it: answers shared for a moment, and one judgement over all of them.

It imports the client, and nothing of the REST interface. Start with :mod:`~stretto.ui.cluster.backend`.
"""
