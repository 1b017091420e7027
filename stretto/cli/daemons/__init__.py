"""Verbs that run a program in the foreground, such as ``up``; and ``keys``, which they share."""
