"""Fixtures shared with the tests of the metastore."""

from tests.integration.conductor.scene import scene
from tests.support.servers import paths, zookeeper

__all__ = ["paths", "scene", "zookeeper"]
