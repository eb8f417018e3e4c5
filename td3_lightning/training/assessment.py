"""Returns of the training episodes that judge one policy."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from td3_lightning.envs.env_group import Step


@dataclass
class Assessment:
    """Record the minimum return of the first `episodes` episodes that one policy begins.

    Episodes that an earlier policy began do not count. The first episodes to begin count, not the first to end, because
    the latter would prefer short episodes.

    Args:
        episodes: Number of episodes.
        counts: Whether the running episode of each environment counts.
        finished: Episodes that count and have ended.
        min_return: Smallest of their returns.
    """

    episodes: int
    counts: list[bool]
    finished: int = 0
    min_return: float = math.inf

    @classmethod
    def begin(cls, episodes: int, steps: Sequence[int]) -> Assessment:
        """Begin with the episodes that have no step yet.

        Args:
            episodes: Number of episodes.
            steps: Steps in the running episode of each environment.
        """
        assessment = cls(episodes, [False] * len(steps))
        for env, steps_taken in enumerate(steps):
            assessment.counts[env] = steps_taken == 0 and assessment._has_room()
        return assessment

    def _has_room(self) -> bool:
        return self.finished + sum(self.counts) < self.episodes

    def add(self, step: Step) -> bool:
        """Add the episodes that ended in a step. Return whether one of them, or one that begins, counts."""
        before = (self.finished, list(self.counts))
        reports = iter(step.reports)
        for env, ends in enumerate(zip(step.terminated, step.truncated, strict=True)):
            if any(ends):
                self._end_episode(env, next(reports)["return"])
        return before != (self.finished, self.counts)

    def _end_episode(self, env: int, episode_return: float) -> None:
        if self.counts[env]:
            self.finished += 1
            self.min_return = min(self.min_return, episode_return)
            self.counts[env] = False
        self.counts[env] = self._has_room()

    def is_over(self, best: float) -> bool:
        """Return whether all episodes have ended, or one of them has a smaller return than the best policy."""
        return self.finished >= self.episodes or self.min_return < best
