"""The module that the demo launches."""

from stretto import Depot, Module


class WordCount(Module):
    sentences = Depot(partition_by="author")
