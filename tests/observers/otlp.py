"""A receiver of traces by OTLP, over HTTP or gRPC, on loopback."""

from __future__ import annotations

import gzip
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import grpc
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2_grpc import (
    TraceServiceServicer,
    add_TraceServiceServicer_to_server,
)


@dataclass
class Received:
    """What was sent."""

    url: str = ""
    requests: list[ExportTraceServiceRequest] = field(default_factory=list)

    @property
    def spans(self) -> list[Any]:
        """All spans, in the order in which they came."""
        return [
            span
            for request in self.requests
            for resource in request.resource_spans
            for scope in resource.scope_spans
            for span in scope.spans
        ]

    @property
    def attempts(self) -> dict[str, Any]:
        """txid:attempt -> its span."""
        return {name_of(span): span for span in self.spans if span.name == "attempt"}

    def stations(self, attempt: str) -> list[Any]:
        """The other spans of an attempt's trace."""
        root = self.attempts[attempt]
        return [s for s in self.spans if s.trace_id == root.trace_id and s is not root]

    def service(self) -> str:
        """Who sent it."""
        (resource,) = {str(r.resource) for q in self.requests for r in q.resource_spans}
        assert resource
        return str(attributes(self.requests[0].resource_spans[0].resource)["service.name"])


def attributes(holder: Any) -> dict[str, Any]:
    """The attributes of a span, an event, a link or a resource."""
    return {each.key: _value(each.value) for each in holder.attributes}


def name_of(span: Any) -> str:
    """txid:attempt of a span."""
    found = attributes(span)
    return f"{found['txn.txid']}:{found['txn.attempt']}"


def _value(value: Any) -> Any:
    kind = value.WhichOneof("value")
    if kind == "array_value":
        return [_value(each) for each in value.array_value.values]
    return getattr(value, kind)


@contextmanager
def over_http() -> Iterator[Received]:
    """Takes POST /v1/traces."""
    received = Received()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            if self.headers.get("Content-Encoding") == "gzip":
                body = gzip.decompress(body)
            received.requests.append(ExportTraceServiceRequest.FromString(body))
            self.send_response(200)
            self.end_headers()
            self.wfile.write(ExportTraceServiceResponse().SerializeToString())

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        received.url = f"http://127.0.0.1:{server.server_port}"
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield received
        server.shutdown()
        thread.join()


@contextmanager
def over_grpc() -> Iterator[Received]:
    """The collector's TraceService."""
    received = Received()

    class Service(TraceServiceServicer):
        def Export(self, request: Any, context: Any) -> Any:  # noqa: N802
            received.requests.append(request)
            return ExportTraceServiceResponse()

    server = grpc.server(ThreadPoolExecutor(1))
    add_TraceServiceServicer_to_server(Service(), server)
    received.url = f"http://127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    server.start()
    yield received
    server.stop(None).wait()
