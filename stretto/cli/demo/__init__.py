"""``stretto demo``: a cluster, a module, a live load, and a view of all that.

Start with :mod:`~stretto.cli.demo.demo`.
"""
