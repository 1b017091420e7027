"""How many records of a depot a stream runs at once: as many as run in reasonable time."""

from __future__ import annotations

from stretto.worker.topology.machine.events import Ran
from stretto.worker.topology.machine.settings import Settings

RECORDS_FIRST = 64
"""Of the first batch."""
QUICK_US = 200_000
SLOW_US = 500_000
"""Of work. On a busy machine a run takes longer, and smaller ones would only add to what there is to do."""
PATIENT = 4
"""A run that takes this part of the time after which it is killed is too long all the same."""


class Pace:
    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        #: Records of the next run, at most.
        self.size = min(RECORDS_FIRST, settings.records_max)

    def settings_changed(self, settings: Settings) -> None:
        self._settings = settings
        self.size = min(self.size, settings.records_max)

    def ran(self, ran: Ran, size: int) -> None:
        """A run of at most ``size`` records has ended by itself."""
        worked_us = ran.elapsed_us - ran.delayed_us
        patience_us = self._settings.timeout_ms * 1_000 // PATIENT
        if worked_us > SLOW_US or ran.elapsed_us > patience_us:
            self.size = max(1, min(self.size, size) // 2)
        elif worked_us < QUICK_US and ran.elapsed_us < patience_us // 2 and ran.end - ran.start >= size:
            self.size = min(max(self.size, size * 2), self._settings.records_max)

    def one_by_one(self) -> None:
        """A run of several records has not ended by itself: which of them is to blame is to be found."""
        self.size = 1
