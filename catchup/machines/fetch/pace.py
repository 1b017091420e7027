"""When a question counts as lost, and how many may be under way.

Answers come in about the order of their questions, as fast as the link is. So a question is lost when nothing
has come for longer than answers take, or when one that was asked so much later is answered; never because it
takes long while others are answered. Asking again would fill a slow link with what is on its way already.

After a silence there is one question under way, and with each answer one more.
"""

from __future__ import annotations

from stretto.vocabulary.types import Millis


class Pace:
    """Pace of the questions whose answers are large: for blocks, lists and entries."""

    def __init__(self, retry_ms: Millis, silence_max_ms: Millis, window_max: int) -> None:
        self._retry_ms = retry_ms
        self._silence_max_ms = max(retry_ms, silence_max_ms)
        self._window_max = window_max
        self.window = window_max
        #: Silence after which questions count as lost: twice what the latest answer took, doubled after each.
        self._silence_ms = retry_ms
        self._heard_at = Millis(0)
        #: When the latest of the answered questions was first asked.
        self._answered_at = Millis(0)

    def heard(self, now: Millis) -> None:
        """Note that the link brings something."""
        self._heard_at = now

    def answered(self, first_asked_at: Millis, now: Millis) -> None:
        """Take in an answer: adapt the silence to how long it took, and widen the window."""
        took_ms = 2 * (now - first_asked_at)
        self._silence_ms = Millis(min(max(took_ms, self._retry_ms), self._silence_max_ms))
        self._answered_at = max(self._answered_at, first_asked_at)
        self.window = min(self.window + 1, self._window_max)

    def was_silent(self) -> None:
        """Take in a silence: wait twice as long from now on, and ask one question at a time."""
        self._silence_ms = Millis(min(2 * self._silence_ms, self._silence_max_ms))
        self.window = 1

    def lost_at(self, asked_at: Millis) -> Millis:
        """When a question asked then counts as lost, if nothing comes until then."""
        return Millis(max(asked_at, self._heard_at) + self._silence_ms)

    def is_overtaken(self, asked_at: Millis) -> bool:
        """Whether a question counts as lost because much later ones were answered."""
        return self._answered_at - asked_at >= self._silence_ms
