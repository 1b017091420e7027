"""The Cluster UI in a real browser, in front of a real cluster."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import pytest
from playwright.sync_api import Browser, ConsoleMessage, Locator, Page, Route, expect, sync_playwright

from tests.integration.ui.serving import GROUPS, MODULE, Served
from tests.support.waiting import wait_until

CHROMIUM = shutil.which("chromium")
PATIENCE_MS = 60_000
NO_VALUE = "\N{EN DASH}"
KNOWN = re.compile("good|degraded")

pytestmark = pytest.mark.skipif(
    CHROMIUM is None, reason="no browser: install the distribution's package chromium to run these tests"
)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        expect.set_options(timeout=PATIENCE_MS)
        yield browser
        browser.close()


@pytest.fixture
def refusals() -> set[int]:
    """What a test makes the server refuse: it is shown in the page, and browsers log it as well."""
    return set()


@pytest.fixture
def page(browser: Browser, served: Served, refusals: set[int]) -> Iterator[Page]:
    """Whatever else goes wrong in a page fails its test."""
    page = browser.new_page(viewport={"width": 1280, "height": 900})
    page.set_default_timeout(PATIENCE_MS)
    errors: list[str] = []
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.on("console", lambda message: errors.append(message.text) if _is_error(message, refusals) else None)
    page.goto(served.url)
    yield page
    page.close()
    assert errors == []


def _is_error(message: ConsoleMessage, refusals: set[int]) -> bool:
    refused = re.search(r"status of (\d+)", message.text)
    return message.type == "error" and not (refused and int(refused[1]) in refusals)


def picture(page: Page, name: str) -> None:
    """For the documentation, where a folder for it is named."""
    folder = os.environ.get("STRETTO_PICTURES")
    if folder is not None:
        page.screenshot(path=Path(folder) / f"{name}.png", full_page=True)


def chart(page: Page, name: str) -> Locator:
    return page.locator("section.chart", has=page.get_by_role("heading", name=name))


def latest(page: Page, name: str, line: str) -> Locator:
    """The newest value of a line of a chart, by its legend."""
    return chart(page, name).locator(".u-series", has_text=line).locator(".u-value")


def go(page: Page, served: Served, where: str) -> None:
    page.goto(f"{served.url}/#{where}")


def test_a_healthy_cluster_is_told_in_one_line(page: Page) -> None:
    expect(page.locator("#health")).to_contain_text("all replicas in sync")
    expect(page.locator("#health")).to_have_attribute("data-health", "good")
    expect(page.get_by_role("link", name=MODULE)).to_be_visible()
    for node in ("node-1", "node-2", "node-3"):
        expect(page.get_by_role("link", name=node)).to_be_visible()


def test_every_page_can_be_reached_by_keyboard(page: Page) -> None:
    expect(page.get_by_role("link", name=MODULE)).to_be_visible(timeout=PATIENCE_MS)
    for _ in range(40):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.textContent") == MODULE:
            break
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", level=1)).to_have_text(f"Module {MODULE}")


def test_the_link_to_the_content_leaves_the_page_as_it_is(page: Page, served: Served) -> None:
    go(page, served, "/options")
    expect(page.get_by_role("heading", level=1)).to_have_text("Options of the cluster")
    skip = page.get_by_role("link", name="Skip to content")
    skip.focus()
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "main"
    page.reload()
    expect(page.get_by_role("heading", level=1)).to_have_text("Options of the cluster")
    go(page, served, "main")
    expect(page.get_by_role("heading", level=1)).to_have_text("Cluster")


def test_without_a_conductor_charts_and_map_go_on(page: Page, served: Served, refusals: set[int]) -> None:
    refusals.add(503)
    for told in (f"modules/{MODULE}", f"modules/{MODULE}/leadership"):
        page.route(
            f"**/api/v1/{told}", lambda route: route.fulfill(status=503, json={"detail": "no conductor"})
        )
    go(page, served, f"/modules/{MODULE}")
    expect(chart(page, "ISR count").locator("canvas")).to_be_visible(timeout=PATIENCE_MS)
    expect(page.locator("#freshness")).to_contain_text("no conductor")
    go(page, served, f"/modules/{MODULE}/leadership")
    expect(page.locator("a.cell.leader")).to_have_count(GROUPS)
    expect(page.get_by_text("How it would be balanced is not known now.")).to_be_visible()


def test_a_log_that_cannot_be_read_says_so(page: Page, served: Served, refusals: set[int]) -> None:
    refusals.add(503)
    go(page, served, "/conductor/log")
    expect(page.locator("ol.log")).to_be_visible(timeout=PATIENCE_MS)
    page.get_by_role("button", name="Pause").click()
    page.route(
        "**/api/v1/conductor/log*", lambda route: route.fulfill(status=503, json={"detail": "gone away"})
    )
    page.get_by_label("Least level").select_option("debug")
    expect(page.locator("main .error")).to_have_text("gone away")


@pytest.mark.usefixtures("by_hand")
def test_a_killed_leader_shows_its_successor_and_the_dip_of_the_isr(page: Page, served: Served) -> None:
    go(page, served, f"/modules/{MODULE}/leadership")
    leading = page.locator("a.cell.leader")
    expect(leading).to_have_count(GROUPS)
    picture(page, "leadership")
    victim = served.get(f"/modules/{MODULE}/groups/0")["leader"]
    go(page, served, f"/modules/{MODULE}/groups/0")
    expect(page.get_by_text(f"{GROUPS - 1} of {GROUPS - 1} replicas; min-ISR 2")).to_be_visible()
    expect(page.get_by_role("heading", name="Epochs")).to_be_visible()
    page.evaluate("window.stayed = true")
    with served.killed(victim):
        expect(page.get_by_text("2 of 3 replicas; min-ISR 2")).to_be_visible(timeout=PATIENCE_MS)
        leader = page.locator("dl dt:text-is('Leader') + dd")
        expect(leader).not_to_have_text(victim)
        successor = leader.inner_text()
        assert successor in served.get(f"/modules/{MODULE}/groups/0")["isr"]
        expect(page.locator("tr", has_text=successor).first).to_contain_text("leader")
        expect(page.locator("tr", has_text=victim).first).to_contain_text("○ out")
        expect(page.locator("#health")).to_have_attribute("data-health", "degraded")
        story = page.locator("ol.story li", has_text=successor)
        expect(story.filter(has_text="leads").first).to_be_visible(timeout=PATIENCE_MS)
        expect(latest(page, "ISR count", "ISR members")).to_have_text("2")
        expect(latest(page, "ISR count", "min-ISR")).to_have_text("2")
        picture(page, "group")
    # The supervisor brings it back, and it returns to the ISR.
    expect(page.get_by_text("3 of 3 replicas; min-ISR 2")).to_be_visible(timeout=PATIENCE_MS)
    assert page.evaluate("window.stayed"), "the page was loaded again"


@pytest.mark.usefixtures("by_hand")
def test_leadership_is_handed_over_from_the_map(page: Page, served: Served) -> None:
    go(page, served, f"/modules/{MODULE}/leadership")
    expect(page.locator("a.cell.leader")).to_have_count(GROUPS)
    # From who leads most to who leads least, so that the conductor leaves it there when the test is over.
    groups = [served.get(f"/modules/{MODULE}/groups/{number}") for number in range(GROUPS)]
    leads = Counter(group["leader"] for group in groups)
    number, group = max(enumerate(groups), key=lambda each: leads[each[1]["leader"]])
    others = [each for each in group["replicas"] if each["worker"] != group["leader"]]
    successor = min(others, key=lambda each: leads[each["worker"]])
    page.get_by_label("Group to hand over").select_option(str(number))
    target = page.get_by_label("Hand over to")
    expect(target.locator("option")).to_have_count(2)
    target.select_option(successor["worker"])
    page.get_by_role("button", name="Resign").click()
    expect(page.locator("form [role=status]")).to_contain_text("asked to go to")
    column = page.locator(".map section", has=page.get_by_role("link", name=successor["node"]))
    expect(column.get_by_role("link", name=f"group {number}, leads")).to_be_visible(timeout=PATIENCE_MS)


def test_a_server_that_is_gone_leaves_no_good_health_on_the_page(page: Page, refusals: set[int]) -> None:
    refusals.add(503)
    expect(page.locator("#health")).to_have_attribute("data-health", KNOWN)
    page.route("**/api/v1/**", lambda route: route.fulfill(status=503, json={"detail": "gone away"}))
    expect(page.locator("#health")).to_have_attribute("data-health", "unknown")
    expect(page.locator("#health")).to_contain_text("what is below is as old")
    expect(page.locator("#freshness")).to_contain_text("Not refreshed: gone away")
    page.unroute("**/api/v1/**")
    expect(page.locator("#health")).to_have_attribute("data-health", KNOWN)


SOMETHING = re.compile(r"[1-9]")
LINES = [
    ("Replog entries", "maximum"),
    ("Replicate duration", "99th percentile"),
    ("Replicate throughput", "depot"),
    ("Apply duration", "99th percentile"),
    ("Replicated bytes", "depot"),
    ("Task thread load", "busiest"),
    ("ISR count", "ISR members"),
]


def test_charts_have_data(page: Page, served: Served) -> None:
    leader = served.get(f"/modules/{MODULE}/groups/0")["leader"]
    for where in (f"/modules/{MODULE}/charts", f"/workers/{leader}"):
        body = {"records": [{"user": f"user-{each}"} for each in range(300)]}
        assert served.send("POST", f"/modules/{MODULE}/depots/events/records", body).status_code == 201
        go(page, served, where)
        for name, line in LINES:
            expect(chart(page, name).locator("canvas")).to_be_visible(timeout=PATIENCE_MS)
            expect(latest(page, name, line)).to_have_text(SOMETHING)
        expect(chart(page, "Replicate failures").get_by_label("Kind of entry")).to_be_visible()
        entries = chart(page, "Replog entries")
        entries.get_by_label("Of:").select_option("isr_followers")
        entries.get_by_label("Show:").select_option("unapplied")
        expect(entries.locator("canvas")).to_be_visible()
        durations = chart(page, "Replicate duration")
        durations.get_by_label("Kind of entry").select_option("depot")
        expect(latest(page, "Replicate duration", "maximum")).to_have_text(SOMETHING)
        if "modules" in where:
            picture(page, "module")


def test_a_value_of_long_ago_is_not_told_as_the_latest(page: Page, served: Served) -> None:
    go(page, served, f"/modules/{MODULE}/charts")
    expect(latest(page, "ISR count", "min-ISR")).to_have_text(SOMETHING)

    def much_later(route: Route) -> None:
        told = route.fetch().json()
        route.fulfill(json=told | {"at_ms": told["at_ms"] + 13 * 60_000})

    page.route("**/api/v1/charts?*", much_later)
    expect(latest(page, "ISR count", "min-ISR")).to_have_text(NO_VALUE)
    expect(latest(page, "ISR count", "ISR members")).to_have_text(NO_VALUE)


def test_a_module_that_nobody_may_lead_is_not_shown_as_running(page: Page, served: Served) -> None:
    def without_lease(route: Route) -> None:
        told = route.fetch().json()
        serving = [each | {"health": "bad", "state": "4 of 4 groups: no lease"} for each in told["serving"]]
        route.fulfill(json=told | {"serving": serving})

    row = page.locator("tr", has=page.get_by_role("link", name=MODULE, exact=True))
    expect(row.locator(".state.good")).to_have_text("✔ running")
    page.route("**/api/v1/cluster", without_lease)
    expect(row.locator(".state.bad")).to_have_text("✖ 4 of 4 groups: no lease")
    go(page, served, f"/modules/{MODULE}")
    expect(page.locator("dd .state.bad")).to_have_text("✖ 4 of 4 groups: no lease")


def test_an_option_of_a_topology_is_edited(page: Page, served: Served) -> None:
    name = "topology.failures.max"
    go(page, served, f"/modules/{MODULE}/options")
    of = page.get_by_label("Options of")
    expect(of.locator("option")).to_have_count(7)
    of.select_option("topology:count")
    row = page.locator("tr", has=page.get_by_label(name))
    expect(row).to_contain_text("default 1000 records")
    page.get_by_label(name).fill("77")
    row.get_by_role("button", name="Set", exact=True).click()
    expect(row).to_contain_text("topology count of module Shown")
    told = served.get(f"/options?module={MODULE}&topology=count")
    assert next(each for each in told if each["name"] == name)["value"] == 77
    row.get_by_role("button", name="Unset").click()
    expect(row).to_contain_text("default;")


def test_an_option_is_edited(page: Page, served: Served, refusals: set[int]) -> None:
    refusals.add(400)
    name = "replication.max.near.sync.message.lag"
    go(page, served, f"/modules/{MODULE}/options")
    field = page.get_by_label(name)
    row = page.locator("tr", has=field)
    field.fill("4321")
    row.get_by_role("button", name="Set", exact=True).click()
    expect(row).to_contain_text("module Shown")
    told = next(each for each in served.get(f"/options?module={MODULE}") if each["name"] == name)
    assert told["value"] == 4321
    field.fill("-1")
    row.get_by_role("button", name="Set", exact=True).click()
    expect(row.locator(".error")).to_contain_text(name)
    row.get_by_role("button", name="Unset").click()
    expect(row).to_contain_text("default")


def test_refreshing_can_be_paused(page: Page) -> None:
    expect(page.locator("#freshness")).to_contain_text("As of")
    page.get_by_role("button", name="Pause").click()
    expect(page.get_by_role("button", name="Paused")).to_have_attribute("aria-pressed", "true")
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.get_by_role("button", name="Dark").click()
    expect(page.locator("html")).to_have_attribute("data-theme", "dark")
    assert asked == []
    page.get_by_role("button", name="Paused").click()
    with page.expect_request("**/api/v1/cluster"):
        pass


def test_records_are_browsed_on_a_narrow_screen(page: Page, served: Served) -> None:
    page.set_viewport_size({"width": 360, "height": 700})
    body = {"records": [{"user": "narrow", "text": "seen"}]}
    assert served.send("POST", f"/modules/{MODULE}/depots/events/records", body).status_code == 201
    go(page, served, f"/modules/{MODULE}/data")
    expect(page.get_by_label("Depot or PState")).to_be_visible()
    expect(page.locator("main")).to_contain_text("offsets")
    expect(page.get_by_text("From offset")).to_be_visible()
    assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")


def test_a_pstate_is_paged_without_a_key_twice(page: Page, served: Served) -> None:
    records = [{"user": f"paged-{number:03}"} for number in range(120)]
    path = f"/modules/{MODULE}/depots/events/records"
    assert served.send("POST", path, {"records": records}).status_code == 201
    query = f"/modules/{MODULE}/queries/seen?argument=paged-119"
    wait_until("all are counted", lambda: served.get(query)["answer"] > 0, 60)
    go(page, served, f"/modules/{MODULE}/data")
    page.get_by_label("Depot or PState").select_option("pstate:counts")
    expect(page.locator("main")).to_contain_text("Type dict[str, int]")
    seen: list[str] = []
    rows = page.locator("tbody tr td:first-child")
    while True:
        expect(rows.first).to_be_visible(timeout=PATIENCE_MS)
        shown = rows.all_inner_texts()
        seen += shown
        following = page.get_by_role("button", name="Next page")
        if not following.count():
            break
        following.click()
        expect(rows.first).not_to_have_text(shown[0])
    assert len(seen) == len(set(seen))
    assert {json.dumps(each["user"]) for each in records} <= set(seen)


def test_keys_with_slashes_and_numbers_beyond_those_of_javascript_are_browsed(
    page: Page, served: Served
) -> None:
    user, big = "https://example.org/a", 2**53 + 1
    records = [{"user": user, "number": big + each, "note": f"note {each}"} for each in range(60)]
    where = f"/modules/{MODULE}/depots/events/records"
    assert served.send("POST", where, {"records": records}).status_code == 201
    path = f"/modules/{MODULE}/pstates/notes?key={quote(user, safe='')}&key={big + 59}"
    wait_until("all are noted", lambda: served.get(path)["value"] is not None, 60)
    go(page, served, f"/modules/{MODULE}/data")
    page.get_by_label("Depot or PState").select_option("pstate:notes")
    page.get_by_role("button", name=user).click()
    rows = page.locator("tbody tr td:first-child")
    expect(rows.first).to_have_text(str(big))
    shown = rows.all_inner_texts()
    page.get_by_role("button", name="Next page").click()
    expect(rows.first).to_have_text(str(big + 50))
    shown += rows.all_inner_texts()
    assert shown == [str(big + each) for each in range(60)]
    typed = page.get_by_label("Key, or a JSON list of keys")
    assert typed.input_value() == user
    typed.fill(json.dumps([user, big + 7]))
    page.get_by_role("button", name="Show").click()
    expect(page.locator("main pre")).to_have_text('"note 7"')


def test_a_parked_record_that_was_opened_stays_open(page: Page, served: Served) -> None:
    where = f"/modules/{MODULE}/depots/events/records"
    body = {"records": [{"user": "unlucky", "number": 1}]}
    assert served.send("POST", where, body).status_code == 201
    go(page, served, f"/modules/{MODULE}/failures")
    parked = page.locator("details")
    expect(parked.first).to_be_visible(timeout=PATIENCE_MS)
    before = parked.count()
    parked.first.locator("summary").click()
    expect(parked.first.locator("pre")).to_contain_text("no luck")
    assert served.send("POST", where, body).status_code == 201
    expect(parked).to_have_count(before + 1)
    expect(page.locator("details[open]")).to_have_count(1)
    assert page.evaluate("document.activeElement.tagName") == "SUMMARY", "the focus was lost"
    go(page, served, "/")
    problem = page.locator("ul.problems li", has_text=f"of count of {MODULE}")
    expect(problem).to_contain_text("parked")
    problem.get_by_role("link").click()
    page.once("dialog", lambda dialog: dialog.accept())
    page.get_by_role("button", name="Forget all").click()
    expect(page.locator("main")).to_contain_text("None.")


def test_the_log_of_a_worker_is_read_page_by_page_and_by_level(page: Page, served: Served) -> None:
    worker = served.get(f"/modules/{MODULE}/groups/0")["leader"]
    go(page, served, f"/workers/{worker}")
    page.get_by_role("link", name="Its log").click()
    expect(page.get_by_role("heading", level=1)).to_have_text(f"Log of worker {worker}")
    expect(page.locator("ol.log")).to_contain_text("worker_started")
    page.get_by_label("Least level").select_option("critical")
    expect(page.locator("ol.log li.info")).to_have_count(0)
