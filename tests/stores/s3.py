"""A real S3 server (S3Proxy over a folder) as a child process, out of its published jars.

    python -m tests.stores.s3     # fetches its jars, and those with which Spark reaches S3

It checks signatures, so a wrong key or secret is refused, and its conditional PUT is exact: one of
many writers wins. It listens on loopback only, and dies with the process that started it.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from pathlib import Path

from obstore.store import S3Store

from tests.children import LOOPBACK, ChildServer, free_ports, java, listens, wait_until
from txn.errors import SetupError
from txn.machine.ivy import Request, fetch
from txn.machine.jars import S3A_PACKAGES, cache_folder, package_jars

__all__ = ["KEY", "REGION", "SECRET", "S3Server", "server_jars", "spark_conf", "storage_options"]

VERSION = "4.1.0"
KEY, SECRET, REGION = "writer", "open-sesame-4711", "eu-central-1"
START_SECS = 60.0

# What it needs for other clouds and for its own metrics; none of it is loaded for a folder.
NOT_NEEDED = (
    "com.azure",
    "com.github.fge",
    "com.github.java-json-tools",
    "com.github.openstack4j*",
    "com.google.cloud",
    "com.google.errorprone",
    "com.google.j2objc",
    "com.google.jimfs",
    "com.google.protobuf",
    "com.squareup.*",
    "io.grpc",
    "io.opentelemetry*",
    "io.projectreactor*",
    "io.prometheus",
    "org.apache.httpcomponents*",
    "org.apache.sshd",
)

JVM_FLAGS = (
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    "-Xms64m",
    "-Xmx512m",
    "-Dlogback.configurationFile=logback.xml",
)

PROPERTIES = """\
s3proxy.endpoint=http://{host}:{port}
s3proxy.authorization={authorization}
s3proxy.identity={key}
s3proxy.credential={secret}
jclouds.provider=filesystem-nio2
jclouds.identity=unused
jclouds.credential=unused
jclouds.filesystem.basedir={folder}/data
"""

LOGBACK = """\
<configuration>
  <appender name="out" class="ch.qos.logback.core.ConsoleAppender">
    <encoder><pattern>%d %level %logger{0} %msg%n</pattern></encoder>
  </appender>
  <root level="WARN"><appender-ref ref="out"/></root>
</configuration>
"""


def server_jars() -> list[Path]:
    """The server's jars, fetched if they are not there yet."""
    folder = cache_folder() / "jars" / f"s3proxy-{VERSION}"
    if not folder.is_dir():
        modules = [f"org.gaul:s3proxy:{VERSION}"]
        fetch(folder, Request(f"The jars of S3Proxy {VERSION}", modules, NOT_NEEDED))
    return sorted(folder.glob("*.jar"))


class S3Server(ChildServer):
    """One S3 server in a folder, on a port that stays the same over restarts.

    Args:
        folder: holds its data (`data/<bucket>/<key>`), its configuration and its output.
        signed: refuse requests that are not signed with `KEY` and `SECRET`.
    """

    def __init__(self, folder: Path, *, signed: bool = True) -> None:
        super().__init__(folder)
        self._authorization = "aws-v2-or-v4" if signed else "none"
        (self.port,) = free_ports(1)
        self.url = f"http://{LOOPBACK}:{self.port}"

    def start(self) -> None:
        """Start it and wait until it answers."""
        (self.folder / "data").mkdir(exist_ok=True)
        self._child.start(*self._command())
        wait_until(self._answers, "the S3 server answers", START_SECS)

    def bucket(self, name: str) -> str:
        """Make an empty bucket named after a test; its name, as S3 allows it.

        Spark keeps a client per bucket, so a bucket of one's own has settings of one's own.
        """
        tidy = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")[:50]
        taken = len(list((self.folder / "data").iterdir()))
        bucket = f"{tidy}-{taken}"
        (self.folder / "data" / bucket).mkdir()
        return bucket

    def store(self, bucket: str, *, url: str | None = None, secret: str = SECRET) -> S3Store:
        """A client of ours for a bucket, straight or by way of a proxy's `url`; it never retries.

        A test of faults sees each of them.
        """
        return S3Store(
            bucket,
            endpoint=url or self.url,
            access_key_id=KEY,
            secret_access_key=secret,
            region=REGION,
            client_options={"allow_http": True, "timeout": "20s"},
            retry_config={"max_retries": 0},
        )

    def keys(self, bucket: str) -> list[str]:
        """The keys of a bucket as they lie on disk, in order; no client is asked."""
        root = self.folder / "data" / bucket
        return sorted(str(path.relative_to(root)) for path in root.rglob("*") if path.is_file())

    def _command(self) -> tuple[list[str], Mapping[str, str]]:
        """What is started, and the variables that it needs."""
        (self.folder / "logback.xml").write_text(LOGBACK, "ascii")
        said = PROPERTIES.format(
            host=LOOPBACK,
            port=self.port,
            authorization=self._authorization,
            key=KEY,
            secret=SECRET,
            folder=self.folder.resolve(),  # uploads in parts fail with a relative one
        )
        (self.folder / "s3.properties").write_text(said, "ascii")
        main = "org.gaul.s3proxy.Main"
        return java(server_jars(), JVM_FLAGS, main, "--properties", "s3.properties"), {}

    def _answers(self) -> bool:
        self._child.check()
        return listens(self.port)


def storage_options(url: str) -> dict[str, str]:
    """What `deltalake` and every other client of object_store is given for a server or proxy."""
    return {
        "aws_endpoint_url": url,
        "aws_allow_http": "true",
        "aws_access_key_id": KEY,
        "aws_secret_access_key": SECRET,
        "aws_region": REGION,
    }


def spark_conf(url: str, bucket: str) -> Mapping[str, str]:
    """Spark's settings for one bucket; a running session takes them, too (`spark.conf.set`).

    As settings of a new session, each is preceded by `spark.hadoop.`.
    """
    settings = {
        "endpoint": url,
        "endpoint.region": REGION,
        "access.key": KEY,
        "secret.key": SECRET,
        "path.style.access": "true",
    }
    return {f"fs.s3a.bucket.{bucket}.{name}": value for name, value in settings.items()}


if __name__ == "__main__":
    try:
        server_jars()
        package_jars(S3A_PACKAGES)
    except SetupError as error:
        sys.exit(str(error))
