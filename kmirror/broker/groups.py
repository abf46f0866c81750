"""Consumer groups: the binding between the pure machines, `__consumer_offsets` and waiting clients. L3."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kmirror.broker.metadata import TopicState

if TYPE_CHECKING:
    from kmirror.broker.world import World


class GroupCoordinator:
    def __init__(self, world: World) -> None:
        self._world = world

    def recovered(self) -> None:
        """Replay `__consumer_offsets`, then start the timers; before anybody is served."""

    def topic_deleted(self, topic: TopicState) -> None:
        """The topic's removal is on disk."""
