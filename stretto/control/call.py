"""What a call is: a struct whose base names its result."""

from __future__ import annotations

from typing import Any, Generic, TypeVar, get_args

import msgspec

Result = TypeVar("Result")


class Call(msgspec.Struct, Generic[Result], frozen=True, kw_only=True, tag_field="call", tag=True):
    """One kind of question; the subscript of the base is what comes back."""


def result_type(call: type[Call[Any]]) -> Any:
    """What a kind of call returns."""
    (base,) = call.__orig_bases__  # type: ignore[attr-defined]
    return get_args(base)[0]
