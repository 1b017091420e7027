"""The metastore: how a cluster lives in ZooKeeper. Metadata only: never an entry, never code.

It may import the vocabulary, specs, options and the core's events, for its answers are events of the core.
Start with :mod:`~stretto.zk.znodes.paths`, which has every znode, then :mod:`~stretto.zk.metastore`, a
worker's way in.
"""

if __name__ == "zk":
    raise ImportError("this folder installs as stretto.zk; write 'import stretto.zk'")
