"""stretto: task groups replicated through ZooKeeper, in Python."""

__version__ = "0.1.0"
