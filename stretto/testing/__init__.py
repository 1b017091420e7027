"""For tests of modules: run one without a cluster, in the process of the test.

::

    import stretto.testing

    def test_words_are_counted() -> None:
        with stretto.testing.module(WordCount, tasks=4) as m:
            m.append("sentences", {"user": "ada", "text": "the cat and the dog"})
            m.run()
            assert m.counts.get("the") == 2
"""

from stretto.testing.unit import FailedRecord, ModuleUnderTest, PStateUnderTest, Ran, module

__all__ = ["FailedRecord", "ModuleUnderTest", "PStateUnderTest", "Ran", "module"]
