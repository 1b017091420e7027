"""How long to wait before something that failed is tried again.

A :class:`Backoff` is a value: whoever tries keeps one, waits for its ``delay_ms``, keeps its ``next()``
instead, and its ``reset()`` once a try has succeeded. Whoever counts failures elsewhere, such as in
replicated state, asks its ``after()`` for the delay after so many.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

GROWTHS_MAX = 64
"""How often a delay grows at most; any delay in milliseconds is at its most by then.

Without a limit the number would be astronomic.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Backoff:
    """Delays that grow by a factor with each failure in a row, up to a most."""

    first_ms: int
    most_ms: int
    factor: int = 2
    at_once: int = 0
    """How many failures in a row are followed by no delay at all, before ``first_ms``."""
    failures: int = 0
    """How many failures in a row came before the latest one."""

    @property
    def delay_ms(self) -> int:
        """How long to wait after the latest failure."""
        return self.after(self.failures)

    def after(self, failures: int) -> int:
        """How long to wait after a failure that so many came before, in a row."""
        growths = failures - self.at_once
        if growths < 0:
            return 0
        grown_ms: int = self.first_ms * self.factor ** min(growths, GROWTHS_MAX)
        return min(grown_ms, self.most_ms)

    def next(self) -> Backoff:
        """The back-off to use after the next failure."""
        return replace(self, failures=self.failures + 1)

    def reset(self) -> Backoff:
        """The back-off to use after a success."""
        return replace(self, failures=0)
