"""Items spread over places as evenly as can be, with the fewest moves.

Every item is at a place and may be at some others. Wanted is, in this order: the least sum of the squares of
what the places hold (which is at once the smallest maximum, the largest minimum and so on: no distribution
that can be reached is more even by any measure); the fewest items that are not where they were; and of these,
as many as possible at the first of their choices. It is a flow of least cost, found exactly.

**The graph** has an edge from place to place for every item that may take it. Its price is the change of that
item's cost: nothing at home, one move elsewhere, a little less at its first choice. Of parallel edges the
cheapest counts. Whenever a shortest path carries a unit, no cycle of negative price can arise: so the items
lie as cheaply as they can for what each place holds *at the moment*, from the first step on. *Potentials*
prove it: with them no edge has a negative price, and a path of *tight* edges, whose price is nil, is a
shortest one.

**Evening out.** With a pivot at the mean, units flow from places above to places below it over tight paths,
and potentials are raised by the distances from the places above, until no path is left. If places are still
above and below then, all that can be reached from above forms a part that nothing will ever leave: it and the
rest are evened out apart from each other.

**Settling.** When a part's places hold *n* or *n* + 1 items, it still matters which ones hold more. As long
as a path from such a place to one with *n* items has a negative price, it carries a unit.

Where no such path, and no better balance, is left between any two places, none is left at all: the cost of a
distribution is M-convex, so that the local optimum is the global one.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence
from itertools import pairwise


def spread(homes: Sequence[int | None], choices: Sequence[Sequence[int]]) -> list[int]:
    """The place of each item, given where it was and all places where it may be, best first.

    An item whose home is not among its choices has to leave it; each has a choice.
    """
    spreading = _Spreading(
        [home if home in options else None for home, options in zip(homes, choices, strict=True)], choices
    )
    spreading.even_out()
    return spreading.places


class _Spreading:
    def __init__(self, homes: Sequence[int | None], choices: Sequence[Sequence[int]]) -> None:
        self._choices = choices
        self._homes = homes
        size = 1 + max((place for options in choices for place in options), default=-1)
        #: The place where items begin that have to leave their home; none ever enters it.
        self._outside = size
        self._move_price = 1 + len(choices)
        self.places = [self._outside if home is None else home for home in homes]
        self._held = [0] * (size + 1)
        #: Items that may take an edge, with its price, cheapest first. One that has left stays in until it is
        #: the cheapest; the first is always there.
        self._items: list[dict[int, list[tuple[int, int]]]] = [{} for _ in range(size + 1)]
        #: The price of each edge that some item may take.
        self._price: list[dict[int, int]] = [{} for _ in range(size + 1)]
        #: Potentials of places: no edge of a part has price + potential of its begin < potential of its end.
        self._potential = [0] * (size + 1)
        for item, place in enumerate(self.places):
            self._enter(item, place)

    def even_out(self) -> None:
        parts = [set(range(self._outside + 1))]
        while parts:
            part = parts.pop()
            if not self._held[self._outside]:
                part.discard(self._outside)
            if not part:
                continue
            mean = sum(self._held[place] for place in part) // len(part - {self._outside})
            closed = self._flow(part, mean) or self._flow(part, mean + 1)
            if closed:
                parts += [part - closed, closed]
            else:
                self._settle(part, mean)

    def _flow(self, part: set[int], pivot: int) -> set[int] | None:
        """Move units until nothing is above or nothing below the pivot.

        Returns what can be reached from above if that ends before, else None.
        """
        while True:
            above = [place for place in part if self._is_above(place, pivot)]
            below = [place for place in part if self._held[place] < pivot and place != self._outside]
            if not above or not below:
                return None
            distance = self._distances(above, part)
            reached = [distance[place] for place in below if place in distance]
            if not reached:
                return set(distance)
            self._raise(part, distance, max(reached))
            dead: set[int] = set()
            for place in sorted(above, key=lambda place: (-self._held[place], place)):
                while self._is_above(place, pivot) and (path := self._tight_path(place, part, pivot, dead)):
                    self._carry(path, pivot)

    def _is_above(self, place: int, pivot: int) -> bool:
        return self._held[place] > (0 if place == self._outside else pivot)

    def _tight_path(self, begin: int, part: set[int], pivot: int, dead: set[int]) -> list[int] | None:
        """A path of tight edges to a place below the pivot; None if there is none.

        Places from where there is none are ``dead``, and stay so.
        """
        before = {begin: begin}
        queue = [begin]
        for place in queue:
            reduced = self._potential[place]
            for target, price in self._price[place].items():
                if reduced + price != self._potential[target] or target not in part:
                    continue
                if target in before or target in dead:
                    continue
                before[target] = place
                if self._held[target] < pivot:
                    return _path(before, begin, target)
                queue.append(target)
        dead |= before.keys()
        return None

    def _carry(self, path: list[int], pivot: int) -> None:
        """Move as many units over a path as it carries for the same price."""
        prices = [self._price[begin][end] for begin, end in pairwise(path)]
        while True:
            self._carry_one(path)
            if not self._is_above(path[0], pivot) or self._held[path[-1]] >= pivot:
                return
            if prices != [self._price[begin].get(end) for begin, end in pairwise(path)]:
                return

    def _carry_one(self, path: list[int]) -> None:
        moves = [(self._items[begin][end][0][1], end) for begin, end in pairwise(path)]
        for item, end in moves:
            self._leave(item)
            self._enter(item, end)

    def _settle(self, part: set[int], fewer: int) -> None:
        again = True
        while again:
            again = False
            for place in sorted(part):
                while self._held[place] > fewer and (path := self._bargain(place, part, fewer)):
                    self._carry_one(path)
                    again = True

    def _bargain(self, begin: int, part: set[int], fewer: int) -> list[int] | None:
        """A shortest path of negative price to a place that holds ``fewer``."""
        gains = {
            place: self._potential[begin] - self._potential[place]
            for place in part
            if self._held[place] == fewer
        }
        bound = max(gains.values(), default=0)
        if bound <= 0:
            return None
        distance = {begin: 0}
        before: dict[int, int] = {}
        queue = [(0, begin)]
        while queue:
            so_far, place = heapq.heappop(queue)
            if so_far >= bound:
                break
            if so_far > distance[place]:
                continue
            if so_far < gains.get(place, 0):
                self._raise(part, distance, so_far)
                return _path(before, begin, place)
            reduced = so_far + self._potential[place]
            for target, price in self._price[place].items():
                there = reduced + price - self._potential[target]
                if target in part and there < distance.get(target, bound):
                    distance[target] = there
                    before[target] = place
                    heapq.heappush(queue, (there, target))
        return None

    def _distances(self, begins: Iterable[int], part: set[int]) -> dict[int, int]:
        """Distances by the potentials, to all places that can be reached without leaving the part."""
        distance = dict.fromkeys(begins, 0)
        queue = [(0, begin) for begin in distance]
        heapq.heapify(queue)
        while queue:
            so_far, place = heapq.heappop(queue)
            if so_far > distance[place]:
                continue
            reduced = so_far + self._potential[place]
            for target, price in self._price[place].items():
                there = reduced + price - self._potential[target]
                if target in part and (target not in distance or there < distance[target]):
                    distance[target] = there
                    heapq.heappush(queue, (there, target))
        return distance

    def _raise(self, part: set[int], distance: dict[int, int], limit: int) -> None:
        """Raise the potentials so that shortest paths up to the limit become tight."""
        for place in part:
            self._potential[place] += min(distance.get(place, limit), limit)

    def _cost(self, item: int, place: int) -> int:
        if place == self._outside or place == self._homes[item]:
            return 0
        return self._move_price - (place == self._choices[item][0])

    def _enter(self, item: int, place: int) -> None:
        self.places[item] = place
        self._held[place] += 1
        paid = self._cost(item, place)
        for target in self._choices[item]:
            if target != place:
                items = self._items[place].setdefault(target, [])
                heapq.heappush(items, (self._cost(item, target) - paid, item))
                self._price[place][target] = items[0][0]

    def _leave(self, item: int) -> None:
        place = self.places[item]
        self.places[item] = -1
        self._held[place] -= 1
        for target in self._choices[item]:
            if target == place:
                continue
            items = self._items[place][target]
            while items and self.places[items[0][1]] != place:
                heapq.heappop(items)
            if items:
                self._price[place][target] = items[0][0]
            else:
                self._price[place].pop(target, None)


def _path(before: dict[int, int], begin: int, end: int) -> list[int]:
    path = [end]
    while path[-1] != begin:
        path.append(before[path[-1]])
    return path[::-1]
