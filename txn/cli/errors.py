"""A command's error as one paragraph on stderr and an exit code.

0 ended well, 1 an error, 2 a mistake on the command line, 3 fenced or another process leads, 4 a
thread hung and was left behind, 130 interrupted before anything ran (SIGTERM then: 0).
"""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import textwrap
import traceback
from typing import Any

import click

from txn.cli.options import TRACEBACK
from txn.cli.signals import StoppedEarlyError
from txn.errors import AbandonedError, FencedError, LeaderExistsError, TxnError
from txn.text import printable

__all__ = ["ErrorsAsParagraphs", "numbered"]

UNEXPECTED = "TXN-901"
ERROR, USAGE, FENCED, INTERRUPTED = 1, 2, 3, 130
_OF_ARGUMENTS = ("TXN-217", "TXN-601", "TXN-608")
"""An address to listen on, and a location of ZooKeeper: programs may give them, too."""


class ErrorsAsParagraphs(click.Group):
    """Turns an error of a command into one paragraph and an exit code."""

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command that was named."""
        try:
            return super().invoke(ctx)
        except (click.exceptions.Exit, click.ClickException, click.Abort, BrokenPipeError):
            raise
        except TxnError as error:
            message, code = numbered(error), _exit_code(error)
            cause: BaseException = error
        except StoppedEarlyError as error:
            message, code, cause = "stopped.", 0, error
        except KeyboardInterrupt as error:
            message, code, cause = "interrupted.", INTERRUPTED, error
        except Exception as error:  # noqa: BLE001 - the last line of defence of a program
            message, code, cause = numbered(error), ERROR, error
        if ctx.meta.get(TRACEBACK):
            traceback.print_exception(cause)
        click.echo(_paragraph(f"error: {message}" if code else message), err=True)
        if isinstance(cause, AbandonedError):
            _leave(code)
        return ctx.exit(code)


def numbered(error: BaseException) -> str:
    """Return an error's message with its number after the first line."""
    from txn.spark.causes import cause_line, is_of_spark

    if isinstance(error, TxnError):
        message, number = str(error), error.number
    else:
        what = cause_line(error) if is_of_spark(error) else f"{type(error).__name__}: {error}"
        message, number = f"{what} (--traceback shows where)", UNEXPECTED
    first, newline, rest = message.partition("\n")
    return f"{first} [{number}]{newline}{rest}"


def _exit_code(error: TxnError) -> int:
    from txn.operations.loading import TargetError

    if isinstance(error, FencedError | LeaderExistsError):
        return FENCED
    if isinstance(error, AbandonedError):
        return error.exit_code
    return USAGE if isinstance(error, TargetError) or error.number in _OF_ARGUMENTS else ERROR


def _leave(code: int) -> None:
    """End the process at once, without waiting for threads that hang."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    os._exit(code)


def _paragraph(message: str) -> str:
    """Wrap a message's first line to the terminal; leaves the rest (a log) alone."""
    first, newline, rest = printable(message).partition("\n")
    if sys.stderr.isatty():
        first = textwrap.fill(first, shutil.get_terminal_size().columns, break_on_hyphens=False)
    return first + newline + rest
