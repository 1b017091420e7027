"""Dynamic options: what is in force, set and unset."""

from __future__ import annotations

import msgspec

from stretto import admin
from stretto.ui.api.common import delete, find_named, get, module_named, put
from stretto.ui.desk import Desk


@get("/options", summary="Dynamic options in force at a level")
def options(desk: Desk, module: str | None = None, depot: str | None = None) -> tuple[admin.OptionView, ...]:
    if module is not None:
        module_named(desk, module)
    return desk.ask(admin.Options(level=admin.OptionLevel(module=module, depot=depot)))


class OptionValue(msgspec.Struct, frozen=True):
    value: str | int | float | bool | None


@put("/options/{name:str}", status_code=204, summary="Set an option")
def set_option(
    desk: Desk, name: str, data: OptionValue, module: str | None = None, depot: str | None = None
) -> None:
    level = _level(desk, name, module, depot)
    desk.act(admin.SetOption(level=level, name=name, value=data.value))


@delete("/options/{name:str}", summary="Let an option be what the next level says")
def unset_option(desk: Desk, name: str, module: str | None = None, depot: str | None = None) -> None:
    desk.act(admin.UnsetOption(level=_level(desk, name, module, depot), name=name))


def _level(desk: Desk, option: str, module: str | None, depot: str | None) -> admin.OptionLevel:
    if module is not None:
        module_named(desk, module)
    level = admin.OptionLevel(module=module, depot=depot)
    find_named(
        "there is no option", option, {each.name: each for each in desk.ask(admin.Options(level=level))}
    )
    return level


HANDLERS = (
    options,
    set_option,
    unset_option,
)
