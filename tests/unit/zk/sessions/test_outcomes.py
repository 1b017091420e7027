from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from kazoo.exceptions import (
    BadVersionError,
    ConnectionClosedError,
    ConnectionLoss,
    NoAuthError,
    NoNodeError,
    OperationTimeoutError,
    RolledBackError,
    RuntimeInconsistency,
    SessionExpiredError,
    SessionMovedError,
    ThrottledOpError,
)

from stretto.replog.core.events import CasOutcome
from stretto.zk.sessions.outcomes import of_compare_and_set


def stat(version: int) -> Any:
    return SimpleNamespace(version=version)


@pytest.mark.parametrize(
    ("results", "expected"),
    [
        ([stat(4)], (CasOutcome.OK, 4)),
        ([stat(4), True, True], (CasOutcome.OK, 4)),
        ([BadVersionError()], (CasOutcome.BAD_VERSION, None)),
        ([BadVersionError(), RuntimeInconsistency()], (CasOutcome.BAD_VERSION, None)),
        # The record is gone: whatever the version, it is not that one.
        ([NoNodeError(), RuntimeInconsistency()], (CasOutcome.BAD_VERSION, None)),
        ([RolledBackError(), NoNodeError()], (CasOutcome.NO_REGISTRATION, None)),
        (
            [RolledBackError(), RolledBackError(), NoNodeError(), RuntimeInconsistency()],
            (CasOutcome.NO_REGISTRATION, None),
        ),
        ([NoAuthError(), RuntimeInconsistency()], (CasOutcome.UNKNOWN, None)),
        ([RolledBackError(), NoAuthError()], (CasOutcome.UNKNOWN, None)),
        # No culprit among the failures: nothing is certain.
        ([RuntimeInconsistency()], (CasOutcome.UNKNOWN, None)),
    ],
)
def test_the_operation_at_fault_decides(results: list[Any], expected: tuple[CasOutcome, int | None]) -> None:
    assert of_compare_and_set("/g", results, None) == expected


@pytest.mark.parametrize(
    "error",
    [
        ConnectionLoss(),
        SessionExpiredError(),
        ConnectionClosedError(),
        SessionMovedError(),
        OperationTimeoutError(),
        ThrottledOpError(),
        RuntimeError("the answer could not be read"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_without_an_answer_the_outcome_is_unknown(error: Exception) -> None:
    assert of_compare_and_set("/g", None, error) == (CasOutcome.UNKNOWN, None)
