"""The examples load as they are, and their data is what their modules take."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from itertools import islice
from pathlib import Path

from stretto.artifact import load
from stretto.examples.wordcount.sentences import sentences
from stretto.partition import Partitioner

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


def test_every_user_of_the_word_count_has_one_task_and_every_task_has_work(tmp_path: Path) -> None:
    _, manifest = load(f"{EXAMPLES}/wordcount/wordcount.py:WordCount", tmp_path)
    assert manifest.name == "WordCount"
    (depot,) = manifest.depots
    assert depot.name == "sentences"

    partitioner = Partitioner(depot, 8)
    task_of_user: dict[str, int | None] = {}
    work: Counter[int | None] = Counter()
    for sentence in islice(sentences(), 10_000):
        record, task = partitioner.place(sentence)
        assert json.loads(record) == sentence
        assert task_of_user.setdefault(sentence["user"], task) == task
        work[task] += 1
    assert set(work) == set(range(8))
    assert len(task_of_user) > 500


def test_sentences_are_printed_as_lines_of_json_and_the_same_each_time() -> None:
    command = [sys.executable, str(EXAMPLES / "wordcount" / "sentences.py"), "20"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert [json.loads(line) for line in done.stdout.splitlines()] == list(islice(sentences(), 20))
