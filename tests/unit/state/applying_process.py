"""A process that applies a log as fast as it can, until it is killed. Run with a folder and a seed."""

from __future__ import annotations

import random
import sys
from pathlib import Path

from stretto.pstate.changes import Changes
from stretto.replog.frame import Kind
from tests.support.entries import TASKS, Log, open_state


def make_log(chance: random.Random, *, frames: int) -> Log:
    """Always the same for the same seed: producers, batches of all sizes, changes of rows."""
    log = Log()
    log.add(Kind.EPOCH)
    sequences: dict[int, dict[int, int]] = {}
    for number in range(frames):
        if not sequences or chance.random() < 0.03:
            sequences[number + 1] = {}
            log.add(Kind.PRODUCER_OPEN, producer=number + 1)
        elif len(sequences) > 3 or chance.random() < 0.02:
            producer = chance.choice(list(sequences))
            del sequences[producer]
            log.add(Kind.PRODUCER_EXPIRE, producer=producer)
        elif chance.random() < 0.2:
            keys = [b"%05d" % chance.randrange(5_000) for _ in range(chance.choice([1, 20, 200]))]
            ranges = ((min(keys), max(keys) + b"x"),) if chance.random() < 0.3 else ()
            puts = tuple((key, b"%d" % number) for key in keys)
            log.state(Changes(ranges, tuple(keys[:2]), puts), task=chance.choice(TASKS))
        else:
            producer = chance.choice(list(sequences))
            task = chance.choice(TASKS)
            count = chance.choice([1, 2, 50])
            sequence = sequences[producer].get(task, 0)
            sequences[producer][task] = sequence + count
            log.depot(
                [b"%d-%d" % (number, index) * chance.choice([1, 20]) for index in range(count)],
                task=task,
                depot=chance.choice(["events", "clicks"]),
                producer=producer,
                sequence=sequence,
                timestamp_ms=number,
            )
    return log


def main(folder: Path, seed: int) -> None:
    log = make_log(random.Random(seed), frames=3000)
    chance = random.Random()
    state = open_state(folder / "state", map_bytes=64 * 1024)
    # The parent has recovered it, so all tasks are at the same offset or idle.
    at = next(index for index, frame in enumerate(log.frames) if frame.end_offset > state.applied)
    while at < len(log.frames):
        # The first entry, an epoch's, changes nothing: by itself it is not committed, and a kill forgets it.
        group = log.frames[at : at + chance.randint(2 if at == 0 else 1, 8)]
        at += len(group)
        state.apply(group)
        if chance.random() < 0.2:
            state.checkpoint()
        sys.stdout.write(f"{state.applied}\n")
        sys.stdout.flush()
    sys.stdin.read()


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
