"""Calls and results as bytes: the one place that knows all of them."""

from __future__ import annotations

import threading
from typing import Any, TypeAlias

import msgspec

from stretto.control.artifacts import GetArtifact, HasArtifact, HeldOfArtifact, PutArtifact
from stretto.control.call import Call, Result, result_type
from stretto.control.cluster import FindConductor, LocalWorkers, Nodes, Operations
from stretto.control.leadership import AllowLeadership, Balance, DisallowLeadership, Leadership, ResignLeader
from stretto.control.logs import Log
from stretto.control.modules import (
    AbandonScaling,
    Describe,
    Destroy,
    Launch,
    Modules,
    Pause,
    PossibleThreads,
    Reassign,
    Resume,
    Scale,
    ScaleThreads,
    Specification,
    Update,
)
from stretto.control.options import Options, SetOption, UnsetOption
from stretto.control.pins import AnnounceMoment, DecideMoment, FindMoment, FindMoments, PinGroup, Pins
from stretto.control.replicas import Digests, Epochs, Replicas, Story, Windows
from stretto.control.snapshots import (
    BeginSnapshot,
    CopyCut,
    Cut,
    DropCut,
    FinishSnapshot,
    ForgetSnapshot,
    HoldTopologies,
    SeesSnapshot,
    Snapshots,
)
from stretto.control.topologies import Failures, Microbatches, SettleFailures

ConductorQuestion: TypeAlias = (
    Modules
    | Nodes
    | Leadership
    | Options
    | Operations
    | Specification
    | Snapshots
    | PossibleThreads
    | Balance
    | ResignLeader
    | Reassign
    | Scale
    | ScaleThreads
    | AbandonScaling
    | FinishSnapshot
)
"""Calls to which the active conductor answers something, of what is or of what it has begun."""
ConductorOrder: TypeAlias = (
    Launch
    | Destroy
    | Update
    | Pause
    | Resume
    | AllowLeadership
    | DisallowLeadership
    | SetOption
    | UnsetOption
    | BeginSnapshot
    | ForgetSnapshot
)
"""Calls that the active conductor carries out; it answers that they are done."""
ConductorCall: TypeAlias = FindConductor | Log | ConductorQuestion | ConductorOrder
"""Every call that a conductor answers."""
SupervisorCall: TypeAlias = (
    FindConductor
    | Log
    | HasArtifact
    | HeldOfArtifact
    | PutArtifact
    | GetArtifact
    | SeesSnapshot
    | LocalWorkers
)
"""Every call that a supervisor answers."""
WorkerCall: TypeAlias = (
    FindConductor
    | Describe
    | Replicas
    | Microbatches
    | Digests
    | HoldTopologies
    | Cut
    | CopyCut
    | DropCut
    | Windows
    | Story
    | Epochs
    | Failures
    | SettleFailures
    | PinGroup
    | Pins
    | AnnounceMoment
    | FindMoment
    | FindMoments
    | DecideMoment
)
"""Every call that a worker answers."""
AnyCall: TypeAlias = ConductorCall | SupervisorCall | WorkerCall
"""Every call there is. Any daemon may be sent any of them, and refuses those of another."""
_calls: msgspec.msgpack.Decoder[AnyCall] = msgspec.msgpack.Decoder(AnyCall)
_encode = msgspec.msgpack.Encoder().encode


def encode(value: object) -> msgspec.Raw:
    return msgspec.Raw(_encode(value))


def decode_call(raw: msgspec.Raw) -> AnyCall:
    """Decode a call; raises one of MALFORMED for what is none."""
    return _calls.decode(raw)


def decode_result(call: Call[Result], raw: msgspec.Raw) -> Result:
    result: Result = _decoder(type(call)).decode(raw)
    return result


_decoders: dict[type, msgspec.msgpack.Decoder[Any]] = {}
_deciding = threading.Lock()


def _decoder(call: type[Call[Any]]) -> msgspec.msgpack.Decoder[Any]:
    """The decoder of what a call returns, made by one thread at a time.

    Two that look into the same struct for the first time crash msgspec.
    """
    found = _decoders.get(call)
    if found is None:
        with _deciding:
            found = _decoders.setdefault(call, msgspec.msgpack.Decoder(result_type(call)))
    return found
