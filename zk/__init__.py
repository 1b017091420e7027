"""The metastore: every znode path, typed records, sessions and lease, embedded ZooKeeper."""

if __name__ == "zk":
    raise ImportError("this folder installs as stretto.zk; write 'import stretto.zk'")
