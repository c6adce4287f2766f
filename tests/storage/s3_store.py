"""A process that speaks as much of S3 as a Delta log takes: `python s3_store.py FOLDER KEY`.

It prints its port. A process of its own: delta-rs keeps Python's lock while it waits for an answer.
"""

from __future__ import annotations

import re
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, unquote, urlsplit


class Store(BaseHTTPRequestHandler):
    """S3's GET, HEAD, list, PUT (also if absent) and DELETE over a folder, for one access key."""

    folder: Path
    key: str

    def do_GET(self) -> None:
        """An object, part of one, or a list."""
        if self._is_refused():
            return
        url = urlsplit(self.path)
        query = parse_qs(url.query)
        if "list-type" in query:
            prefix, after = (query.get(name, [""])[0] for name in ("prefix", "start-after"))
            self._answer(200, self._listed(prefix, after))
            return
        file = self._file()
        if not file.is_file():
            self._answer(404, b"<Error><Code>NoSuchKey</Code></Error>")
            return
        data, span = file.read_bytes(), self.headers.get("Range")
        if span is None:
            self._answer(200, data)
            return
        first, _, last = span.removeprefix("bytes=").partition("-")
        start = int(first) if first else len(data) - int(last)
        end = min(int(last) if first and last else len(data) - 1, len(data) - 1)
        self._answer(206, data[start : end + 1], f"bytes {start}-{end}/{len(data)}")

    do_HEAD = do_GET  # noqa: N815

    def do_PUT(self) -> None:
        """An object; one that is there already is refused if that is asked for."""
        data = self.rfile.read(int(self.headers["Content-Length"]))
        if self._is_refused():
            return
        file = self._file()
        file.parent.mkdir(parents=True, exist_ok=True)
        try:
            with file.open("xb" if self.headers.get("If-None-Match") == "*" else "wb") as out:
                out.write(data)
        except FileExistsError:
            self._answer(412, b"<Error><Code>PreconditionFailed</Code></Error>")
            return
        self._answer(200, b"")

    def do_DELETE(self) -> None:
        """One object."""
        if not self._is_refused():
            self._file().unlink(missing_ok=True)
            self._answer(204, b"")

    def do_POST(self) -> None:
        """Several objects to delete."""
        text = self.rfile.read(int(self.headers["Content-Length"])).decode()
        if not self._is_refused():
            keys = re.findall("<Key>(.*?)</Key>", text)
            for key in keys:
                (self.folder / key).unlink(missing_ok=True)
            deleted = "".join(f"<Deleted><Key>{key}</Key></Deleted>" for key in keys)
            self._answer(200, f"<DeleteResult>{deleted}</DeleteResult>".encode())

    def _is_refused(self) -> bool:
        refused = f"Credential={self.key}/" not in self.headers.get("Authorization", "")
        if refused:
            self._answer(403, b"<Error><Code>AccessDenied</Code></Error>")
        return refused

    def _file(self) -> Path:
        return self.folder / unquote(urlsplit(self.path).path).removeprefix("/lake/")

    def _listed(self, prefix: str, after: str) -> bytes:
        files = (f for f in sorted(self.folder.rglob("*")) if f.is_file())
        keys = ((f.relative_to(self.folder).as_posix(), f.stat().st_size) for f in files)
        entries = "".join(
            f"<Contents><Key>{key}</Key><LastModified>2026-01-01T00:00:00.000Z</LastModified>"
            f'<ETag>"1"</ETag><Size>{size}</Size></Contents>'
            for key, size in keys
            if key.startswith(prefix) and key > after
        )
        truncated = "<IsTruncated>false</IsTruncated>"
        return f"<ListBucketResult>{truncated}{entries}</ListBucketResult>".encode()

    def _answer(self, status: int, data: bytes, span: str | None = None) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.send_header("Last-Modified", "Thu, 01 Jan 2026 00:00:00 GMT")
        self.send_header("ETag", '"1"')
        if span:
            self.send_header("Content-Range", span)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    def log_message(self, *_: object) -> None:
        """Nothing."""


if __name__ == "__main__":
    Store.folder, Store.key = Path(sys.argv[1]), sys.argv[2]
    server = ThreadingHTTPServer(("127.0.0.1", 0), Store)
    print(server.server_port, flush=True)
    server.serve_forever()
