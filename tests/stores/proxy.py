"""A proxy before a storage server: it counts every request, takes its time, and does harm by rule.

    with Proxy(server.url, latency=0.030) as proxy:
        store = server.store(bucket, url=proxy.url)
        proxy.inject(Fail(503, "SlowDown"), when=puts("_delta_log/"), nth=2)

It speaks plain HTTP/1.1 to any store (S3, Azure's and Google's emulators). It hands every header
on as it came, `Host` among them, so signatures stay valid. It never asks the server twice.
"""

from __future__ import annotations

import asyncio
import re
import threading
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta, timezone
from email.utils import format_datetime, parsedate_to_datetime
from http import HTTPStatus
from itertools import accumulate
from random import Random
from types import TracebackType
from typing import Any, Protocol
from urllib.parse import parse_qsl, unquote, urlsplit

from tests.children import LOOPBACK

__all__ = [
    "Answer",
    "Delay",
    "Entry",
    "Fail",
    "Fault",
    "HideNew",
    "Hold",
    "Late",
    "LoseAnswer",
    "Proxy",
    "Repeat",
    "Request",
    "Reset",
    "Rule",
    "Skew",
    "Together",
    "lists",
    "puts",
]

IDLE_SECS = 1.0
"""A connection to the server that was idle for longer is not used again: it may be half closed."""

WATCH_SECS = 0.05
"""How often it looks whether a client that waits has gone."""

CLIENTS = (
    ("Hadoop", "s3a"),
    ("aws-sdk-java", "s3a"),
    ("aws-sdk-cpp", "pyarrow"),
    # Both are Rust's object_store and say only that; each is built with a version of its own.
    ("object_store/0.13", "delta-rs"),
    ("object_store/0.14", "obstore"),
)
"""What stands in a User-Agent, and what the log calls that client."""

HOP_BY_HOP = {"connection", "keep-alive", "transfer-encoding", "expect", "proxy-connection"}


@dataclass(frozen=True)
class Request:
    """A request as the client sent it, its body whole."""

    method: str
    target: str
    """Path and query as they stand in the request line."""
    headers: tuple[tuple[str, str], ...]
    body: bytes = field(repr=False)
    at: float
    """When it had come in, by `time.monotonic()`."""

    @property
    def path(self) -> str:
        """The decoded path, `/bucket/key`."""
        return unquote(self.target.partition("?")[0])

    @property
    def key(self) -> str:
        """The path without the bucket; of a listing, its prefix."""
        return self.query.get("prefix", "") or self.path.lstrip("/").partition("/")[2]

    @property
    def query(self) -> dict[str, str]:
        return dict(parse_qsl(self.target.partition("?")[2], keep_blank_values=True))

    @property
    def client(self) -> str:
        """Who asks, by its User-Agent."""
        agent = self.header("user-agent")
        return next((name for mark, name in CLIENTS if mark in agent), agent.partition("/")[0])

    @property
    def operation(self) -> str:
        """What it asks the store to do: `GET`, `LIST`, `PUT IF ABSENT`, `COPY`, ..."""
        query = self.query
        is_key = bool(self.path.lstrip("/").partition("/")[2])
        copies = any(self.header(f"x-{cloud}-copy-source") for cloud in ("amz", "goog", "ms"))
        match self.method:
            case "GET" if query.get("comp") == "list" or not is_key:
                return "LIST"
            case "HEAD" if not is_key:
                return "HEAD BUCKET"
            case "POST" if "delete" in query or query.get("comp") == "batch":
                return "DELETE MANY"
            case "POST" if "uploads" in query:
                return "BEGIN UPLOAD"
            case "POST" if "uploadId" in query:
                return "END UPLOAD"
            case "PUT" if "partNumber" in query or query.get("comp") == "block":
                return "PUT PART"
            case "PUT" if query.get("comp") == "blocklist":
                return "END UPLOAD"
            case "DELETE" if "uploadId" in query:
                return "ABORT UPLOAD"
            case "PUT" if copies:
                return "COPY"
            case "PUT" if self.is_conditional:
                return "PUT IF ABSENT"
        return self.method

    @property
    def kind(self) -> str:
        """What its key is: `commit`, another part of a `log`, `temporary`, `folder` or `data`."""
        key = self.key
        if re.search(r"_delta_log/\d{20}\.json$", key):
            return "commit"
        if "_delta_log" in key:
            return "log"
        if "_temporary" in key:
            return "temporary"
        return "data" if key and not key.endswith("/") else "folder"

    @property
    def is_conditional(self) -> bool:
        """Whether it must not replace anything."""
        if_absent = self.header("x-goog-if-generation-match") == "0"
        return if_absent or self.header("if-none-match") == "*"

    def header(self, name: str) -> str:
        """A header by its name in lower case; empty without one."""
        return next((value for key, value in self.headers if key.lower() == name), "")


