"""The page as an ASGI application: paths, parameters, server-sent events, files."""

from __future__ import annotations

import asyncio
import json
import logging
import threading
import time
from collections.abc import AsyncIterator, Callable, Collection
from dataclasses import asdict
from typing import Any, cast

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import FileResponse, Response, StreamingResponse
from starlette.routing import BaseRoute, Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp

from txn.backends import used_credentials
from txn.config.settings import credentials_in
from txn.dashboard import api
from txn.dashboard.guard import Guard
from txn.dashboard.scrub import Scrubber, secrets_in
from txn.dashboard.watching.entries import Filter, Only
from txn.dashboard.watching.topologies import Watch, Watched
from txn.delta.delta_rs import DeltaError
from txn.doctor.checkup import look
from txn.doctor.findings import error
from txn.errors import TxnError, UserError
from txn.machine.packaged import on_disk
from txn.text import first_line

__all__ = ["page"]

ASSETS = on_disk("txn.dashboard", "assets")
_LONGEST_TEXT = 500
_LARGEST = 2**53
_LOOK_SECS = 0.25
"""Interval in which a stream checks for news."""
_SETTLED_SECS = 0.1
"""Wait for all news of one moment (ZooKeeper, logs, notes)."""
_APART_SECS = 1.0
"""Least time between two events of a stream: each makes a browser ask again."""
_AT_LEAST_SECS = 10.0
"""Most time between two events, even without changes: proxies end silent streams."""
_DOCTOR_SECS = 60.0
_ENDED_EARLY = "The doctor stopped there: what it would have looked at next is not known."
_OF_STORAGE = frozenset({"transaction", "rows", "changes", "bad-rows"})
"""Questions that read storage every time."""
_READERS = 8
"""Most questions about storage that run at once; more wait, to leave threads to the others."""

log = logging.getLogger("txn.dashboard")

Answer = Callable[[Request], dict[str, Any]]


def page(watch: Watch, hosts: Collection[str] | None, token: str | None = None) -> ASGIApp:
    """Make the application, with its guard.

    Args:
        watch: an entered watch; the caller leaves it.
        hosts: names in a request's Host header that are answered; see `Guard`.
        token: the token that a reader has to show; None: no token is needed.
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
    """Files that a browser revalidates, to see upgrades: unchanged ones cost no bytes."""

    def file_response(self, *args: Any, **more: Any) -> Response:
        """Return the file, or the answer that it has not changed."""
        response = super().file_response(*args, **more)
        response.headers["Cache-Control"] = "no-cache"
        return response


async def _index(_: Request) -> Response:
    return FileResponse(ASSETS / "index.html", headers={"Cache-Control": "no-cache"})


class _Views:
    """Turns requests into answers."""

    def __init__(self, watch: Watch) -> None:
        self._watch = watch
        self._doctors: dict[str, _Doctor] = {}
        self._readers = asyncio.Semaphore(_READERS)
        self._sharing = threading.Lock()
        self._shared: tuple[Any, float, str] = None, 0.0, ""
        """The newest overview: (state that it was made from, time, JSON)."""

    def endpoint(self, answer: Answer, of_storage: bool) -> Callable[[Request], Any]:
        """Make a view that runs in a thread and answers with JSON, errors included."""

        def view(request: Request) -> Response:
            began, before = time.perf_counter(), time.thread_time()
            try:
                body, status = answer(request), 200
            except UserError as failure:
                body, status = {"error": str(failure)}, 404
            except (TxnError, DeltaError, OSError, ValueError) as failure:
                body, status = {"error": first_line(failure)}, 502
            except Exception as failure:
                log.exception("%s could not be answered", request.url.path)
                body, status = {"error": first_line(failure)}, 500
            text = self._text(body)
            took = (time.perf_counter() - began) * 1000
            worked = (time.thread_time() - before) * 1000
            timing = f"app;dur={took:.1f}, cpu;dur={worked:.1f}"
            headers = {"Cache-Control": "no-store", "Server-Timing": timing}
            return Response(text, status, headers, "application/json")

        async def reading(request: Request) -> Response:
            async with self._readers:
                return await run_in_threadpool(view, request)

        return reading if of_storage else view

    def _text(self, body: Any) -> str:
        return json.dumps(self._scrubber().answer(body), separators=(",", ":"))

    def _scrubber(self) -> Scrubber:
        secrets = used_credentials()
        for watched in map(self._watch.topology, self._watch.names):
            secrets |= secrets_in(table.options for table in watched.tables)
            secrets |= credentials_in(watched.config)
        return Scrubber(secrets)

    def topology(self, request: Request) -> Watched:
        """Return the topology that a request names; the only one if it names none."""
        name = request.query_params.get("name")
        names = self._watch.names
        if name is None and len(names) == 1:
            name = names[0]
        return self._watch.topology(name or "")

    # --- answers with several parameters -----------------------------------------------------

    def transactions(self, request: Request) -> dict[str, Any]:
        """Answer with a page of txids."""
        watched, asked = self.topology(request), request.query_params
        only = asked.get("only", "all")
        if only not in Only.__args__:  # type: ignore[attr-defined]
            raise UserError(f"only= is one of {', '.join(Only.__args__)}.")  # type: ignore[attr-defined]
        table = watched.table(asked["table"]).number if asked.get("table") else None
        conditions = Filter(
            asked.get("q", "")[:_LONGEST_TEXT], cast("Only", only), table, watched.committed or 0
        )
        limit = _number(request, "limit", api.PAGE, api.PAGE) or 1
        return api.transactions(watched, conditions, _number(request, "before"), limit)

    def versions(self, request: Request) -> dict[str, Any]:
        """Answer with a page of a table's versions."""
        asked = request.query_params
        before, kind = _number(request, "before"), asked.get("kind") or None
        return api.versions(self.topology(request), asked.get("table", ""), before, kind)

    def rows(self, request: Request) -> dict[str, Any]:
        """Answer with the first rows of a table."""
        table, txid = request.query_params.get("table", ""), _number(request, "txid")
        limit = _number(request, "limit", 50, api.MOST_ROWS) or 1
        return api.rows(self.topology(request), table, txid, limit)

    def changes(self, request: Request) -> dict[str, Any]:
        """Answer with the difference of a table between two txids."""
        table = request.query_params.get("table", "")
        first, last = _needed(request, "from"), _needed(request, "to")
        return api.changes(self.topology(request), table, first, last)

    def doctor(self, request: Request) -> dict[str, Any]:
        """Answer with the doctor's newest findings and its state."""
        watched = self.topology(request)
        doctor = self._doctors.setdefault(watched.name, _Doctor())
        return doctor.ask(self._watch, watched, again=_number(request, "again") == 1)

    # --- live --------------------------------------------------------------------------------

    async def events(self, request: Request) -> Response:
        """Stream server-sent events: the overview whenever it changes, at most once a second."""
        headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
        if request.method == "HEAD":
            return Response(None, 200, headers, "text/event-stream")
        # Starlette ends the stream with the client's connection.
        return StreamingResponse(self._stream(), 200, headers, "text/event-stream")

    async def _stream(self) -> AsyncIterator[str]:
        seen: Any = None
        sent_at = 0.0
        yield "retry: 2000\n\n"
        while True:
            if self._state() == seen and time.monotonic() - sent_at < _AT_LEAST_SECS:
                await asyncio.sleep(_LOOK_SECS)
                continue
            await asyncio.sleep(_SETTLED_SECS)
            seen = state = self._state()
            sent_at = time.monotonic()
            overview = await asyncio.to_thread(self._overview, state)
            yield f"event: overview\ndata: {overview}\n\n"
            await asyncio.sleep(_APART_SECS - _SETTLED_SECS)

    def _state(self) -> Any:
        """Return the state that the overview is made from."""
        return self._watch.revisions, self._watch.look.error

    def _overview(self, state: Any) -> str:
        """Return the overview as JSON; streams that ask within a moment share one."""
        with self._sharing:
            made_from, made, text = self._shared
            if made_from != state or time.monotonic() - made > api.MOMENT_SECS:
                text = self._text(api.overview(self._watch))
                self._shared = state, time.monotonic(), text
            return text


