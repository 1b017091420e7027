"""Fixtures shared by the tests of the metastore against a real ZooKeeper."""

from tests.support.servers import operator, paths, proxy, workers, zookeeper

__all__ = ["operator", "paths", "proxy", "workers", "zookeeper"]
