"""Many small requests, few large passes: one thread scores whatever is waiting."""

from __future__ import annotations

import logging
import threading
from collections import deque
from concurrent.futures import Future

import numpy as np

from referee.errors import RefereeError
from referee.models.artifact import Artifact
from referee.models.contract import Verdict
from referee.serving.bodies import MAX_FRAMES, Refused

_log = logging.getLogger(__name__)
Job = tuple[np.ndarray, "Future[Verdict]"]


class Batcher:
    """Scores frames of many threads together; a lone request goes at once, without waiting for company."""

    def __init__(self, artifact: Artifact) -> None:
        self._artifact = artifact
        self._jobs: deque[Job] = deque()
        self._wake, self._closed = threading.Condition(), False
        self._thread = threading.Thread(target=self._run, name="referee-scoring", daemon=True)
        self._thread.start()

    def score(self, frames: np.ndarray) -> Verdict:
        """The verdict on frames uint8[n,…], when their turn has come."""
        answer: Future[Verdict] = Future()
        with self._wake:
            if self._closed:
                raise Refused(503, "the server is stopping")
            self._jobs.append((frames, answer))
            self._wake.notify()
        return answer.result()

    def close(self) -> None:
        """Answer what is waiting, take nothing new."""
        with self._wake:
            self._closed = True
            self._wake.notify()
        self._thread.join()

    def _run(self) -> None:
        while True:
            with self._wake:
                self._wake.wait_for(lambda: self._jobs or self._closed)
                batch = self._take()
            if not batch:
                return
            by_shape: dict[tuple[int, ...], list[Job]] = {}
            for job in batch:
                by_shape.setdefault(job[0].shape[1:], []).append(job)
            for jobs in by_shape.values():
                self._score(jobs)

    def _take(self) -> list[Job]:
        """The oldest jobs, up to the most frames that go through the model at once."""
        batch: list[Job] = []
        room = MAX_FRAMES
        while self._jobs and (not batch or len(self._jobs[0][0]) <= room):
            batch.append(self._jobs.popleft())
            room -= len(batch[-1][0])
        return batch

    def _score(self, jobs: list[Job]) -> None:
        """One pass; jobs of one shape are right or wrong together."""
        try:
            whole = jobs[0][0] if len(jobs) == 1 else np.concatenate([frames for frames, _ in jobs])
            verdict = self._artifact.judge(whole)
            start = 0
            for frames, answer in jobs:
                rows = slice(start, start + len(frames))
                start = rows.stop
                probability = None if verdict.probability is None else verdict.probability[rows]
                success = None if verdict.success is None else verdict.success[rows]
                answer.set_result(Verdict(verdict.score[rows], probability, success))
        except Exception as error:  # whoever waits must hear of it, and the next ones must be served
            if not isinstance(error, RefereeError):
                _log.exception("scoring failed")
            for _, answer in jobs:
                if not answer.done():
                    answer.set_exception(error)
