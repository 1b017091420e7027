"""How many records of a depot a stream runs at once: as many as run in reasonable time."""

from __future__ import annotations

from stretto.worker.topology.machine.events import Ran
from stretto.worker.topology.machine.settings import Settings

RECORDS_FIRST = 64
"""How many records the first batch has."""
QUICK_US = 200_000
SLOW_US = 500_000
"""The time of work beyond which runs get smaller. Waiting is not counted: on a busy machine a run takes
longer, and smaller ones would only add to what there is to do."""
PATIENT = 4
"""The part of the time-out, as its divisor, beyond which a run is too long, whatever it waited for."""


class Pace:
    """How many records the next run of a stream has."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        #: The number of records of the next run, at most.
        self.size = min(RECORDS_FIRST, settings.records_max)

    def settings_changed(self, settings: Settings) -> None:
        """Keep the size within what the settings allow."""
        self._settings = settings
        self.size = min(self.size, settings.records_max)

    def ran(self, ran: Ran, size: int) -> None:
        """Adapt the size to a run of at most ``size`` records that has ended by itself."""
        worked_us = ran.elapsed_us - ran.delayed_us
        patience_us = self._settings.timeout_ms * 1_000 // PATIENT
        if worked_us > SLOW_US or ran.elapsed_us > patience_us:
            self.size = max(1, min(self.size, size) // 2)
        elif worked_us < QUICK_US and ran.elapsed_us < patience_us // 2 and ran.end - ran.start >= size:
            self.size = min(max(self.size, size * 2), self._settings.records_max)

    def one_by_one(self) -> None:
        """Run one record at a time from now on: a run of several has not ended by itself, and the one to
        blame is to be found."""
        self.size = 1
