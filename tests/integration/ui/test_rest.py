"""The REST interface against a real cluster: its document is true, and what it says it does."""

from __future__ import annotations

from typing import Any

import httpx
import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from schemathesis import Case
from schemathesis.core.result import Ok
from schemathesis.specs.openapi.checks import positive_data_acceptance

from tests.integration.ui.serving import GROUPS, MODULE, Served
from tests.integration.zk.waiting import wait_until


def test_every_answer_is_as_the_document_says(served: Served) -> None:
    document = schemathesis.openapi.from_url(f"{served.url}/openapi.json")
    operations = [each.ok() for each in document.get_all_operations() if isinstance(each, Ok)]
    assert len(operations) > 15
    for operation in operations:

        @given(case=operation.as_strategy())
        @settings(max_examples=5, deadline=None, suppress_health_check=list(HealthCheck))
        def check(case: Case[Any]) -> None:
            # Bounds of options and types of keys are not in the document, and refused all the same.
            case.call_and_validate(timeout=30, excluded_checks=[positive_data_acceptance])

        check()


def refusal(answer: httpx.Response) -> tuple[int, str]:
    assert answer.headers["content-type"] == "application/problem+json"
    told = answer.json()
    assert told["status"] == answer.status_code
    return answer.status_code, told["detail"]


def test_appended_records_are_read_back(served: Served) -> None:
    records = [{"user": f"user-{number}", "number": number} for number in range(20)]
    answer = served.send("POST", f"/modules/{MODULE}/depots/events/records", {"records": records})
    assert (answer.status_code, answer.json()) == (201, {"appended": 20})
    pages = [served.get(f"/modules/{MODULE}/depots/events/records?task={task}") for task in range(8)]
    found = [each["value"] for page in pages for each in page["records"]]
    assert all(record in found for record in records)


def test_a_record_that_is_none_appends_nothing(served: Served) -> None:
    before = [served.get(f"/modules/{MODULE}/depots/events/records?task={task}")["end"] for task in range(8)]
    body = {"records": [{"user": "good"}, {"no": "user"}]}
    status, why = refusal(served.send("POST", f"/modules/{MODULE}/depots/events/records", body))
    assert status == 400
    assert "partitioned by 'user'" in why
    after = [served.get(f"/modules/{MODULE}/depots/events/records?task={task}")["end"] for task in range(8)]
    assert after == before


def test_an_option_that_is_set_is_in_force(served: Served) -> None:
    name = "replication.max.time.lag.millis"

    def told() -> Any:
        options = served.get(f"/options?module={MODULE}")
        return next(each for each in options if each["name"] == name)

    where = f"/options/{name}?module={MODULE}"
    assert served.send("PUT", where, {"value": 7_000}).status_code == 204
    wait_until("it is told", lambda: told()["value"] == 7_000)
    status, why = refusal(served.send("PUT", where, {"value": "soon"}))
    assert status == 400
    assert name in why
    assert served.send("DELETE", where).status_code == 204
    wait_until("it is the default again", lambda: told()["origin"] == "default")


@pytest.mark.parametrize(
    ("path", "sentence"),
    [
        ("/modules/Shwon", "there is no module Shwon; did you mean Shown?"),
        (f"/modules/{MODULE}/groups/99", f"{MODULE} has no group 99; its groups are 0 to {GROUPS - 1}"),
        (f"/modules/{MODULE}/pstates/count", "did you mean counts?"),
        (f"/modules/{MODULE}/depots/event/records", "did you mean events?"),
        (f"/modules/{MODULE}/depots/events/records?task=8", f"{MODULE} has no task 8"),
    ],
)
def test_what_is_not_there_is_told_with_what_is(served: Served, path: str, sentence: str) -> None:
    status, why = refusal(served.send("GET", path))
    assert status == 404
    assert sentence in why


def test_pages_of_other_sites_change_nothing(served: Served) -> None:
    path = f"/modules/{MODULE}/leadership/balance"
    for headers in ({"Origin": "http://elsewhere.example"}, {"Sec-Fetch-Site": "cross-site"}):
        assert refusal(served.send("POST", path, headers=headers))[0] == 403
    assert refusal(served.send("GET", "/cluster", headers={"Host": "elsewhere.example"}))[0] == 403
    assert served.send("POST", path, headers={"Origin": served.url}).status_code == 202


def test_a_leader_hands_over_when_it_is_asked_to(served: Served) -> None:
    group = served.get(f"/modules/{MODULE}/groups/0")
    successor = next(worker for worker in group["isr"] if worker != group["leader"])
    answer = served.send("POST", f"/modules/{MODULE}/groups/0/resign", {"to": successor})
    assert (answer.status_code, answer.json()) == (202, {"epoch": group["epoch"]})
    wait_until(
        "the successor leads", lambda: served.get(f"/modules/{MODULE}/groups/0")["leader"] == successor, 60
    )


def test_metrics_are_in_the_format_of_prometheus(served: Served) -> None:
    def exposition() -> str | None:
        answer = httpx.get(f"{served.url}/metrics")
        assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
        return answer.text if f'stretto_isr_members{{module="{MODULE}"' in answer.text else None

    text = wait_until("a window was collected", exposition, 60)
    assert text is not None
    assert "# TYPE stretto_replicate_duration_seconds histogram" in text
    assert 'le="+Inf"' in text
