"""What a function takes, and how that is decoded.

A record is JSON, decoded as its parameter is annotated: any type that msgspec knows; no annotation is plain
JSON, and ``bytes`` is the record as it is. Arguments of steps and queries travel as MessagePack of a tuple.
Annotations that are text are looked up where the module's class statement stands.
"""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from inspect import Parameter, Signature
from types import FunctionType, SimpleNamespace
from typing import Any, get_args, get_origin

import msgspec
from msgspec import inspect as inspect_types

from stretto.errors import UsageError
from stretto.pstate.ordered import shown
from stretto.vocabulary.types import Buffer

_LISTS = (list, Sequence, Collection, Iterable)
_SAME = (str, int, float, bool, bytes)
_PLAIN = (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)


@dataclass(frozen=True, slots=True)
class RecordSignature:
    """What a topology's function takes: a record or a list of them, and how that is decoded."""

    function: FunctionType
    batch: bool
    decode_fast: Callable[[Buffer], Any]
    """Decodes a record; raises what msgspec does, or a ValueError."""
    of: str
    """What a record is called in an error message."""
    annotation: Any
    """Type of a record, as the function's author annotated it."""

    def decode(self, record: Buffer) -> Any:
        """Decode a record; raises UsageError if it is none that the function takes."""
        try:
            return self.decode_fast(record)
        except (msgspec.MsgspecError, ValueError) as error:
            raise UsageError(f"the record is no {self.of}: {error}") from None


class StepSignature:
    """What the function of a step or a query takes, and how that is decoded."""

    def __init__(
        self, function: FunctionType, signature: Signature, annotations: Any, *, batch: bool
    ) -> None:
        self.function = function
        self.batch = batch
        #: Names of the parameters, without ``self``.
        self.parameters = tuple(signature.parameters)
        #: The signature; None for a batch, which takes as many arguments as its tuples have.
        self._signature = None if batch else signature
        self.count = -1 if batch else len(signature.parameters)
        #: Types of all arguments; also in ``plain`` if values are the same after encoding and decoding.
        self.types: tuple[Any, ...] = () if batch else get_args(annotations)
        self.plain = self.types if all(each in _SAME for each in self.types) else None
        self.decode_fast: Callable[[bytes], tuple[Any, ...]] = msgspec.msgpack.Decoder(annotations).decode

    def arguments(self, args: tuple[Any, ...], named: Mapping[str, Any]) -> tuple[Any, ...]:
        """Return the arguments as one tuple, defaults included. Raises TypeError as a call would."""
        if not named and (len(args) == self.count or self._signature is None):
            return args
        if self._signature is None:
            raise TypeError(
                f"{self.function.__name__}() takes no named arguments, because it takes many calls at once"
            )
        try:
            bound = self._signature.bind(*args, **named)
        except TypeError as error:
            raise TypeError(f"{self.function.__name__}(): {error}") from None
        bound.apply_defaults()
        return bound.args

    def decode(self, args: bytes) -> tuple[Any, ...]:
        """Decode arguments; raises UsageError for those that the function does not take."""
        try:
            return self.decode_fast(args)
        except (msgspec.MsgspecError, ValueError) as error:
            given = shown(msgspec.msgpack.decode(args))
            raise UsageError(f"{self.function.__name__} cannot take {given}: {error}") from None


def of_records(function: FunctionType, names: Mapping[str, Any], *, batch: bool) -> RecordSignature:
    """Return the signature of a topology's function; raises UsageError if it cannot take records."""
    signature = _signature(function)
    if len(signature.parameters) != 1:
        what = "a list of records" if batch else "a record"
        raise UsageError(f"it takes self and {what}, and nothing else")
    [annotation] = _annotations(function, signature, names)
    if batch:
        annotation = _element(annotation, "the records, as list[...]")
    of = "JSON" if annotation is Any else f"{named(annotation)} in JSON"
    return RecordSignature(function, batch, _record_decoder(annotation), of, annotation)


def of_calls(function: FunctionType, names: Mapping[str, Any], *, batch: bool) -> StepSignature:
    """Return the signature of a step or query; raises UsageError if its arguments cannot be decoded."""
    signature = _signature(function)
    annotations = _annotations(function, signature, names)
    if batch:
        if len(annotations) != 1:
            raise UsageError(
                "it takes self and a list of tuples, the arguments of many calls, and nothing else"
            )
        element = _element(annotations[0], "the arguments of its calls, as list[tuple[...]]")
        if element is Any:
            element = tuple
        if element is not tuple and get_origin(element) is not tuple:
            raise UsageError(
                f"it takes a list of tuples, the arguments of many calls, not {named(annotations[0])}; "
                f"annotate it as list[tuple[{named(element)}]]"
            )
        shape = element
    else:
        shape = tuple[tuple(annotations)]  # type: ignore[misc]
    check_decodable(annotations)
    return StepSignature(function, signature, shape, batch=batch)