@dataclass(frozen=True)
class Answer:
    """An answer of the server, or of a fault in its place."""

    status: int
    headers: tuple[tuple[str, str], ...] = ()
    body: bytes = field(default=b"", repr=False)


@dataclass(frozen=True)
class Entry:
    """One line of the log: a request and what came of it."""

    request: Request
    client: str
    operation: str
    key: str
    kind: str
    status: int
    """What the client was told; 0 if nothing."""
    received: int
    """Bytes of the request's body."""
    sent: int
    """Bytes of the answer's body."""
    secs: float
    """From the request's end to the answer's, or to the lost connection's."""
    faults: tuple[str, ...]
    """The rules that it met, by the names of their faults."""


class NoAnswerError(Exception):
    """The client is to wait for an answer that never comes."""


Forward = Callable[[Request], Awaitable[Answer]]


class Fault(Protocol):
    """What a rule does to a request: anything, before, after or instead of forwarding it."""

    async def __call__(self, proxy: Proxy, request: Request, forward: Forward) -> Answer:
        """The answer for the client.

        Raises:
            ConnectionResetError: the client is cut off without an answer.
            NoAnswerError: the client waits until it gives up.
        """
        ...


# --- faults ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Fail:
    """Answer with an error; the server never hears of the request."""

    status: int = 503
    code: str = "SlowDown"

    async def __call__(self, proxy: Proxy, request: Request, forward: Forward) -> Answer:
        return error(self.status, self.code)


@dataclass(frozen=True)
class Reset:
    """Cut the connection; the server never hears of the request."""

    async def __call__(self, proxy: Proxy, request: Request, forward: Forward) -> Answer:
        raise ConnectionResetError


@dataclass(frozen=True)
class LoseAnswer:
    """The server did it, and the client learns nothing.

    Args:
        status: an error to answer with; 0 cuts the connection.
    """

    status: int = 0

    async def __call__(self, proxy: Proxy, request: Request, forward: Forward) -> Answer:
        await forward(request)
        if not self.status:
            raise ConnectionResetError
        return error(self.status, "InternalError")


@dataclass(frozen=True)
class Late:
    """The client is told now that it failed; the server gets the request later.

    Args:
        secs: until the server gets it; `Proxy.settle` waits for all of them.
        status: the error; 0 answers nothing, until the client gives up.
    """

    secs: float
    status: int = 500

    async def __call__(self, proxy: Proxy, request: Request, forward: Forward) -> Answer:
        proxy.later(self.secs, request, forward)
        if not self.status:
            raise NoAnswerError
        return error(self.status, "InternalError")


@dataclass(frozen=True)
class Delay:
    """Take longer: the request on its way to the server, or the answer on its way back.

    Args:
        secs: how long, or how long at least and at most, drawn from `random` each time, so that
            requests overtake each other.
        before: delay the request.
    """

    secs: float | tuple[float, float]
    before: bool = False
    random: Random = field(default_factory=lambda: Random(0), repr=False)

    async def __call__(self, proxy: Proxy, request: Request, forward: Forward) -> Answer:
        secs = self.secs if isinstance(self.secs, float | int) else self.random.uniform(*self.secs)
        if self.before:
            await asyncio.sleep(secs)
        answer = await forward(request)
        if not self.before:
            await asyncio.sleep(secs)
        return answer


