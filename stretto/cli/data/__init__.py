"""Verbs that move data of a module: ``append``, ``tail``, ``select``, ``query``, ``failures``, ``export``."""
