"""Errors that the command line shows: what happened, and what to do next. Each knows its exit status."""

from __future__ import annotations

import click


class Failure(click.ClickException):
    """The operation failed (exit status 1). `next_step` is a sentence that begins with a verb."""

    exit_code = 1

    def __init__(self, message: str, *, next_step: str = "") -> None:
        super().__init__(message)
        self.next_step = next_step

    def format_message(self) -> str:
        return f"{self.message}\n{self.next_step}" if self.next_step else self.message


class CannotReach(Failure):
    """No usable broker at the given address (exit status 2): refused, silent, hung up, or not speaking Kafka."""

    exit_code = 2


class BadUsage(Failure):
    """The command line or a file named on it cannot be what was meant (exit status 2)."""

    exit_code = 2
