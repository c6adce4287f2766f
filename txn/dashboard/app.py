"""The page as an ASGI application: paths, parameters, server-sent events, files."""

from __future__ import annotations

import asyncio
import json
import logging
import threading
import time
from collections.abc import AsyncIterator, Callable, Collection
from pathlib import Path
from typing import Any, cast

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import FileResponse, Response, StreamingResponse
from starlette.routing import BaseRoute, Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp

from txn.dashboard import api
from txn.dashboard.guard import Guard
from txn.dashboard.scrub import Scrubber, secrets_in
from txn.delta.delta_rs import DeltaError
from txn.doctor.checkup import look
from txn.doctor.findings import error
from txn.errors import TxnError, UserError
from txn.operations.watching.index import Filter, Only
from txn.operations.watching.topologies import Watch, Watched
from txn.text import first_line
from txn.zookeeper.access import credentials_in, used_credentials

__all__ = ["page"]

ASSETS = Path(__file__).parent / "assets"
_LONGEST_TEXT = 500
_LARGEST = 2**53
_LOOK_SECS = 0.25
"""How often a stream looks for news."""
_SETTLED_SECS = 0.1
"""News of one moment (ZooKeeper, logs, notes) comes within this time; all of it is waited for."""
_APART_SECS = 1.0
"""The least time between two events of a stream: each makes a browser ask again."""
_AT_LEAST_SECS = 10.0
"""How often a stream says something although nothing has changed: proxies end silent ones."""
_DOCTOR_SECS = 60.0
_ENDED_EARLY = "The doctor stopped there: what it would have looked at next is not known."
_OF_STORAGE = frozenset({"transaction", "rows", "changes", "bad-rows"})
"""Questions for which storage is read, each time that they are asked."""
_READERS = 8
"""So many of these are answered at once. Others wait, so that they leave threads to the rest."""

log = logging.getLogger("txn.dashboard")

Answer = Callable[[Request], dict[str, Any]]


def page(watch: Watch, hosts: Collection[str] | None, token: str | None = None) -> ASGIApp:
    """The application, with its guard.

    Args:
        watch: entered, and left by whoever has made it.
        hosts: names in a request's Host header that are answered; see `Guard`.
        token: what a reader has to show; None: nothing.
    """
    views = _Views(watch)
    answers: dict[str, Answer] = {
        "overview": lambda _: api.overview(watch),
        "topology": lambda r: api.topology(views.topology(r), _number(r, "minutes", most=600_000)),
        "transactions": views.transactions,
        "transaction": lambda r: api.transaction(views.topology(r), _needed(r, "txid")),
        "tables": lambda r: api.tables(views.topology(r)),
        "versions": views.versions,
        "rows": views.rows,
        "changes": views.changes,
        "trouble": lambda r: api.trouble(views.topology(r)),
        "bad-rows": lambda r: api.bad_rows(views.topology(r)),
        "doctor": views.doctor,
    }
    routes: list[BaseRoute] = [
        Route(f"/api/{name}", views.endpoint(answer, name in _OF_STORAGE), methods=["GET"])
        for name, answer in answers.items()
    ]
    routes += [
        Route("/api/events", views.events, methods=["GET"]),
        Route("/", _index, methods=["GET"]),
        Mount("/assets", _Assets(directory=ASSETS)),
    ]
    return Guard(Starlette(routes=routes), hosts, token)


class _Assets(StaticFiles):
    """Files that a browser asks for again after an upgrade: unchanged ones cost it no bytes."""

    def file_response(self, *args: Any, **more: Any) -> Response:
        """The file, or that it has not changed."""
        found = super().file_response(*args, **more)
        found.headers["Cache-Control"] = "no-cache"
        return found


async def _index(_: Request) -> Response:
    return FileResponse(ASSETS / "index.html", headers={"Cache-Control": "no-cache"})