class _Doctor:
    """The doctor's findings on one topology, made in the background and kept for a minute."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._at = 0.0
        self._at_work = False
        self._findings: list[dict[str, Any]] = []

    def ask(self, watch: Watch, watched: Watched, *, again: bool) -> dict[str, Any]:
        """Return the findings so far; checks again if they are old, or if asked to."""
        with self._lock:
            if not self._at_work and (again or time.time() - self._at > _DOCTOR_SECS):
                self._at, self._at_work, self._findings = time.time(), True, []
                threading.Thread(target=self._check, args=(watch, watched), daemon=True).start()
            return {
                "at_ms": int(self._at * 1000),
                "at_work": self._at_work,
                "findings": [*self._findings],
            }

    def _check(self, watch: Watch, watched: Watched) -> None:
        try:
            tables = {t.name: t.options for t in watched.tables if t.own_log is None}
            hosts = watch.look.hosts
            zookeeper = (watch.zookeeper, hosts) if hosts else None
            for finding in look(watched.name, watched.config, tables, zookeeper):
                self._findings.append(asdict(finding))
        except Exception as failure:
            log.exception("the doctor could not look at topology '%s'", watched.name)
            ended = error("doctor", "look", first_line(failure), _ENDED_EARLY, "Report it.")
            self._findings.append(asdict(ended))
        with self._lock:
            self._at, self._at_work = time.time(), False


def _number(
    request: Request, name: str, default: int | None = None, most: int = _LARGEST
) -> int | None:
    """Parse a parameter that is a number from 0."""
    text = request.query_params.get(name)
    if text is None or text == "":
        return default
    if not (text.isascii() and text.isdecimal() and len(text) <= 16):
        raise UserError(f"{name}= is not a number.")
    return min(int(text), most)


def _needed(request: Request, name: str) -> int:
    number = _number(request, name)
    if number is None:
        raise UserError(f"{name}= is missing.")
    return number
