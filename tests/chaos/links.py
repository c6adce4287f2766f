"""The drivers' links to ZooKeeper: a TCP proxy per server, which can be slow, silent or cut.

A slot is a set of links, one per server, for one living driver: so a driver can be cut off while
its successor is not. The proxies run in a thread with an event loop of their own. From the first
answer of each connection a link learns the session's id and password.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field

from tests.children import free_ports

__all__ = ["Links", "Session", "Slot", "Trouble"]

LOOPBACK = "127.0.0.1"
CHUNK = 65536
CLOSE_SECS = 0.05
POLL_SECS = 0.02


@dataclass(frozen=True)
class Session:
    """A ZooKeeper session as its server named it."""

    id: int
    password: bytes


@dataclass(frozen=True, eq=False)
class Trouble:
    """What is wrong with a slot for a while."""

    delay_secs: float = 0.0
    """Before each piece of data is passed on."""
    silent: bool = False
    """Nothing is passed on, and nobody is told: a network that swallows packets."""
    cut: bool = False
    """Connections are closed, and new ones too."""


@dataclass
class Slot:
    """The links of one driver."""

    ports: list[int]
    troubles: set[Trouble] = field(default_factory=set)
    session: Session | None = None
    """The newest one that was opened over these links."""
    connections: set[asyncio.StreamWriter] = field(default_factory=set)

    @property
    def hosts(self) -> str:
        """The connect string of the driver that has this slot."""
        return ",".join(f"{LOOPBACK}:{port}" for port in self.ports)


class Links:
    """Slots of links to the same servers.

    Args:
        targets: the servers' ports.
        slots: how many drivers may be alive at once.
    """

    def __init__(self, targets: Sequence[int], slots: int) -> None:
        ports = free_ports(slots * len(targets))
        self.slots = [Slot(ports[n::slots][: len(targets)]) for n in range(slots)]
        self._targets = list(targets)

    def start(self) -> None:
        """Listen."""
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self._listen(), self._loop).result(10)

    def stop(self) -> None:
        """Close everything."""
        asyncio.run_coroutine_threadsafe(self._close(), self._loop).result(10)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()

    def begin(self, slot: Slot, trouble: Trouble) -> None:
        """From now on the slot's links are in trouble; troubles add up."""
        self._call(lambda: self._begin(slot, trouble))

    def end(self, slot: Slot, trouble: Trouble) -> None:
        """No longer in this one."""
        self._call(lambda: slot.troubles.discard(trouble))

    @contextlib.contextmanager
    def trouble(self, slot: Slot, trouble: Trouble) -> Iterator[None]:
        """The slot's links are in trouble for the time of the block."""
        self.begin(slot, trouble)
        try:
            yield
        finally:
            self.end(slot, trouble)

    # --- in the loop's thread --------------------------------------------------------------------

    def _call(self, function: Callable[[], None]) -> None:
        async def call() -> None:
            function()

        asyncio.run_coroutine_threadsafe(call(), self._loop).result(10)

    def _begin(self, slot: Slot, trouble: Trouble) -> None:
        slot.troubles.add(trouble)
        if trouble.cut:
            for connection in slot.connections:
                connection.transport.abort()

    async def _listen(self) -> None:
        self._servers = []
        for slot in self.slots:
            for port, target in zip(slot.ports, self._targets, strict=True):
                serve = self._server_of(slot, target)
                self._servers.append(await asyncio.start_server(serve, LOOPBACK, port))

    async def _close(self) -> None:
        for server in self._servers:
            server.close()
        for slot in self.slots:
            slot.troubles.clear()
            for connection in slot.connections:
                connection.transport.abort()
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.sleep(CLOSE_SECS)  # aborted transports close a moment later

    def _server_of(
        self, slot: Slot, target: int
    ) -> Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]:
        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await self._serve(slot, target, reader, writer)

        return serve

    async def _serve(
        self, slot: Slot, target: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        if any(trouble.cut for trouble in slot.troubles):
            writer.transport.abort()
            return
        try:
            there, to_there = await asyncio.open_connection(LOOPBACK, target)
        except OSError:  # the server is away: so is the link
            writer.transport.abort()
            return
        ends = {writer, to_there}
        slot.connections |= ends
        pumps = [
            asyncio.create_task(_pump(slot, reader, to_there)),
            asyncio.create_task(_pump(slot, there, writer, answers=True)),
        ]
        try:
            await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for pump in pumps:
                pump.cancel()
            slot.connections -= ends
            for end in ends:
                end.transport.abort()


async def _pump(
    slot: Slot, source: asyncio.StreamReader, sink: asyncio.StreamWriter, *, answers: bool = False
) -> None:
    """Pass data on, as slowly as the slot's troubles say, until either end closes."""
    with contextlib.suppress(OSError):
        while data := await source.read(CHUNK):
            if answers:
                answers = False
                slot.session = _session(data) or slot.session
            while any(trouble.silent for trouble in slot.troubles):  # noqa: ASYNC110 - simple
                await asyncio.sleep(POLL_SECS)
            delay = max((trouble.delay_secs for trouble in slot.troubles), default=0.0)
            if delay:
                await asyncio.sleep(delay)
            sink.write(data)
            await sink.drain()


def _session(answer: bytes) -> Session | None:
    """Out of ZooKeeper's answer to a connect: length, protocol version, timeout, id, password."""
    if len(answer) < 40 or int.from_bytes(answer[20:24], "big") != 16:
        return None
    found = Session(int.from_bytes(answer[12:20], "big", signed=True), answer[24:40])
    return found if found.id else None
