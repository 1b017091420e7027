"""The table of options: what is refused and how, which level wins, and what the core is told."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stretto.errors import OptionError, UsageError
from stretto.options import (
    CLUSTER,
    OPTIONS,
    TABLE,
    Level,
    Option,
    OptionSet,
    Scope,
    Value,
    option_named,
    parse,
    settings_of,
    shown,
)
from stretto.replog.core.settings import Settings

COUNTS = Level.of("counts")
EVENTS = Level.of("counts", depot="events")
LEVELS = [
    CLUSTER,
    COUNTS,
    EVENTS,
    Level.of("counts", depot="others"),
    Level.of("counts", topology="sums"),
    Level.of("counts", pstate="totals"),
    Level.of("others"),
    Level.of("others", depot="events"),
]


def legal_values(option: Option) -> st.SearchStrategy[Value]:
    if option.kind is bool:
        return st.booleans()
    if option.kind is str:
        return st.sampled_from(option.choices)
    if option.kind is float:
        return st.floats(option.low, option.high)
    low = None if option.low is None else int(option.low)
    high = None if option.high is None else int(option.high)
    return st.integers(low if low is not None else -(1 << 40), high if high is not None else 1 << 40)


@st.composite
def option_sets(draw: st.DrawFn) -> OptionSet:
    levels: dict[Level, dict[str, Any]] = {}
    for level in draw(st.lists(st.sampled_from(LEVELS), unique=True)):
        options = draw(st.lists(st.sampled_from(TABLE), unique_by=lambda option: option.name, max_size=4))
        levels[level] = {
            option.name: draw(legal_values(option)) for option in options if level.scope in option.scopes
        }
    return OptionSet(levels)


# The table.


def test_names_are_unique_and_say_their_unit() -> None:
    assert len(OPTIONS) == len(TABLE)
    for option in TABLE:
        assert option.name.endswith(".millis") == (option.unit == "ms"), option.name


@pytest.mark.parametrize("option", TABLE, ids=lambda option: option.name)
def test_a_default_is_one_that_may_be_set(option: Option) -> None:
    if option.default is None:
        assert option.default_means
    else:
        assert option.checked(option.default) == option.default
    assert option.scopes[0] is Scope.CLUSTER
    assert option.doc.endswith(".")
    assert "\n" not in option.doc


def test_defaults_are_those_of_the_core() -> None:
    assert settings_of(OptionSet(), "counts") == Settings()


def test_every_setting_of_the_core_is_an_option_except_four() -> None:
    """The lease follows from the session time-out that is granted, the pause from the module's spec, and how
    soon followers hear what is shown changes nothing that anybody can see."""
    tuned = {option.setting for option in TABLE if option.setting is not None}
    assert {each.name for each in dataclasses.fields(Settings)} - tuned == {
        "lease_ms",
        "paused",
        "news_ms",
        "news_entries",
    }


# Validation.


@given(st.sampled_from(TABLE).flatmap(lambda option: st.tuples(st.just(option), legal_values(option))))
def test_what_is_shown_is_read_back(case: tuple[Option, Value]) -> None:
    option, value = case
    assert option.parse(shown(value)) == value
    assert option.checked(value) == value


@pytest.mark.parametrize(
    ("name", "text", "sentence"),
    [
        ("replication.max.time.lag.millis", "99", "is a whole number from 100 to 3600000 (ms), not 99"),
        (
            "replication.max.time.lag.millis",
            "3600001",
            "is a whole number from 100 to 3600000 (ms), not 3600001",
        ),
        ("replication.max.time.lag.millis", "1e3", "is a whole number from 100 to 3600000 (ms), not 1000.0"),
        ("replication.max.time.lag.millis", "10s", "is a whole number from 100 to 3600000 (ms), not 10s"),
        ("replication.max.time.lag.millis", "", "is a whole number from 100 to 3600000 (ms), not "),
        ("replication.max.time.lag.millis", "true", "is a whole number from 100 to 3600000 (ms), not true"),
        ("replication.min.isr", "two", "is a whole number (replicas), not two"),
        ("replication.fsync", "never", "is always or interval, not never"),
        ("replication.unclean.election", "1", "is true or false, not 1"),
        ("leadership.balance.threshold", "-1", "is a number from 0.0 to 10.0, not -1.0"),
        ("leadership.balance.threshold", "NaN", "is a number from 0.0 to 10.0, not NaN"),
    ],
)
def test_a_bad_value_is_refused_with_what_it_may_be(name: str, text: str, sentence: str) -> None:
    with pytest.raises(OptionError) as refusal:
        parse(name, text, CLUSTER)
    assert str(refusal.value) == f"{name} {sentence}"


@pytest.mark.parametrize("value", [None, 1.5, "1.5", True, [500], {"a": 1}, object()])
def test_a_program_has_to_give_the_right_type(value: object) -> None:
    with pytest.raises(OptionError, match=r"replication\.retry\.millis is a whole number from 10 to 60000"):
        parse("replication.retry.millis", value, CLUSTER)


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("replication.min.isr", " 2 ", 2),
        ("replication.min.isr", "-1", -1),
        ("replication.unclean.election", "True", True),
        ("leadership.balance.threshold", "1", 1.0),
        ("replication.fsync", "interval", "interval"),
    ],
)
def test_values_are_read_as_people_write_them(name: str, text: str, value: Value) -> None:
    found = parse(name, text, CLUSTER)
    assert (found, type(found)) == (value, type(value))


@pytest.mark.parametrize(
    ("wrong", "nearest"),
    [
        ("replication.min.irs", "replication.min.isr"),
        ("REPLICATION_MIN_ISR", "replication.min.isr"),
        ("replication.fsink", "replication.fsync"),
        ("leadership.treshold", "leadership.balance.threshold"),
        ("append.timeout", "replication.append.timeout.millis"),
    ],
)
def test_an_unknown_name_is_refused_with_the_nearest(wrong: str, nearest: str) -> None:
    with pytest.raises(OptionError) as refusal:
        option_named(wrong)
    assert str(refusal.value) == f"there is no option {wrong}; the nearest is {nearest}"


@settings(max_examples=25)
@given(st.text(max_size=40))
def test_whatever_the_name_one_that_exists_is_told(name: str) -> None:
    if name not in OPTIONS:
        with pytest.raises(OptionError, match=r"the nearest is [a-z]"):
            option_named(name)


def test_what_concerns_a_whole_group_cannot_be_set_for_a_depot() -> None:
    with pytest.raises(
        OptionError, match=r"cannot be set for a single depot; set it for a module or cluster"
    ):
        parse("replication.min.isr", "2", EVENTS)
    assert parse("depot.max.read.bytes", "4096", EVENTS) == 4096
    with pytest.raises(OptionError, match=r"can be set for the whole cluster only"):
        parse("leadership.balance.interval.millis", "60000", COUNTS)


# Levels.


def test_levels_say_where_they_are() -> None:
    assert [str(level) for level in LEVELS[:5]] == [
        "cluster",
        "module counts",
        "depot events of module counts",
        "depot others of module counts",
        "topology sums of module counts",
    ]


def test_a_level_is_one_thing() -> None:
    with pytest.raises(UsageError, match="name the module that depot events belongs to"):
        Level.of(depot="events")
    with pytest.raises(UsageError, match="one depot, topology or PState"):
        Level.of("counts", depot="events", pstate="totals")


def test_the_most_specific_level_wins() -> None:
    name = "depot.max.read.bytes"
    levels = {CLUSTER: {name: 1_000_000}, COUNTS: {name: 2_000_000}, EVENTS: {name: 3_000_000}}
    for level in (EVENTS, COUNTS, CLUSTER):
        resolved = OptionSet(levels).resolve(name, EVENTS)
        assert (resolved.value, resolved.origin) == (levels[level][name], level)
        del levels[level]
    resolved = OptionSet(levels).resolve(name, EVENTS)
    assert (resolved.value, resolved.origin) == (OPTIONS[name].default, None)


@given(option_sets(), st.sampled_from(TABLE), st.sampled_from(LEVELS))
def test_a_value_comes_from_the_nearest_level_around_that_has_one(
    options: OptionSet, option: Option, level: Level
) -> None:
    resolved = options.resolve(option.name, level)
    around = [each for each in LEVELS if each in {level, Level.of(level.module), CLUSTER}]
    setting = [each for each in around if option.name in options.levels.get(each, {})]
    if resolved.origin is None:
        assert not setting
        assert resolved.value == option.default
    else:
        assert resolved.origin == max(setting, key=around.index)
        assert resolved.value == options.levels[resolved.origin][option.name]


@given(option_sets(), st.sampled_from(["counts", "others", "third"]))
def test_the_core_is_told_what_holds_for_its_module(options: OptionSet, module: str) -> None:
    settings = settings_of(options, module)
    for option in TABLE:
        if option.setting is not None:
            assert getattr(settings, option.setting) == options.value(option.name, Level.of(module))


def test_a_value_at_a_level_where_it_means_nothing_is_not_used() -> None:
    options = OptionSet({EVENTS: {"replication.min.isr": 1}})
    assert options.resolve("replication.min.isr", EVENTS).origin is None