@dataclass(frozen=True)
class Hold:
    """Keep a request, or its answer, until a test says `release()`.

    Args:
        before: keep the request, so that the server gets it after what comes later.
    """

    before: bool = False
    _released: threading.Event = field(default_factory=threading.Event, repr=False)

    def release(self) -> None:
        """Let all go, also those that are yet to come."""
        self._released.set()

    async def __call__(self, proxy: Proxy, request: Request, forward: Forward) -> Answer:
        if self.before:
            await self._wait()
        answer = await forward(request)
        if not self.before:
            await self._wait()
        return answer

    async def _wait(self) -> None:
        while not self._released.is_set():  # noqa: ASYNC110 - it is set in another thread
            await asyncio.sleep(0.002)


@dataclass
class Together:
    """Hold each request until its whole round has come, and every earlier one was answered.

    A client that asks one by one what belongs to one round runs into the timeout.

    Args:
        rounds: how many requests each round has.
        secs: how long a request is held.
    """

    rounds: Sequence[int]
    secs: float = 10.0
    seen: int = field(default=0, init=False)
    answered: int = field(default=0, init=False)
    alone: list[Request] = field(default_factory=list, init=False)
    """Those that were held in vain: the others of their round did not come."""
    early: list[Request] = field(default_factory=list, init=False)
    """Those that came before an earlier round was answered."""

    async def __call__(self, proxy: Proxy, request: Request, forward: Forward) -> Answer:
        self.seen += 1
        ends = [0, *accumulate(self.rounds)]
        last = next((end for end in ends if end >= self.seen), self.seen)
        before = max(end for end in ends if end < self.seen)
        if self.answered < before:
            self.early.append(request)
        while self.seen < last:
            if time.monotonic() - request.at > self.secs:
                self.alone.append(request)
                break
            await asyncio.sleep(0.002)
        answer = await forward(request)
        self.answered += 1
        return answer


@dataclass(frozen=True)
class Repeat:
    """Answer with what the server said to the same question up to `secs` ago: deleted objects are
    still there, new ones not yet.
    """

    secs: float
    _said: dict[str, tuple[float, Answer]] = field(default_factory=dict, repr=False)

    async def __call__(self, proxy: Proxy, request: Request, forward: Forward) -> Answer:
        at, answer = self._said.get(request.target, (0.0, None))
        if answer is None or time.monotonic() - at > self.secs:
            answer = await forward(request)
            self._said[request.target] = (time.monotonic(), answer)
        return answer


@dataclass(frozen=True)
class HideNew:
    """A listing of S3 lacks what was put through this proxy less than `secs` ago, whichever
    question is asked.
    """

    secs: float

    async def __call__(self, proxy: Proxy, request: Request, forward: Forward) -> Answer:
        answer = await forward(request)
        new = {
            key.encode() for key, at in proxy.put_at.items() if time.monotonic() - at < self.secs
        }
        bucket = request.path.strip("/").partition("/")[0].encode()

        def kept(found: re.Match[bytes]) -> bytes:
            return b"" if bucket + b"/" + unescaped(found[1]) in new else found[0]

        body = re.sub(
            rb"<Contents>\s*<Key>(.*?)</Key>.*?</Contents>", kept, answer.body, flags=re.S
        )
        return replace(answer, body=body)


@dataclass(frozen=True)
class Skew:
    """The server's clock is `secs` ahead (or behind, below 0), in headers and in listings."""

    secs: float

    async def __call__(self, proxy: Proxy, request: Request, forward: Forward) -> Answer:
        answer = await forward(request)
        headers = tuple(
            (name, self._http(value))
            if name.lower() in {"date", "last-modified"}
            else (name, value)
            for name, value in answer.headers
        )
        where = rb"(?<=<LastModified>)[^<]+(?=</LastModified>)"
        body = re.sub(where, self._iso, answer.body) if request.operation == "LIST" else answer.body
        return replace(answer, headers=headers, body=body)

    def _http(self, said: str) -> str:
        moved = parsedate_to_datetime(said) + timedelta(seconds=self.secs)
        return format_datetime(moved.astimezone(timezone.utc), usegmt=True)

    def _iso(self, said: re.Match[bytes]) -> bytes:
        at = datetime.fromisoformat(said[0].decode().replace("Z", "+00:00"))
        moved = at + timedelta(seconds=self.secs)
        return moved.strftime("%Y-%m-%dT%H:%M:%S.000Z").encode()


