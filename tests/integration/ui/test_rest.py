"""The REST interface against a real cluster: its document is true, and what it says it does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from schemathesis import Case
from schemathesis.core.result import Ok
from schemathesis.schemas import APIOperation
from schemathesis.specs.openapi.checks import positive_data_acceptance

from stretto.ui.api import HANDLERS
from tests.integration.ui.serving import GROUPS, MODULE, REQUEST_SECONDS, Served
from tests.support.waiting import wait_until


def operations_of(served: Served) -> dict[str, APIOperation[Any, Any, Any, Any]]:
    document = schemathesis.openapi.from_url(f"{served.url}/openapi.json")
    found = [each.ok() for each in document.get_all_operations() if isinstance(each, Ok)]
    assert len(found) == len(HANDLERS), "an operation is missing in the document"
    return {each.label: each for each in found}


def test_no_answer_is_other_than_the_document_says(served: Served) -> None:
    for operation in operations_of(served).values():

        @given(case=operation.as_strategy(), is_there=st.booleans())
        @settings(max_examples=6, deadline=None, suppress_health_check=list(HealthCheck))
        def check(case: Case[Any], is_there: bool) -> None:
            if is_there and "module" in (case.path_parameters or {}):
                case.path_parameters["module"] = MODULE
            # Bounds of options and types of keys are not in the document, and refused all the same.
            case.call_and_validate(timeout=30, excluded_checks=[positive_data_acceptance])

        check()


def test_every_operation_does_what_it_is_for_and_answers_as_the_document_says(
    served: Served, tmp_path: Path
) -> None:
    group = served.get(f"/modules/{MODULE}/groups/1")
    successor = next(worker for worker in group["isr"] if worker != group["leader"])
    [*_, node] = (each["node"] for each in served.get("/nodes") if each["address"])
    module: dict[str, Any] = {"module": MODULE}
    one_group = module | {"group": 1}
    option = {"name": "replication.max.time.lag.millis"}
    snapshot = module | {"name": "examined"}
    counts, events = module | {"pstate": "counts"}, module | {"depot": "events"}
    of_module = "/api/v1/modules/{module}"
    # What the path says, the query and the body; in an order in which each has what it needs.
    examples: list[tuple[str, dict[str, Any], dict[str, Any], Any]] = [
        ("GET /api/v1/cluster", {}, {}, None),
        ("GET /api/v1/nodes", {}, {}, None),
        ("PUT /api/v1/nodes/{node}/leadership", {"node": node}, {}, {"allowed": True}),
        ("GET /api/v1/operations", {}, {"module": MODULE, "limit": 5}, None),
        ("GET /api/v1/conductor/log", {}, {"level": "info", "limit": 5}, None),
        ("GET /api/v1/nodes/{node}/log", {"node": node}, {"limit": 5}, None),
        ("GET /api/v1/workers/{worker}/log", {"worker": successor}, {"limit": 5}, None),
        ("GET /api/v1/modules", {}, {}, None),
        (f"GET {of_module}", module, {}, None),
        (f"GET {of_module}/groups", module, {}, None),
        (f"GET {of_module}/groups/{{group}}", one_group, {}, None),
        (f"GET {of_module}/groups/{{group}}/story", one_group, {}, None),
        (f"GET {of_module}/groups/{{group}}/epochs", one_group, {}, None),
        (f"POST {of_module}/depots/{{depot}}/records", events, {}, {"records": [{"user": "examined"}]}),
        (f"GET {of_module}/depots/{{depot}}/records", events, {"task": 3, "limit": 5}, None),
        (f"GET {of_module}/pstates/{{pstate}}", counts, {"limit": 5}, None),
        (f"GET {of_module}/queries/{{name}}", module | {"name": "seen"}, {"argument": "examined"}, None),
        (f"GET {of_module}/failures", module, {}, None),
        (f"POST {of_module}/failures", module, {}, {"again": False, "topology": "total"}),
        ("GET /api/v1/charts", {}, {"module": MODULE, "minutes": 10}, None),
        ("GET /api/v1/options", {}, {"module": MODULE}, None),
        ("PUT /api/v1/options/{name}", option, {"module": MODULE}, {"value": 9_000}),
        ("DELETE /api/v1/options/{name}", option, {"module": MODULE}, None),
        (f"POST {of_module}/snapshots", module, {}, {"to": str(tmp_path), "name": "examined"}),
        ("GET /api/v1/snapshots", {}, {"module": MODULE}, None),
        (f"POST {of_module}/snapshots/{{name}}/verify", snapshot, {}, None),
        (f"DELETE {of_module}/snapshots/{{name}}", snapshot, {}, None),
        (f"GET {of_module}/leadership", module, {}, None),
        (f"POST {of_module}/groups/{{group}}/resign", one_group, {}, {"to": successor}),
        (f"POST {of_module}/leadership/balance", module, {}, None),
    ]
    operations = operations_of(served)
    assert {label for label, *_ in examples} == set(operations)
    for label, path, query, body in examples:
        given_body = {} if body is None else {"body": body, "media_type": "application/json"}
        case = operations[label].Case(path_parameters=path, query=query, **given_body)
        answer = case.call_and_validate(timeout=60)
        assert 200 <= answer.status_code < 300, (label, answer.text)


def test_the_epochs_of_a_group_tell_who_led_and_from_where_on(served: Served) -> None:
    def latest() -> Any:
        group = served.get(f"/modules/{MODULE}/groups/0")
        epochs = served.get(f"/modules/{MODULE}/groups/0/epochs")
        assert [each["end"] for each in epochs[:-1]] == [each["start"] for each in epochs[1:]]
        last = epochs[-1]
        return last if (last["epoch"], last["leader"]) == (group["epoch"], group["leader"]) else None

    told = wait_until("the leader of the record is that of the latest epoch", latest, 60)
    assert told["end"] is None
    assert told["at_ms"] > 0


def refusal(answer: httpx.Response) -> tuple[int, str]:
    assert answer.headers["content-type"] == "application/problem+json"
    told = answer.json()
    assert told["status"] == answer.status_code
    return answer.status_code, told["detail"]


def test_appended_records_are_read_back(served: Served) -> None:
    path = f"/modules/{MODULE}/depots/events/records"
    ends = [served.get(f"{path}?task={task}")["end"] for task in range(8)]
    records = [{"user": f"user-{number}", "number": number} for number in range(20)]
    answer = served.send("POST", path, {"records": records})
    assert (answer.status_code, answer.json()) == (201, {"appended": 20})
    pages = [served.get(f"{path}?task={task}&offset={end}") for task, end in enumerate(ends)]
    found = [each["value"] for page in pages for each in page["records"]]
    assert all(record in found for record in records)


def test_who_waits_for_topologies_is_told_what_they_returned(served: Served) -> None:
    path = f"/modules/{MODULE}/depots/events/records"
    records = [{"user": user, "counted": True} for user in ("awaited-1", "awaited-2", "awaited-1")]
    answer = served.send("POST", path, {"records": records, "ack": "all"})
    results = [{"total": 1}, {"total": 1}, {"total": 2}]
    assert (answer.status_code, answer.json()) == (201, {"appended": 3, "results": results})
    assert served.get(f"/modules/{MODULE}/pstates/totals?key=awaited-1")["value"] == 2
    answer = served.send("POST", path, {"records": records, "ack": "streams"})
    assert answer.json() == {"appended": 3, "results": [{}, {}, {}]}
    status, why = refusal(served.send("POST", path, {"records": records, "ack": "al"}))
    assert (status, why) == (400, "ack is one of all, streams, append, none; 'al' is none of them")


def test_of_a_collection_inside_of_a_pstate_the_beginning_is_told_and_the_rest_page_by_page(
    served: Served,
) -> None:
    big = 2**60
    records = [{"user": "noted", "number": big + each, "note": f"note {each}"} for each in range(20)]
    assert (
        served.send("POST", f"/modules/{MODULE}/depots/events/records", {"records": records}).status_code
        == 201
    )
    path = f"/modules/{MODULE}/pstates/notes"

    def page(query: str) -> Any:
        return served.get(f"{path}?{query}")

    wait_until("all are noted", lambda: len(page("key=noted")["entries"]) == 20, 60)
    [entry] = page("prefix=noted")["entries"]
    assert entry == {
        "key": "noted",
        "value": None,
        "inside": {"first": [big, big + 1, big + 2], "more": True},
    }
    inside = page(f"key=noted&start={big + 10}&limit=5")
    assert [each["key"] for each in inside["entries"]] == [big + 10 + each for each in range(5)]
    assert inside["entries"][0]["value"] == "note 10"
    assert inside["more"]
    assert page(f"key=noted&key={big + 3}")["value"] == "note 3"


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


def test_pages_of_other_sites_see_and_change_nothing(served: Served) -> None:
    looked = served.send("GET", "/cluster", headers={"Sec-Fetch-Site": "cross-site"})
    assert refusal(looked)[0] == 403
    path = f"/modules/{MODULE}/leadership/balance"
    for headers in ({"Origin": "http://elsewhere.example"}, {"Sec-Fetch-Site": "cross-site"}):
        assert refusal(served.send("POST", path, headers=headers))[0] == 403
    assert refusal(served.send("GET", "/cluster", headers={"Host": "elsewhere.example"}))[0] == 403
    assert served.send("POST", path, headers={"Origin": served.url}).status_code == 202


@pytest.mark.usefixtures("by_hand")
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
        answer = httpx.get(f"{served.url}/metrics", timeout=REQUEST_SECONDS)
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


def test_operations_are_told_page_by_page(served: Served) -> None:
    [latest] = served.get("/operations?limit=1")
    [before] = served.get(f"/operations?limit=1&before_ms={latest['at_ms']}")
    assert before["at_ms"] < latest["at_ms"]


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
    text = httpx.get(f"{served.url}/metrics", timeout=REQUEST_SECONDS).text
    assert 'stretto_topology_parked_records{module="Shown"' in text
    assert "stretto_function_duration_seconds_bucket" in text


def test_only_records_that_are_parked_are_tried_again_or_forgotten(served: Served) -> None:
    path = f"/modules/{MODULE}/depots/events/records"
    unlucky = {"user": "unlucky", "counted": True}
    answer = served.send("POST", path, {"records": [unlucky] * 2, "ack": "all"})
    status, why = refusal(answer)
    assert status == 409
    assert why.startswith("2 of 2 records are appended, but 2 could not be processed: of record 0 ")
    where = f"/modules/{MODULE}/failures"
    parked = served.get(where)["parked"]
    for topology in ("count", "total"):
        one, *_ = [each for each in parked if each["topology"] == topology]
        record = {name: one[name] for name in ("topology", "depot", "task", "offset")}
        forgotten = served.send("POST", where, {"again": False, "record": record})
        assert (forgotten.status_code, forgotten.json()) == (200, {"records": 1})
        for each in (record, record | {"offset": 987_654}, record | {"task": 99}, record | {"depot": "x"}):
            status, why = refusal(served.send("POST", where, {"again": False, "record": each}))
            assert status == 404
            assert why.startswith(
                f"{topology} has not parked record {each['offset']} of depot {each['depot']}"
            )
    status, why = refusal(served.send("POST", where, {"again": True, "topology": "cont"}))
    assert (status, why) == (404, f"module {MODULE} has no topology cont; did you mean count?")
    assert refusal(served.send("POST", where, {"again": False, "record": {"offset": 5}}))[0] == 400
    # What is shown may be a second old.
    left = len(parked) - 2
    assert left
    wait_until("both are gone", lambda: len(served.get(where)["parked"]) == left, 60)
    assert served.send("POST", where, {"again": False}).json() == {"records": left}
    assert served.send("POST", where, {"again": False}).json() == {"records": 0}


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
    folder.mkdir()
    status, why = refusal(served.send("POST", path, {"to": str(tmp_path), "name": "monday"}))
    assert (status, why) == (400, f"there is something in {folder} already; choose another --name or --to")
    done = served.get(f"/operations?module={MODULE}&limit=2")
    assert [(each["what"], each["outcome"]) for each in done] == [
        ("snapshot delete monday", "done"),
        (f"snapshot create monday in {folder}", f"failed: {why}"),
    ]
    status, why = refusal(served.send("POST", path, {"to": "backup"}))
    assert status == 400
    assert "name the folder from its root" in why


def test_a_word_that_nobody_knows_is_refused_before_anything_is_settled(served: Served) -> None:
    """Without it, all parked records would be meant."""
    answer = served.send("POST", f"/modules/{MODULE}/failures", {"again": False, "offset": 5})
    assert answer.status_code == 400
    assert "offset" in answer.json()["detail"]
