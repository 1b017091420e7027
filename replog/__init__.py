"""The replication log of a task group: on disk here, its protocol in :mod:`stretto.replog.core`."""

if __name__ == "replog":
    raise ImportError("this folder installs as stretto.replog; write 'import stretto.replog'")