class _Views:
    """Requests in, answers out."""

    def __init__(self, watch: Watch) -> None:
        self._watch = watch
        self._doctors: dict[str, _Doctor] = {}
        self._readers = asyncio.Semaphore(_READERS)
        self._sharing = threading.Lock()
        self._shared: tuple[Any, float, str] = None, 0.0, ""
        """The newest overview as JSON: what it follows from, when it was made."""

    def endpoint(self, answer: Answer, of_storage: bool) -> Callable[[Request], Any]:
        """A view, run in a thread: its answer as JSON, an error as JSON too."""

        def view(request: Request) -> Response:
            began, before = time.perf_counter(), time.thread_time()
            try:
                told, status = answer(request), 200
            except UserError as failure:
                told, status = {"error": str(failure)}, 404
            except (TxnError, DeltaError, OSError, ValueError) as failure:
                told, status = {"error": first_line(failure)}, 502
            except Exception as failure:
                log.exception("%s could not be answered", request.url.path)
                told, status = {"error": first_line(failure)}, 500
            found = self._json(told, status)
            took = (time.perf_counter() - began) * 1000
            worked = (time.thread_time() - before) * 1000
            found.headers["Server-Timing"] = f"app;dur={took:.1f}, cpu;dur={worked:.1f}"
            return found

        async def reading(request: Request) -> Response:
            async with self._readers:
                return await run_in_threadpool(view, request)

        return reading if of_storage else view

    def _json(self, told: Any, status: int) -> Response:
        headers = {"Cache-Control": "no-store"}
        return Response(self._text(told), status, headers, "application/json")

    def _text(self, told: Any) -> str:
        return json.dumps(self._scrubber().answer(told), separators=(",", ":"))

    def _scrubber(self) -> Scrubber:
        secrets = used_credentials()
        for watched in map(self._watch.topology, self._watch.names):
            secrets |= secrets_in(table.options for table in watched.tables)
            secrets |= credentials_in(watched.config)
        return Scrubber(secrets)

    def topology(self, request: Request) -> Watched:
        """The topology that a request names; the only one if it names none."""
        name = request.query_params.get("name")
        names = self._watch.names
        if name is None and len(names) == 1:
            name = names[0]
        return self._watch.topology(name or "")

    # --- answers with several parameters -----------------------------------------------------

    def transactions(self, request: Request) -> dict[str, Any]:
        """A page of txids."""
        watched, asked = self.topology(request), request.query_params
        only = asked.get("only", "all")
        if only not in Only.__args__:  # type: ignore[attr-defined]
            raise UserError(f"only= is one of {', '.join(Only.__args__)}.")  # type: ignore[attr-defined]
        table = watched.table(asked["table"]).number if asked.get("table") else None
        wanted = Filter(
            asked.get("q", "")[:_LONGEST_TEXT], cast("Only", only), table, watched.committed or 0
        )
        limit = _number(request, "limit", api.PAGE, api.PAGE) or 1
        return api.transactions(watched, wanted, _number(request, "before"), limit)

    def versions(self, request: Request) -> dict[str, Any]:
        """A page of a table's versions."""
        asked = request.query_params
        before, kind = _number(request, "before"), asked.get("kind") or None
        return api.versions(self.topology(request), asked.get("table", ""), before, kind)

    def rows(self, request: Request) -> dict[str, Any]:
        """The first rows of a table."""
        table, txid = request.query_params.get("table", ""), _number(request, "txid")
        limit = _number(request, "limit", 50, api.MOST_ROWS) or 1
        return api.rows(self.topology(request), table, txid, limit)

    def changes(self, request: Request) -> dict[str, Any]:
        """The difference of a table between two txids."""
        table = request.query_params.get("table", "")
        first, last = _needed(request, "from"), _needed(request, "to")
        return api.changes(self.topology(request), table, first, last)

    def doctor(self, request: Request) -> dict[str, Any]:
        """The newest findings of the doctor, and whether it is at it."""
        watched = self.topology(request)
        doctor = self._doctors.setdefault(watched.name, _Doctor())
        return doctor.ask(self._watch, watched, again=_number(request, "again") == 1)

    # --- live --------------------------------------------------------------------------------

    async def events(self, request: Request) -> Response:
        """Server-sent events: the overview whenever it changes, at most once a second."""
        headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
        if request.method == "HEAD":
            return Response(None, 200, headers, "text/event-stream")
        # Starlette ends the stream with the client's connection.
        return StreamingResponse(self._stream(), 200, headers, "text/event-stream")

    async def _stream(self) -> AsyncIterator[str]:
        seen: Any = None
        told_at = 0.0
        yield "retry: 2000\n\n"
        while True:
            if self._state() == seen and time.monotonic() - told_at < _AT_LEAST_SECS:
                await asyncio.sleep(_LOOK_SECS)
                continue
            await asyncio.sleep(_SETTLED_SECS)
            seen = now = self._state()
            told_at = time.monotonic()
            told = await asyncio.to_thread(self._overview, now)
            yield f"event: overview\ndata: {told}\n\n"
            await asyncio.sleep(_APART_SECS - _SETTLED_SECS)

    def _state(self) -> Any:
        """What the overview follows from."""
        return self._watch.revisions, self._watch.look.error

    def _overview(self, state: Any) -> str:
        """The overview as JSON; one for all streams that ask within a moment."""
        with self._sharing:
            of, made, text = self._shared
            if of != state or time.monotonic() - made > api.MOMENT_SECS:
                text = self._text(api.overview(self._watch))
                self._shared = state, time.monotonic(), text
            return text


class _Doctor:
    """The doctor's look at one topology, made in the background and kept for a minute."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._at = 0.0
        self._at_work = False
        self._findings: list[dict[str, Any]] = []

    def ask(self, watch: Watch, watched: Watched, *, again: bool) -> dict[str, Any]:
        """What was found so far; begins to look again when that is old, or if asked to."""
        with self._lock:
            if not self._at_work and (again or time.time() - self._at > _DOCTOR_SECS):
                self._at, self._at_work, self._findings = time.time(), True, []
                threading.Thread(target=self._look, args=(watch, watched), daemon=True).start()
            return {
                "at_ms": int(self._at * 1000),
                "at_work": self._at_work,
                "findings": [*self._findings],
            }

    def _look(self, watch: Watch, watched: Watched) -> None:
        try:
            tables = {table.name: table.options for table in watched.tables}
            hosts = watch.look.hosts
            zookeeper = (watch.zookeeper, hosts) if hosts else None
            for finding in look(watched.name, watched.config, tables, zookeeper):
                self._findings.append(finding.to_json())
        except Exception as failure:
            log.exception("the doctor could not look at topology '%s'", watched.name)
            told = error("doctor", "look", first_line(failure), _ENDED_EARLY, "Report it.")
            self._findings.append(told.to_json())
        with self._lock:
            self._at, self._at_work = time.time(), False


def _number(
    request: Request, name: str, default: int | None = None, most: int = _LARGEST
) -> int | None:
    """A parameter that is a number from 0.

    Raises:
        UserError: it is none.
    """
    text = request.query_params.get(name)
    if text is None or text == "":
        return default
    if not (text.isascii() and text.isdecimal() and len(text) <= 16):
        raise UserError(f"{name}= is not a number.")
    return min(int(text), most)


def _needed(request: Request, name: str) -> int:
    found = _number(request, name)
    if found is None:
        raise UserError(f"{name}= is missing.")
    return found
