"""Named copies of a module's applied state, outside its cluster: cut, checked, read and restored.

A snapshot is a folder, ``DIR/<module>/<name>``::

    creating           while it is being made (:mod:`~stretto.snapshot.unfinished`)
    manifest.json      what it is, written last: without it there is no snapshot
    artifact.zip       the module's code
    task-<n>/data.mdb  the applied state of one task, compacted

:mod:`~stretto.snapshot.creating` makes one of a module that runs, :mod:`~stretto.snapshot.checking` tells
whether one is what its manifest says, :mod:`~stretto.snapshot.reading` reads it with no cluster at hand, and
:mod:`~stretto.snapshot.seeding` makes the first state of a replica of it.
"""
