"""The fields that records of a type have in JSON, as far as the type tells."""

from __future__ import annotations

from typing import Any

from msgspec import inspect

_OPEN = (inspect.AnyType, inspect.DictType, inspect.RawType, inspect.CustomType)
"""Types whose values may have any field."""


def fields_of(annotation: Any) -> frozenset[str] | None:
    """Return the names that fields of such a record may have in JSON; None if they may be any.

    Of a union these are the fields of all its members.
    """
    if annotation is bytes:
        return None
    return fields_in(inspect.type_info(annotation))


def fields_in(info: inspect.Type) -> frozenset[str] | None:
    """Return what :func:`fields_of` does, of a type that msgspec has inspected already."""
    match info:
        case inspect.Metadata(type=inner):
            return fields_in(inner)
        case inspect.StructType(array_like=False, fields=fields, tag_field=tag):
            return frozenset((*(each.encode_name for each in fields), *((tag,) if tag else ())))
        case inspect.DataclassType(fields=fields) | inspect.TypedDictType(fields=fields):
            return frozenset(each.encode_name for each in fields)
        case inspect.UnionType(types=types):
            found = [fields_in(each) for each in types]
            return None if None in found else frozenset().union(*(each for each in found if each is not None))
        case _:
            return None if isinstance(info, _OPEN) else frozenset()
