"""What Spark is told of `storage_options`, and how a location is spelled for each client."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from txn.errors import TopologyError
from txn.spark.own_session import computing_session, own_session
from txn.storage.addresses import address_of
from txn.storage.hadoop import hadoop_settings
from txn.storage.locations import identity
from txn.storage.opening import open_store
from txn.storage.storage import Storage

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ACCOUNT = "lake.dfs.core.windows.net"
KEY = {"aws_access_key_id": "id", "AWS_SECRET_ACCESS_KEY": "4711"}
ENDPOINTS = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT")
SIMPLE = "org.apache.hadoop.fs.s3a.SimpleAWSCredentialsProvider"


@pytest.fixture(autouse=True)
def _no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (*ENDPOINTS, "AWS_REGION", "AWS_DEFAULT_REGION"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize(
    ("location", "delta", "spark"),
    [
        ("s3://b/a/t", "s3://b/a/t", "s3a://b/a/t"),
        ("S3A://b/a/t/", "s3://b/a/t", "s3a://b/a/t"),
        ("s3n://b", "s3://b", "s3a://b"),
        ("gs://b/t", "gs://b/t", "gs://b/t"),
        ("gcs://b/t", "gs://b/t", "gs://b/t"),
        (
            "abfs://c@lake.dfs.core.windows.net/t",
            f"abfss://c@{ACCOUNT}/t",
            f"abfss://c@{ACCOUNT}/t",
        ),
        (
            "wasbs://c@lake.blob.core.windows.net/t",
            f"abfss://c@{ACCOUNT}/t",
            f"abfss://c@{ACCOUNT}/t",
        ),
        ("az://c/t", "az://c/t", f"abfss://c@{ACCOUNT}/t"),
        ("azure://c/t", "az://c/t", f"abfss://c@{ACCOUNT}/t"),
    ],
)
def test_each_client_has_its_own_spelling(location: str, delta: str, spark: str) -> None:
    """delta-rs and Hadoop get the names that they know, and every spelling is opened."""
    storage = Storage(f"{location}/x", {"azure_storage_account_name": "lake"})
    assert (storage.uri, storage.url("y")) == (f"{delta}/x", f"{spark}/x/y")
    assert address_of(location).for_delta == delta


def test_spellings_of_azure_are_one_place() -> None:
    """With TLS or without, by either of its services."""
    names = ("abfs://c@lake.dfs", "abfss://c@lake.dfs", "wasb://c@lake.blob", "wasbs://C@Lake.blob")
    assert len({identity(f"{name}.core.windows.net/t") for name in names}) == 1
    assert identity("az://c/t") == identity("abfs://c/t") == identity("azure://c/t/")


def test_spark_has_to_know_azures_account() -> None:
    """A location that does not name it, with options that do not, is told with both ways out."""
    with pytest.raises(TopologyError, match=r"abfss://c@ACCOUNT\.dfs.*azure_storage_account_name"):
        Storage("az://c/t").url()


@pytest.mark.parametrize(
    ("location", "way"),
    [
        ("dbfs:/x", "dbfs://"),
        ("dbfs://x/y", "/dbfs/FOLDER"),
        ("ftp://x/y", "s3://, gs://"),
        ("s3:///t", "BUCKET"),
        ("s3://key:secret@b/t", "storage_options or the environment"),
        ("abfss://c@example.org/t", "c@ACCOUNT.dfs.core.windows.net"),
    ],
)
def test_what_nobody_can_open_is_refused_by_name(location: str, way: str) -> None:
    """With the way out; nothing becomes a local folder."""
    with pytest.raises(TopologyError, match=re.escape(way)):
        open_store(location)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, {}),
        ({"aws_region": "eu-west-1"}, {"endpoint.region": "eu-west-1"}),
        (
            {"endpoint_url": "http://h:1"},
            {"endpoint": "http://h:1", "path.style.access": "true", "endpoint.region": "us-east-1"},
        ),
        (
            {
                "aws_endpoint": "http://h:1",
                "aws_virtual_hosted_style_request": "true",
                "region": "r",
            },
            {"endpoint": "http://h:1", "path.style.access": "false", "endpoint.region": "r"},
        ),
        (KEY, {"access.key": "id", "secret.key": "4711", "aws.credentials.provider": SIMPLE}),
        (
            {**KEY, "aws_session_token": "t"},
            {
                "access.key": "id",
                "secret.key": "4711",
                "session.token": "t",
                "aws.credentials.provider": SIMPLE.replace("Simple", "Temporary"),
            },
        ),
        (
            {"aws_skip_signature": "true"},
            {"aws.credentials.provider": SIMPLE.replace("Simple", "Anonymous")},
        ),
        (
            {"aws_server_side_encryption": "aws:kms", "aws_sse_kms_key_id": "k"},
            {"encryption.algorithm": "SSE-KMS", "encryption.key": "k"},
        ),
        ({"aws_request_payer": "true"}, {"requester.pays.enabled": "true"}),
    ],
)
def test_settings_of_a_bucket(options: dict[str, str], expected: dict[str, str]) -> None:
    """Every setting of S3A bears the bucket's name, so two tables may have different ones."""
    found = hadoop_settings(address_of("s3://b.c/t"), options)
    always = {"performance.flags": "create", "directory.marker.retention": "keep"}
    expected = {**always, **expected}
    assert found == {f"fs.s3a.bucket.b.c.{name}": value for name, value in expected.items()}