def of_parts(
    function: FunctionType, names: Mapping[str, Any], query: StepSignature
) -> msgspec.msgpack.Decoder[Any]:
    """Return the decoder of the parts that a query's combining function takes. Raises UsageError."""
    signature = _signature(function)
    wanted = query.parameters
    given = tuple(signature.parameters)
    if given[1:] != wanted or not given:
        raise UsageError(
            f"it takes self, the list of parts, and what its query takes ({', '.join(wanted) or 'nothing'})"
        )
    annotation = _annotations(function, signature, names)[0]
    element = _element(annotation, "the parts, as list[...]")
    check_decodable([element])
    return msgspec.msgpack.Decoder(element)


def _signature(function: FunctionType) -> Signature:
    """Return the signature of a function without ``self``; raises UsageError for what cannot be run."""
    for is_one, what in (
        (inspect.iscoroutinefunction, "a coroutine"),
        (inspect.isasyncgenfunction, "a generator"),
        (inspect.isgeneratorfunction, "a generator"),
    ):
        if is_one(function):
            raise UsageError(f"it is {what}, which nobody awaits or goes through; make it a plain function")
    try:
        parameters = list(inspect.signature(function, follow_wrapped=False).parameters.values())
    except NameError as error:
        raise UsageError(
            f"its annotations cannot be looked up: {error}; define it above the module"
        ) from None
    if not parameters or parameters[0].kind not in _PLAIN:
        raise UsageError("its first parameter is self, the module on a task")
    for parameter in parameters[1:]:
        if parameter.kind not in _PLAIN:
            raise UsageError(f"its parameter {parameter} is not plain; name each one, without '*'")
    return Signature(parameters[1:])


def _annotations(function: FunctionType, signature: Signature, names: Mapping[str, Any]) -> list[Any]:
    """Return the annotations of the parameters as types."""
    written = {
        name: parameter.annotation
        for name, parameter in signature.parameters.items()
        if parameter.annotation is not Parameter.empty
    }
    try:
        found = typing.get_type_hints(
            SimpleNamespace(__annotations__=written), function.__globals__, dict(names), include_extras=True
        )
    except NameError as error:
        raise UsageError(
            f"an annotation cannot be looked up: {error}; define or import it above the module"
        ) from None
    except Exception as error:  # noqa: BLE001 - text of a person is evaluated
        raise UsageError(f"an annotation cannot be evaluated: {type(error).__name__}: {error}") from None
    types = [found.get(name, Any) for name in signature.parameters]
    return [Any if each is object else each for each in types]


def _element(annotation: Any, what: str) -> Any:
    if annotation is Any:
        return Any
    if annotation in _LISTS:
        return Any
    if get_origin(annotation) in _LISTS:
        return get_args(annotation)[0]
    raise UsageError(f"with batch its parameter is a list of {what}, not {named(annotation)}")


def _record_decoder(annotation: Any) -> Callable[[Buffer], Any]:
    if annotation is bytes:
        return bytes
    check_decodable([annotation])
    try:
        return msgspec.json.Decoder(annotation).decode
    except (TypeError, ValueError) as error:
        raise UsageError(f"records cannot be decoded as {named(annotation)}: {error}") from None


def check_decodable(annotations: Iterable[Any]) -> None:
    """Raise UsageError unless values of all these types can be decoded."""
    for annotation in annotations:
        try:
            msgspec.msgpack.Decoder(annotation)
            unknown = _unknown_to_msgspec(inspect_types.type_info(annotation), set())
        except (TypeError, ValueError, NameError) as error:
            raise UsageError(f"{named(annotation)} cannot be decoded: {error}") from None
        if unknown is not None:
            raise UsageError(
                f"{unknown} cannot be decoded; use plain types, dataclasses or msgspec.Structs of them"
            )


def _unknown_to_msgspec(info: inspect_types.Type, seen: set[Any]) -> str | None:
    """Return a class in the type that msgspec does not know, and whose every value it would refuse."""
    if isinstance(info, inspect_types.CustomType):
        return named(info.cls)
    cls = getattr(info, "cls", None)
    if cls is not None:
        if cls in seen:
            return None
        seen.add(cls)
    inner = [getattr(info, name, None) for name in ("item_type", "key_type", "value_type")]
    inner += [*getattr(info, "item_types", ()), *getattr(info, "types", ())]
    inner += [field.type for field in getattr(info, "fields", ())]
    found = (_unknown_to_msgspec(each, seen) for each in inner if each is not None)
    return next(filter(None, found), None)


def named(annotation: Any) -> str:
    """Return what to call a type in a sentence."""
    if isinstance(annotation, type) and get_origin(annotation) is None:
        return annotation.__name__
    return str(annotation)
