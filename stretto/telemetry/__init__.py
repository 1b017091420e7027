"""What the cluster measures about itself: the shape of it, which workers fill and the UI keeps and shows.

It imports the vocabulary only. Start with :mod:`~stretto.telemetry.windows`.
"""
