"""``/openapi.json``: paths and parameters as the framework finds them in the handlers, bodies as msgspec has
them.

The framework does not know all of what msgspec can write (structs that are arrays, for one), and a document
has to say what is sent.
"""

from __future__ import annotations

from typing import Any

import msgspec
from litestar import Litestar
from litestar.handlers import HTTPRouteHandler

from stretto.ui.security import SAFE_METHODS

_REFERENCE = "#/components/schemas/{name}"


def document_of(app: Litestar, *, needs_token: bool) -> dict[str, Any]:
    """The OpenAPI document of an application, as ``/openapi.json`` serves it."""
    document = app.openapi_schema.to_schema()
    for operations in document["paths"].values():
        for method, operation in operations.items():
            if needs_token and method.upper() not in SAFE_METHODS:
                operation["security"] = [{"token": []}]
    found = [type_ for route in app.routes for type_ in _types(getattr(route, "route_handlers", ()))]
    _, components = msgspec.json.schema_components(found, ref_template=_REFERENCE)
    document["components"]["schemas"] |= components
    return document


def _types(handlers: Any) -> list[Any]:
    """Types of what the handlers receive and send."""
    found = []
    for handler in handlers:
        if isinstance(handler, HTTPRouteHandler) and handler.resolve_include_in_schema():
            signature = handler.parsed_fn_signature
            fields = [signature.return_type, signature.parameters.get("data")]
            found += [field.annotation for field in fields if field is not None]
    return [each for each in found if each not in (None, type(None))]
