"""The REST interface against a real cluster: its document is true, and what it says it does."""

from __future__ import annotations

from pathlib import Path
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


def test_a_query_is_asked_with_its_arguments(served: Served) -> None:
    records = [{"user": "asked"}, {"user": "asked"}]
    path = f"/modules/{MODULE}/depots/events/records"
    assert served.send("POST", path, {"records": records}).status_code == 201
    query = f"/modules/{MODULE}/queries/seen"
    wait_until("both are counted", lambda: served.get(f"{query}?argument=asked") == {"answer": 2}, 60)
    assert served.get(f"{query}?named=user=asked&named=extra=5") == {"answer": 7}
    assert refusal(served.send("GET", f"/modules/{MODULE}/queries/sen"))[0] == 404
    status, why = refusal(served.send("GET", query))
    assert (status, "needs user" in why) == (400, True)
    status, why = refusal(served.send("GET", f"{query}?argument=asked&argument=x"))
    assert (status, "cannot take" in why) == (409, True)


def test_logs_are_read_of_every_daemon_page_by_page(served: Served) -> None:
    worker = served.get(f"/modules/{MODULE}/groups/0")["leader"]
    node = next(each for each in served.get("/nodes") if each["running"])["node"]
    for where in (f"/workers/{worker}/log", f"/nodes/{node}/log", "/conductor/log"):
        newest = served.get(f"{where}?limit=1")
        assert len(newest["lines"]) == 1
        assert newest["earlier"] == newest["lines"][0]["position"]
        [before] = served.get(f"{where}?limit=1&before={newest['earlier']}")["lines"]
        assert before["position"] < newest["earlier"]
        assert {line["level"] for line in served.get(f"{where}?level=error")["lines"]} <= {"error", None}
    started = served.get(f"/workers/{worker}/log?limit=1000")["lines"]
    assert any(line["event"] == "worker_started" for line in started)
    assert refusal(served.send("GET", "/workers/nobody/log"))[0] == 404


def test_progress_and_failures_of_topologies_are_in_charts_and_metrics(served: Served) -> None:
    path = f"/modules/{MODULE}/depots/events/records"
    records = [{"user": "lucky"}, {"user": "unlucky"}]
    assert served.send("POST", path, {"records": records}).status_code == 201

    def charts() -> Any:
        told = served.get(f"/charts?minutes=10&module={MODULE}")
        failing = told["topology_failures"].get("count", [])
        return told if any(each for each in failing if each) else None

    told = wait_until("the parked record is measured", charts, 60)
    assert told is not None
    assert any(told["topology_records"]["count"])
    assert any(told["function_duration"]["count"]["p99"])
    assert any(told["lease_left"])
    text = httpx.get(f"{served.url}/metrics").text
    assert 'stretto_topology_parked_records{module="Shown"' in text
    assert "stretto_function_duration_seconds_bucket" in text


def test_a_snapshot_is_made_listed_verified_and_deleted(served: Served, tmp_path: Path) -> None:
    path = f"/modules/{MODULE}/snapshots"
    answer = served.send("POST", path, {"to": str(tmp_path), "name": "monday"})
    assert answer.status_code == 201, answer.text
    folder = tmp_path / MODULE / "monday"
    assert (answer.json()["folder"], answer.json()["tasks"]) == (str(folder), 8)
    [listed] = served.get(f"/snapshots?module={MODULE}")
    assert (listed["name"], listed["state"], listed["folder"]) == ("monday", "complete", str(folder))
    verdict = served.send("POST", f"{path}/monday/verify").raise_for_status().json()
    assert verdict["problems"] == []
    assert [task["why"] for task in verdict["tasks"]] == [""] * 8
    [spoilt] = folder.glob("task-3/*.mdb")
    spoilt.write_bytes(spoilt.read_bytes()[:-1])
    verdict = served.send("POST", f"{path}/monday/verify").raise_for_status().json()
    assert [task["task"] for task in verdict["tasks"] if task["why"]] == [3]
    assert served.send("DELETE", f"{path}/monday").status_code == 204
    assert not folder.exists()
    assert served.get(f"/snapshots?module={MODULE}") == []
    status, why = refusal(served.send("POST", f"{path}/monday/verify"))
    assert (status, why) == (404, f"there is no snapshot monday of {MODULE}; there are none")
    status, why = refusal(served.send("POST", path, {"to": "backup"}))
    assert status == 400
    assert "name the folder from its root" in why
