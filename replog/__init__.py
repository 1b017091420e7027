"""The replication log of a task group: on disk here, its protocol in :mod:`stretto.replog.core`.

It imports the vocabulary only. Start with :mod:`~stretto.replog.log`; :mod:`~stretto.replog.frame` has the
layout of an entry on disk and on the wire.
"""

if __name__ == "replog":
    raise ImportError("this folder installs as stretto.replog; write 'import stretto.replog'")
