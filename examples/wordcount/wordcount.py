"""Word count: people say sentences, and all sentences of one person stay in order."""

from __future__ import annotations

from stretto import Depot, Module


class WordCount(Module):
    sentences = Depot(partition_by="user")
