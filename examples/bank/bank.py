"""A bank: money comes in by deposits and moves by transfers. No transfer is lost, and none happens twice."""

from __future__ import annotations

import msgspec

from stretto import Depot, Module, PState, microbatch, query, step


class Deposit(msgspec.Struct, tag="deposit"):
    account: str
    amount: int
    """In cents."""


class Transfer(msgspec.Struct, tag="transfer"):
    account: str
    to: str
    amount: int


class Bank(Module):
    orders = Depot(Deposit | Transfer, partition_by="account")
    balances = PState(dict[str, int])
    deposited = PState(dict[str, int])
    refused = PState(dict[str, list[Transfer]])

    @microbatch(orders)
    def book(self, order: Deposit | Transfer) -> bool:
        """Returns whether the money moved, which who appends with ack=all is told."""
        if order.amount <= 0:
            raise ValueError(f"an amount of {order.amount} moves no money")
        if isinstance(order, Deposit):
            self.deposited.increment(order.account, by=order.amount)
            self.balances.increment(order.account, by=order.amount)
        elif self.balances.get(order.account, default=0) < order.amount:
            self.refused.append(order.account, value=order)
            return False
        else:
            self.balances.increment(order.account, by=-order.amount)
            self.receive.at(order.to)(order.to, order.amount)
        return True

    @step
    def receive(self, account: str, amount: int) -> None:
        self.balances.increment(account, by=amount)

    @query(key="account")
    def balance(self, account: str) -> int:
        return int(self.balances.get(account, default=0))

    @query
    def totals(self) -> tuple[int, int]:
        """What all accounts of a task hold, and what was ever paid in there."""
        return sum(amount for _, amount in self.balances.items()), sum(
            amount for _, amount in self.deposited.items()
        )

    @totals.combine
    def totals_of_all(self, parts: list[tuple[int, int]]) -> tuple[int, int]:
        return sum(held for held, _ in parts), sum(paid_in for _, paid_in in parts)
