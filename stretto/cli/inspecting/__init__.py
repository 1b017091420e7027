"""Verbs that look at the cluster, and those that tune what is looked at: ``options`` and ``leadership``.

Each prints a table for people and JSON for programs (:mod:`stretto.cli.output`).
"""
