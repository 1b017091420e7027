"""Verbs that change what runs: ``deploy`` and ``snapshot``, and how a module gets its size.

Start with :mod:`~stretto.cli.deploying.deploy`.
"""
