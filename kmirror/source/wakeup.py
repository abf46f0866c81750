"""Tells tasks that there may be something to do, without losing a call that comes between looking and waiting."""

from __future__ import annotations

import math

import trio


class Wakeup:
    """Remember `serial` before looking for work, then `wait(seen)`: it returns at once if a wake came meanwhile."""

    def __init__(self) -> None:
        self.serial = 0
        self._waiting = trio.lowlevel.ParkingLot()

    def wake(self) -> None:
        self.serial += 1
        self._waiting.unpark_all()

    async def wait(self, seen: int, *, timeout_s: float = math.inf) -> None:
        """Until the serial is beyond `seen`, or the time is over."""
        with trio.move_on_after(max(0.0, timeout_s)):
            while self.serial == seen:
                await self._waiting.park()
