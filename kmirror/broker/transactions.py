"""Transactions: the binding between the pure machine, `__transaction_state`, markers and waiting clients. L3."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kmirror.broker.metadata import TopicState

if TYPE_CHECKING:
    from kmirror.broker.world import World


class TransactionCoordinator:
    def __init__(self, world: World) -> None:
        self._world = world

    def recovered(self) -> None:
        """Replay `__transaction_state`, then go on with what was under way; before anybody is served."""

    def topic_deleted(self, topic: TopicState) -> None:
        """The topic's removal is on disk."""
