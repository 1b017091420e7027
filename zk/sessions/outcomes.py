"""What ZooKeeper's answers mean to the core. What is not certain is *unknown*, never guessed."""

from __future__ import annotations

from typing import Any

import structlog
from kazoo.exceptions import (
    BadVersionError,
    ConnectionLoss,
    NoAuthError,
    NoNodeError,
    OperationTimeoutError,
    RolledBackError,
    RuntimeInconsistency,
    SessionExpiredError,
    SessionMovedError,
)

from stretto.replog.core.events import CasOutcome
from stretto.zk.sessions.credentials import refusal

log = structlog.get_logger()

#: The answer was lost, or will not come; the request may have been carried out.
LOST_ANSWER = (ConnectionLoss, SessionExpiredError, SessionMovedError, OperationTimeoutError)

#: Results of operations that are not at fault, in a transaction that failed: before the culprit, and after.
_BYSTANDERS = (RolledBackError, RuntimeInconsistency)


def of_compare_and_set(
    path: str, results: list[Any] | None, error: Exception | None
) -> tuple[CasOutcome, int | None]:
    """The outcome of a transaction [set the record, check a registration, ...], and the new version."""
    if error is not None or results is None:
        if not isinstance(error, LOST_ANSWER):
            log.error("compare_and_set_failed", path=path, error=repr(error))
        return CasOutcome.UNKNOWN, None
    failures = [
        (number, each)
        for number, each in enumerate(results)
        if isinstance(each, Exception) and not isinstance(each, _BYSTANDERS)
    ]
    match failures:
        case []:
            if any(isinstance(each, Exception) for each in results):
                return CasOutcome.UNKNOWN, None
            return CasOutcome.OK, results[0].version
        case [(0, BadVersionError() | NoNodeError()), *_]:
            return CasOutcome.BAD_VERSION, None
        case [(number, NoNodeError()), *_] if number > 0:
            return CasOutcome.NO_REGISTRATION, None
        case _:
            log.error("compare_and_set_failed", path=path, error=repr(failures[0][1]))
            return CasOutcome.UNKNOWN, None


def told(error: Exception, path: str) -> str:
    """An error as people read it."""
    return refusal(path) if isinstance(error, NoAuthError) else repr(error)


def expired() -> Exception:
    """Why a request without a session failed."""
    error: Exception = SessionExpiredError()
    return error