# --- rules -------------------------------------------------------------------------------------


@dataclass
class Rule:
    """A fault, and which requests meet it."""

    fault: Fault
    when: Callable[[Request], bool]
    nth: Collection[int]
    probability: float
    random: Random
    seen: int = 0
    """Requests that `when` let through."""
    met: list[Request] = field(default_factory=list)
    """Those that met the fault."""

    def hits(self, request: Request) -> bool:
        if not self.when(request):
            return False
        self.seen += 1
        is_due = self.seen in self.nth if self.nth else True
        if not is_due or (self.probability < 1 and self.random.random() >= self.probability):
            return False
        self.met.append(request)
        return True


def puts(part: str = "") -> Callable[[Request], bool]:
    """Whether a request puts an object with that in its key."""
    return lambda request: request.operation.startswith("PUT") and part in request.key


def lists(part: str = "") -> Callable[[Request], bool]:
    """Whether a request lists a prefix with that in it."""
    return lambda request: request.operation == "LIST" and part in request.key


def error(status: int, code: str) -> Answer:
    """An error as S3 words it."""
    body = f"<Error><Code>{code}</Code><Message>injected by a test</Message></Error>"
    return Answer(status, (("Content-Type", "application/xml"),), body.encode())


def unescaped(text: bytes) -> bytes:
    for code, character in ((b"&lt;", b"<"), (b"&gt;", b">"), (b"&quot;", b'"'), (b"&amp;", b"&")):
        text = text.replace(code, character)
    return text


# --- the proxy ---------------------------------------------------------------------------------


