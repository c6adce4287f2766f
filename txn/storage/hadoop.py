"""`storage_options` as Hadoop's settings, by which Spark reads and writes at a location.

They are options of one reader or writer, and Hadoop's names have the bucket or the account in them
where Hadoop has such names: tables with different options do not collide. Hadoop keeps one client
per bucket and process, though, made with the settings of its first user.

This module leaves credentials outside of `storage_options` alone: executors find their own, as
Hadoop does by itself (environment, instance or container role), or by Spark's settings. It also
takes endpoint and region from this process's environment, because delta-rs does, and both have to
reach the same storage.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

from txn.storage.addresses import Address, account_in, option

__all__ = ["hadoop_settings"]

_S3A = "org.apache.hadoop.fs.s3a"
_ENCRYPTION = {"aws:kms": "SSE-KMS", "aws:kms:dsse": "DSSE-KMS", "sse-c": "SSE-C"}
_SAS = ("azure_storage_sas_token", "azure_storage_sas_key", "sas_token", "sas_key")
_ACCOUNT_KEY = (
    *(f"azure_storage_{kind}_key" for kind in ("account", "access", "master")),
    *("account_key", "access_key", "master_key"),
)
_SERVICE_ACCOUNT = (
    *("google_service_account", "google_service_account_path", "google_application_credentials"),
    *("service_account", "service_account_path", "application_credentials"),
)


def hadoop_settings(address: Address | None, options: Mapping[str, str]) -> dict[str, str]:
    """Settings for one location; none for a local path.

    Args:
        options: `storage_options`. Options without a setting in Hadoop are left out.
    """
    if address is None:
        return {}
    match address.kind:
        case "s3":
            settings = _s3(options)
            return {f"fs.s3a.bucket.{address.bucket}.{name}": v for name, v in settings.items()}
        case "azure":
            return _azure(address.azure_host(address.account or account_in(options)), options)
        case "gs":
            return _gs(options)
        case "hdfs":
            return {name: value for name, value in options.items() if "." in name}


def _s3(options: Mapping[str, str]) -> dict[str, str]:
    """Settings of S3A, without `fs.s3a.bucket.<bucket>.`."""
    # Every written file has a unique name, so S3A need not check first that it does not exist.
    # Hadoop 3.3 checks it nevertheless, and deletes what could be a marker of a folder above.
    settings = {"performance.flags": "create", "directory.marker.retention": "keep"}
    if endpoint := _endpoint(options):
        virtual = _s3_option(options, "virtual_hosted_style_request") or ""
        settings["endpoint"] = endpoint
        settings["path.style.access"] = str(not _is_true(virtual)).lower()
    region = _s3_option(options, "region", "default_region") or os.environ.get(
        "AWS_REGION", os.environ.get("AWS_DEFAULT_REGION")
    )
    if region or endpoint:
        # Without one, Hadoop asks S3 itself for the region, and other servers have no answer.
        settings["endpoint.region"] = region or "us-east-1"
    if _is_true(_s3_option(options, "skip_signature") or ""):
        settings["aws.credentials.provider"] = f"{_S3A}.AnonymousAWSCredentialsProvider"
    elif key := _s3_option(options, "access_key_id"):
        settings["access.key"] = key
        settings["secret.key"] = _s3_option(options, "secret_access_key") or ""
        kind = "Simple"
        if token := _s3_option(options, "session_token", "token"):
            settings["session.token"] = token
            kind = "Temporary"
        # In place of the usual chain: it would try other credentials first.
        settings["aws.credentials.provider"] = f"{_S3A}.{kind}AWSCredentialsProvider"
    if encryption := _s3_option(options, "server_side_encryption"):
        settings["encryption.algorithm"] = _ENCRYPTION.get(encryption, encryption)
        if key := _s3_option(options, "sse_kms_key_id", "sse_customer_key_base64"):
            settings["encryption.key"] = key
    if _is_true(_s3_option(options, "request_payer") or ""):
        settings["requester.pays.enabled"] = "true"
    return settings


def _endpoint(options: Mapping[str, str]) -> str | None:
    """The endpoint, as object_store chooses it: options and variables for S3 alone come first."""
    return (
        option(options, "aws_endpoint_url_s3")
        or os.environ.get("AWS_ENDPOINT_URL_S3")
        or _s3_option(options, "endpoint_url", "endpoint")
        or os.environ.get("AWS_ENDPOINT_URL")
        or os.environ.get("AWS_ENDPOINT")
    )


def _s3_option(options: Mapping[str, str], *names: str) -> str | None:
    """An option for S3, with or without `aws_` before its name."""
    return option(options, *(f"aws_{name}" for name in names), *names)


def _azure(host: str, options: Mapping[str, str]) -> dict[str, str]:
    """Settings of one account: its key, a token (SAS), or a client's secret."""

    def setting(name: str) -> str:
        return f"fs.azure.{name}.{host}"

    if token := option(options, *_SAS):
        return {
            setting("account.auth.type"): "SAS",
            setting("sas.fixed.token"): token.removeprefix("?"),
        }
    if key := option(options, *_ACCOUNT_KEY):
        return {setting("account.auth.type"): "SharedKey", setting("account.key"): key}
    secret, client, tenant = (
        option(options, f"azure_storage_{name}", f"azure_{name}", name)
        for name in ("client_secret", "client_id", "tenant_id")
    )
    if secret and client and tenant:
        provider = "org.apache.hadoop.fs.azurebfs.oauth2.ClientCredsTokenProvider"
        endpoint = f"https://login.microsoftonline.com/{tenant}/oauth2/token"
        return {
            setting("account.auth.type"): "OAuth",
            setting("account.oauth.provider.type"): provider,
            setting("account.oauth2.client.id"): client,
            setting("account.oauth2.client.secret"): secret,
            setting("account.oauth2.client.endpoint"): endpoint,
        }
    return {}


def _gs(options: Mapping[str, str]) -> dict[str, str]:
    """Settings of Google's connector: the file of a service account."""
    path = option(options, *_SERVICE_ACCOUNT)
    if path is None:
        return {}
    return {
        "fs.gs.auth.type": "SERVICE_ACCOUNT_JSON_KEYFILE",
        "fs.gs.auth.service.account.json.keyfile": path,
    }


def _is_true(text: str) -> bool:
    return text.lower() in ("1", "true", "on", "yes", "y")
