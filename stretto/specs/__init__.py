"""What is launched, as data: modules, their assignment to workers, and the log of operations.

The metastore keeps these and calls carry them; they import the types of PStates and the vocabulary. Start
with :mod:`~stretto.specs.modules`.
"""