def test_endpoint_and_region_come_from_the_environment_and_credentials_do_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Spark goes where delta-rs goes; with whose rights, each executor finds out for itself."""
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://h:1")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "eu-west-1")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "id")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "4711")
    assert hadoop_settings(address_of("s3://b/t"), {}) == {
        "fs.s3a.bucket.b.performance.flags": "create",
        "fs.s3a.bucket.b.directory.marker.retention": "keep",
        "fs.s3a.bucket.b.endpoint": "http://h:1",
        "fs.s3a.bucket.b.path.style.access": "true",
        "fs.s3a.bucket.b.endpoint.region": "eu-west-1",
    }
    given = hadoop_settings(address_of("s3://b/t"), {"aws_region": "r", "aws_endpoint_url": "e"})
    assert given["fs.s3a.bucket.b.endpoint.region"] == "r"
    assert given["fs.s3a.bucket.b.endpoint"] == "e"


@pytest.mark.parametrize("name", [*ENDPOINTS, *(name.lower() for name in ENDPOINTS), "endpoint"])
def test_spark_goes_to_the_endpoint_of_our_own_reads(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whichever of object_store's names it has, and wherever it is said: the client's own error
    says whom it has asked.
    """
    given = {"aws_allow_http": "true", "aws_skip_signature": "true", "aws_region": "r"}

    def asked(**more: str) -> str:
        options = {**given, **more}
        store, address = open_store("s3://b/t", options)
        with pytest.raises(Exception, match="error sending request") as raised:
            store.get("x")
        endpoint = hadoop_settings(address, options)["fs.s3a.bucket.b.endpoint"]
        assert f"GET {endpoint}/b/t/x" in str(raised.value)
        return endpoint

    if name.isupper():
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    else:
        given[name] = "http://127.0.0.1:9"
    assert asked() == "http://127.0.0.1:9"
    if not name.startswith("aws_endpoint") and name != "endpoint":
        asked(aws_endpoint_url="http://127.0.0.1:1")
    asked(aws_endpoint_url_s3="http://127.0.0.1:1")
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", "http://127.0.0.1:2")
    asked()


AZURE = [
    {"azure_storage_account_key": "4711"},
    {"azure_storage_sas_token": "?sv=1&sig=4711"},
    {"azure_client_id": "c", "azure_client_secret": "4711", "azure_tenant_id": "t"},
]


@pytest.mark.parametrize(
    ("options", "kind", "name", "value"),
    [
        (AZURE[0], "SharedKey", "account.key", "4711"),
        (AZURE[1], "SAS", "sas.fixed.token", "sv=1&sig=4711"),
        (AZURE[2], "OAuth", "account.oauth2.client.secret", "4711"),
    ],
)
def test_settings_of_an_account(options: dict[str, str], kind: str, name: str, value: str) -> None:
    """Every setting of Azure's bears the account's name."""
    found = hadoop_settings(address_of(f"abfss://c@{ACCOUNT}/t"), options)
    assert found[f"fs.azure.account.auth.type.{ACCOUNT}"] == kind
    assert found[f"fs.azure.{name}.{ACCOUNT}"] == value
    assert all(key.endswith(f".{ACCOUNT}") for key in found)


def test_settings_of_google_and_of_a_disk() -> None:
    """A file of a service account; a local path needs nothing."""
    found = hadoop_settings(address_of("gs://b/t"), {"google_service_account": "/k.json"})
    assert found["fs.gs.auth.service.account.json.keyfile"] == "/k.json"
    assert hadoop_settings(None, KEY) == {}


SSE_C = {"aws_server_side_encryption": "sse-c"}


def test_plans_show_no_credential(spark: SparkSession) -> None:
    """Spark shows a writer's options in its plans: every name of a secret is one that it hides."""
    secrets = [
        name
        for location, options in (
            ("s3://b/t", {**KEY, "aws_session_token": "4711"}),
            ("s3://b/t", {**SSE_C, "aws_sse_customer_key_base64": "4711"}),
            *((f"abfss://c@{ACCOUNT}/t", options) for options in AZURE),
        )
        for name, value in hadoop_settings(address_of(location), options).items()
        if "4711" in value
    ]
    assert len(secrets) == 6
    everywhere = r"(?i)secret|password|token|access[.]?key"  # spark.redaction.regex, by default
    for session in (own_session(spark), computing_session(spark, {})):
        hidden = str(session.conf.get("spark.sql.redaction.options.regex"))
        shown = [n for n in secrets if not (re.search(everywhere, n) or re.search(hidden, n))]
        assert shown == []
    assert spark.conf.get("spark.sql.redaction.options.regex") == "(?i)url"