class Proxy:
    """Forwards all that comes in at `url` to a server; in a thread of its own.

    Args:
        server: where it forwards to, `http://127.0.0.1:PORT`.
        latency: seconds that each request takes longer.
        host: the address at which it listens.
    """

    def __init__(self, server: str, latency: float = 0.0, host: str = LOOPBACK) -> None:
        parts = urlsplit(server)
        self._host, self._port = parts.hostname or LOOPBACK, parts.port or 80
        self.latency = latency
        self._listens_at = host
        self.log: list[Entry] = []
        """Every request that is over, in the order of their ends."""
        self.put_at: dict[str, float] = {}
        """`bucket/key` -> when a PUT of it had succeeded, by `time.monotonic()`."""
        self.url = ""
        self._rules: tuple[Rule, ...] = ()
        self._late: set[asyncio.Task[Any]] = set()
        self._clients: set[asyncio.Task[None]] = set()
        self._idle: list[tuple[float, asyncio.StreamReader, asyncio.StreamWriter]] = []
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="proxy", daemon=True)
        self._ready = threading.Event()

    def __enter__(self) -> Proxy:  # noqa: PYI034 - typing.Self is Python 3.11
        self._thread.start()
        assert self._ready.wait(10)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        asyncio.run_coroutine_threadsafe(self._end(), self._loop).result(10)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)

    # --- for tests ------------------------------------------------------------------------------

    def inject(
        self,
        fault: Fault,
        when: Callable[[Request], bool] = lambda _: True,
        *,
        nth: int | Collection[int] = (),
        probability: float = 1.0,
        seed: int = 0,
    ) -> Rule:
        """From now on, do that to those requests; a later rule stands before an earlier one.

        Args:
            nth: which of the requests that `when` lets through, from 1; all of them by default.
            probability: of each of those, drawn from `Random(seed)`.
        """
        chosen = (nth,) if isinstance(nth, int) else nth
        rule = Rule(fault, when, chosen, probability, Random(seed))
        self._rules = (rule, *self._rules)
        return rule

    def clear(self) -> None:
        """No rule holds any more."""
        self._rules = ()

    def settle(self, seconds: float = 30.0) -> None:
        """Wait until the server has everything that comes late."""

        async def wait() -> None:
            while self._late:
                await asyncio.gather(*self._late, return_exceptions=True)

        asyncio.run_coroutine_threadsafe(wait(), self._loop).result(seconds)

    def forget(self) -> None:
        """Begin the log anew."""
        self.log = []

    def counts(self, *by: str) -> Counter[tuple[str, ...]]:
        """How many requests there were, by fields of `Entry`: by default client and operation."""
        fields = by or ("client", "operation")
        return Counter(tuple(getattr(entry, name) for name in fields) for entry in self.log)

    # --- for faults -----------------------------------------------------------------------------

    def later(self, secs: float, request: Request, forward: Forward) -> None:
        """Forward a request in some seconds, whatever has become of its client."""

        async def deliver() -> None:
            await asyncio.sleep(secs)
            await forward(request)

        self._keep(self._loop.create_task(deliver()))

    # --- its life -------------------------------------------------------------------------------

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_until_complete(self._begin())
        self._ready.set()
        self._loop.run_forever()
        self._loop.close()

    async def _begin(self) -> None:
        self._server = await asyncio.start_server(self._client, self._listens_at, 0, limit=1 << 20)
        port = self._server.sockets[0].getsockname()[1]
        self.url = f"http://{self._listens_at}:{port}"

    async def _end(self) -> None:
        self._server.close()
        tasks = [*self._clients, *self._late]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for _, _, writer in self._idle:
            writer.close()

    # --- one client -----------------------------------------------------------------------------

    async def _client(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._clients.add(task)
        try:
            while (request := await read_request(reader, writer)) is not None:
                await self._serve(request, reader, writer)
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            writer.transport.abort()  # a reset, not an orderly end
        finally:
            self._clients.discard(task)
            writer.close()

    async def _serve(
        self, request: Request, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        """Answer one request, and write it down also if the client leaves or is cut off."""
        faults: list[str] = []
        answer = Answer(0)
        work = self._loop.create_task(self._answer(request, faults))
        try:
            while not work.done():
                await asyncio.wait({work}, timeout=WATCH_SECS)
                if reader.at_eof() and not work.done():
                    self._keep(work)  # the server does what it was asked, whoever has left
                    raise ConnectionResetError
            try:
                answer = work.result()
            except NoAnswerError:
                while not reader.at_eof():  # noqa: ASYNC110 - a stream has no event for its end
                    await asyncio.sleep(WATCH_SECS)
                raise ConnectionResetError from None
            # Before the answer: who has it finds it in the log.
            self._write_down(request, answer, faults)
            writer.write(encoded(answer, request.method))
            await writer.drain()
        except (ConnectionError, asyncio.IncompleteReadError):
            if not answer.status:
                self._write_down(request, answer, faults)
            raise

    def _write_down(self, request: Request, answer: Answer, faults: list[str]) -> None:
        sent = 0 if request.method == "HEAD" else len(answer.body)
        self.log.append(
            Entry(
                request=replace(request, body=b""),
                client=request.client,
                operation=request.operation,
                key=request.key,
                kind=request.kind,
                status=answer.status,
                received=len(request.body),
                sent=sent,
                secs=time.monotonic() - request.at,
                faults=tuple(faults),
            )
        )

    async def _answer(self, request: Request, faults: list[str]) -> Answer:
        if self.latency:
            await asyncio.sleep(self.latency)
        return await self._pass(request, self._rules, faults)

    async def _pass(self, request: Request, rules: Sequence[Rule], faults: list[str]) -> Answer:
        """Hand a request to the first rule that it meets, which may hand it on to the next ones."""
        if not rules:
            return await self._forward(request)
        first, *others = rules
        if not first.hits(request):
            return await self._pass(request, others, faults)
        faults.append(type(first.fault).__name__)
        return await first.fault(self, request, lambda it: self._pass(it, others, faults))

    def _keep(self, task: asyncio.Task[Any]) -> None:
        self._late.add(task)
        task.add_done_callback(self._forget_late)

    def _forget_late(self, task: asyncio.Task[Any]) -> None:
        self._late.discard(task)
        if not task.cancelled():
            task.exception()  # nobody else will look at it

    # --- the server -----------------------------------------------------------------------------

    async def _forward(self, request: Request) -> Answer:
        reader, writer = await self._connection()
        try:
            writer.write(head_of(request))
            writer.write(request.body)
            await writer.drain()
            answer, stays_open = await read_answer(reader, request.method)
        except BaseException:
            writer.close()
            raise
        if stays_open:
            self._idle.append((time.monotonic(), reader, writer))
        else:
            writer.close()
        if request.operation.startswith(("PUT", "COPY")) and answer.status < 300:
            self.put_at[request.path.lstrip("/")] = time.monotonic()
        return answer

    async def _connection(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        while self._idle:
            since, reader, writer = self._idle.pop()
            if time.monotonic() - since < IDLE_SECS and not reader.at_eof():
                return reader, writer
            writer.close()
        return await asyncio.open_connection(self._host, self._port, limit=1 << 20)


# --- HTTP/1.1 ----------------------------------------------------------------------------------


async def read_request(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> Request | None:
    """The next request of a connection with its body, or None at its end."""
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except asyncio.IncompleteReadError as error:
        if not error.partial:
            return None
        raise
    line, headers = parsed(head)
    method, target, _ = line.split(" ")
    named = {name.lower(): value for name, value in headers}
    if named.get("expect", "").lower() == "100-continue":
        writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
    if "chunked" in named.get("transfer-encoding", ""):
        body = await read_chunks(reader)
    else:
        body = await reader.readexactly(int(named.get("content-length", 0)))
    return Request(method, target, headers, body, time.monotonic())


async def read_answer(reader: asyncio.StreamReader, method: str) -> tuple[Answer, bool]:
    """The server's answer with its body; whether the connection can be used again."""
    status = 100
    while status < 200:
        line, headers = parsed(await reader.readuntil(b"\r\n\r\n"))
        status = int(line.split(" ")[1])
    named = {name.lower(): value for name, value in headers}
    stays_open = named.get("connection", "").lower() != "close" and line.startswith("HTTP/1.1")
    if method == "HEAD" or status in {204, 304}:
        body = b""
    elif "chunked" in named.get("transfer-encoding", ""):
        body = await read_chunks(reader)
    elif "content-length" in named:
        body = await reader.readexactly(int(named["content-length"]))
    else:
        body, stays_open = await reader.read(), False
    return Answer(status, headers, body), stays_open


async def read_chunks(reader: asyncio.StreamReader) -> bytes:
    """A body in chunks, put together."""
    parts = []
    while size := int((await reader.readuntil(b"\r\n")).partition(b";")[0], 16):
        parts.append(await reader.readexactly(size))
        await reader.readexactly(2)
    while await reader.readuntil(b"\r\n") != b"\r\n":
        pass  # trailers
    return b"".join(parts)


def parsed(head: bytes) -> tuple[str, tuple[tuple[str, str], ...]]:
    """The first line, and the headers as they stand."""
    line, *lines = head.decode("latin-1").split("\r\n")
    pairs = (one.partition(":") for one in lines if one)
    return line, tuple((name, value.strip()) for name, _, value in pairs)


def head_of(request: Request) -> bytes:
    """What the server is sent before the body."""
    is_sized = request.body or request.header("content-length") or request.method in {"PUT", "POST"}
    kept = [(name, value) for name, value in request.headers if not is_ours(name)]
    kept += [("Content-Length", str(len(request.body)))] if is_sized else []
    return written(f"{request.method} {request.target} HTTP/1.1", kept)


def encoded(answer: Answer, method: str) -> bytes:
    """What the client is sent."""
    kept = [(name, value) for name, value in answer.headers if not is_ours(name)]
    if method == "HEAD":  # the length is that of what a GET would bring
        kept += [pair for pair in answer.headers if pair[0].lower() == "content-length"]
    elif answer.status not in {204, 304}:
        kept += [("Content-Length", str(len(answer.body)))]
    head = written(f"HTTP/1.1 {answer.status} {PHRASES.get(answer.status, '-')}", kept)
    return head if method == "HEAD" else head + answer.body


PHRASES = {status.value: status.phrase for status in HTTPStatus}


def is_ours(name: str) -> bool:
    """Whether a header is about one connection, and not about the object."""
    return name.lower() in {*HOP_BY_HOP, "content-length"}


def written(line: str, headers: Collection[tuple[str, str]]) -> bytes:
    lines = [line, *(f"{name}: {value}" for name, value in headers)]
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")
