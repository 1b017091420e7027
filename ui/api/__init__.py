"""The REST interface, under ``/api/v1``: what the pages ask for, and any program may.

Every handler says what it takes and returns with types; ``/openapi.json`` is made of these.
"""

from __future__ import annotations

from litestar import Router

from stretto.ui.api import cluster, data, modules, options, snapshots

_PARTS = (cluster, modules, options, data, snapshots)
HANDLERS = [handler for part in _PARTS for handler in part.HANDLERS]
ROUTES = Router("/api/v1", route_handlers=HANDLERS)
