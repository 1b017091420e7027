"""Appending: values become records, records become numbered batches, sent until their outcome is known.

Start with :mod:`~stretto.client.appending.depot`, then :mod:`~stretto.client.appending.producer`.
"""
