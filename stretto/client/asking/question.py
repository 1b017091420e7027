"""One request to the replicas of a task, sent again until it is answered or its time is over."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Sequence
from typing import Any, Self

from stretto.client.asking.followers import Followers
from stretto.errors import RetriableError
from stretto.network.routing import Network, patience_ms
from stretto.replog.core.effects import Refusal
from stretto.vocabulary.groups import GroupKey
from stretto.vocabulary.types import Buffer, TaskId
from stretto.wire import messages as wire

REQUEST_TIMEOUT_MS = 3_000
"""How long a leader may take to answer before it is asked again."""
FOLLOWER_TIMEOUT_MS = 500
"""How long a follower may take to answer before the leader is asked instead."""


class Question:
    """One request to the replicas of a task, sent again until it is answered or its time is over."""

    def __init__(
        self,
        network: Network,
        module: str,
        task: TaskId,
        message: Callable[[int, GroupKey], wire.ToWorker | None],
        timeout: float,
        *,
        bodies: Sequence[Buffer] = (),
        wait_ms: int = 0,
        delay_ms: int = 0,
        then: Callable[[Question], None] | None = None,
        followers: Followers | None = None,
        final: Collection[Refusal] = (),
    ) -> None:
        """Prepare a request for a task; :meth:`begin` sends it.

        ``message`` is made for the group that holds the task; None ends the question (``has_moved``).
        ``wait_ms``: how long the worker may hold back the answer. ``then`` runs on the client's thread.
        ``followers``, if they may answer, are asked before the leader. Refusals for ``final`` reasons are
        answers.
        """
        self._network = network
        self._module = module
        self._task = task
        self._message = message
        self._sent_bodies = bodies
        self._tasks = network.view.task_counts.get(module, 0)
        self._deadline = time.monotonic() + timeout
        #: Lock that is held until there is an answer: an Event costs several times as much.
        self._unanswered = threading.Lock()
        self._unanswered.acquire()
        #: The answer; None until there is one, and if there never is.
        self.reply: wire.ToClient | None = None
        self._bodies: list[memoryview] = []
        self._last: Any = None
        self._attempts = 0
        self._wait_ms = wait_ms
        self._then = then
        self._began_at: float | None = None
        #: Milliseconds from the first send to the answer.
        self.took_ms = 0
        self.has_moved = False
        self._followers = followers
        self._final = final
        #: Number of the latest request.
        self._number: int | None = None
        self._delay_ms = delay_ms

    def begin(self) -> Self:
        """Send the request, after its delay. Safe to call from any thread."""
        if self._delay_ms:
            self._network.call(self._network.loop.call_after, self._delay_ms, self.send)
        else:
            self._network.call(self.send)
        return self

    def cancel(self) -> None:
        """Give up the request, which no caller waits for any more. Safe to call from any thread."""
        self._network.call(self._cancel)

    def _cancel(self) -> None:
        self._deadline = 0.0
        if self._number is not None:
            self._network.cancel(self._number)

    def wait(self) -> tuple[wire.ToClient, list[memoryview]]:
        """Wait for the answer, and return it as :meth:`answer` does."""
        with self._unanswered:
            return self.answer()

    def answer(self) -> tuple[wire.ToClient, list[memoryview]]:
        """Return the answer of a question that has ended; raises what it failed with, or RetriableError."""
        if isinstance(self.reply, wire.Failed):
            raise self.reply.fault.error(self.reply.why)
        if self.reply is None:
            self._network.view.check_tasks(self._module, self._tasks)
            reason = self._last.reason if isinstance(self._last, wire.Refused) else "no answer"
            raise RetriableError(
                f"task {self._task} of {self._module} cannot be read now ({reason}); try again"
            )
        return self.reply, self._bodies

    def _finish(self) -> None:
        self.took_ms = int((time.monotonic() - self._began_at) * 1_000) if self._began_at else 0
        if self._then is not None:
            self._then(self)
        self._unanswered.release()

    def send(self) -> None:
        """Send the request to a follower or the leader, unless it is late. Runs on the client's thread."""
        self._began_at = self._began_at or time.monotonic()
        if time.monotonic() > self._deadline:
            self._finish()
            return
        view = self._network.view
        group = view.of_task.get((self._module, self._task))
        if group is None or view.task_counts[self._module] != self._tasks:
            self._finish()
            return
        number = self._number = self._network.next_request()
        message = self._message(number, group)
        if message is None:
            self.has_moved = True
            self._finish()
            return
        address = self._followers.pick(group) if self._followers is not None else None
        if self._followers is None or address is None:
            self._ask_leader(group, number, message)
        else:
            self._ask_follower(self._followers, address, group, number, message)

    def _ask_follower(
        self, followers: Followers, address: str, group: GroupKey, number: int, message: wire.ToWorker
    ) -> None:
        def heard(reply: wire.ToClient | None, bodies: list[memoryview]) -> None:
            if reply is None or isinstance(reply, wire.Refused | wire.Unknown):
                followers.avoid(address, reply)
                self._ask_leader(group, number, message)
            else:
                self.reply, self._bodies = reply, bodies
                self._finish()

        timeout_ms = FOLLOWER_TIMEOUT_MS + self._wait_ms
        self._network.to_replica(address, group, number, message, heard, timeout_ms=timeout_ms)

    def _ask_leader(self, group: GroupKey, number: int, message: wire.ToWorker) -> None:
        epoch = self._network.view.epoch(group)

        def heard(reply: wire.ToClient | None, bodies: list[memoryview]) -> None:
            is_refused = isinstance(reply, wire.Refused) and reply.reason not in self._final
            if reply is None or is_refused or isinstance(reply, wire.Unknown):
                self._last = reply
                again()
            else:
                self.reply, self._bodies = reply, bodies
                self._finish()

        def again() -> None:
            within_ms = patience_ms(self._attempts)
            self._attempts += 1
            self._network.when_led_anew(group, self.send, above=epoch, within_ms=within_ms)

        if not self._network.to_leader(
            group,
            number,
            message,
            self._sent_bodies,
            heard,
            timeout_ms=REQUEST_TIMEOUT_MS,
            wait_ms=self._wait_ms,
        ):
            again()
