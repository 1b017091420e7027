"""Verbs that put stretto to the proof: ``sim`` and ``bench``."""
