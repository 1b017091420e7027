"""The simulator: replicas of the real core over the real log, in a seeded virtual world that goes wrong.

``stretto sim`` runs it. Everything that happens follows from the seed: a failure is reproduced by
running the same seed again, and the same seed writes the same trace, byte for byte.

===============  ==============================================================================
``world``        virtual time, the queue of what happens next, the trace
``disk``         a folder that loses what was not synced, tears writes, is wiped or rots
``network``      links that delay, lose, double and reorder messages, part, and reset
``metastore``    sessions that expire, watches that come late, reads that are stale until ``sync``
``machine``      what outlives a process: disk, applied state, identity, clock
``node``         the driver: one worker process with one replica, run over the parts above
``workload``     producers that retry, readers
``faults``       what goes wrong, drawn from the seed
``checkers``     what must hold after every step, and at the end
``simulation``   one seed from start to verdict
``mutants``      the core with one rule missing; each must be caught
``scenario``     readable scripts of the field's past bugs
``campaign``     many seeds on all cores
===============  ==============================================================================
"""
