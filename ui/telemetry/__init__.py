"""Measures over time: fetched from all workers, kept in a file of bounded size, drawn as charts.

It imports nothing of the pages or the REST interface. Start with :mod:`~stretto.ui.telemetry.collector`,
which fills :mod:`~stretto.ui.telemetry.store`; :mod:`~stretto.ui.telemetry.metrics` tells Prometheus.
"""
