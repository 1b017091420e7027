"""Testing modules: run one in the process of the test, or on a real cluster with faults on demand.

::

    import stretto.testing

    def test_words_are_counted() -> None:
        with stretto.testing.module(WordCount, tasks=4) as m:
            m.append("sentences", {"user": "ada", "text": "the cat and the dog"})
            m.run()
            assert m.counts.get("the") == 2

    def test_words_are_counted_although_a_leader_dies() -> None:
        with stretto.testing.cluster(replication_factor=3) as c:
            words = c.launch(WordCount)
            words.append("sentences", {"user": "ada", "text": "the cat and the dog"})
            words.kill_leader(words.group_of("the"))
            assert words.counts.get("the") == 2
"""

from stretto.testing.clusters import ClusterUnderTest, LaunchedModule, cluster, eventually
from stretto.testing.unit import FailedRecord, ModuleUnderTest, PStateUnderTest, Ran, module

__all__ = [
    "ClusterUnderTest",
    "FailedRecord",
    "LaunchedModule",
    "ModuleUnderTest",
    "PStateUnderTest",
    "Ran",
    "cluster",
    "eventually",
    "module",
]
