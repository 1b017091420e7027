"""The options of a cluster, each declared once: what it means, what it may be, and where it may be set.

Options change while the cluster runs. They are kept in the metastore by level
(:mod:`stretto.zk.watches.options`): for the whole cluster, for a module, or for one depot, topology or PState
of a module; the most specific level that has a value wins. Validation, documentation and the core's settings
are made from :mod:`~stretto.options.table`, so that nothing about an option is said twice.
"""

from __future__ import annotations

from stretto.options.levels import CLUSTER, Level, Scope
from stretto.options.option import Option, Value, shown
from stretto.options.resolving import OptionSet, PerDepot, Resolved, settings_of
from stretto.options.table import OPTIONS, TABLE, option_named, parse

__all__ = [
    "CLUSTER",
    "OPTIONS",
    "TABLE",
    "Level",
    "Option",
    "OptionSet",
    "PerDepot",
    "Resolved",
    "Scope",
    "Value",
    "option_named",
    "parse",
    "settings_of",
    "shown",
]
