"""What an answer must not have in it."""

from __future__ import annotations

import json

from txn.dashboard.scrub import Scrubber, secrets_in

OPTIONS = {
    "aws_access_key_id": "AKIAEXAMPLE",
    "aws_secret_access_key": "s3cr3t/with+chars",
    "aws_region": "eu-west-1",
    "azure_storage_sas_key": "sig=abc",
    "allow_http": "true",
    "password": "abc",
}


def test_values_of_secret_options_never_appear() -> None:
    """Wherever they stand in an answer, names of fields included; harmless options stay."""
    scrubber = Scrubber(secrets_in([OPTIONS]))
    told = scrubber.answer(
        {
            "error": "PUT http://b/?k=s3cr3t/with+chars failed in eu-west-1",
            "AKIAEXAMPLE": [{"x": ("AKIAEXAMPLE", True)}],
        }
    )
    text = json.dumps(told)
    assert "s3cr3t" not in text
    assert "AKIAEXAMPLE" not in text
    assert "eu-west-1" in text
    assert told["***"] == [{"x": ["***", True]}]


def test_settings_about_secrets_are_no_secrets() -> None:
    """That requests are not signed hides no other "true"; a password of digits is one."""
    options = {"AWS_SKIP_SIGNATURE": "true", "aws_unsigned_payload": " False", "password": "2026"}
    scrubber = Scrubber(secrets_in([options]))
    told = {"true-north": ["true", "structured False"], "at": "in 2026"}
    assert scrubber.answer(told) == {**told, "at": "in ***"}


def test_credentials_in_addresses_are_hidden() -> None:
    """Of a user in a URI, and of a signed one, whoever has written them."""
    scrubber = Scrubber([])
    assert scrubber.text("s3://user:pass@bucket/t") == "s3://***@bucket/t"
    signed = "https://x/y?sv=2024&sig=a%2Fb&z=1 and ?X-Amz-Signature=ff&k=2"
    assert scrubber.text(signed) == ("https://x/y?sv=***&sig=***&z=1 and ?X-Amz-Signature=***&k=2")
    assert scrubber.text("a table at s3://bucket/t@2") == "a table at s3://bucket/t@2"


def test_text_that_hides_other_text_is_spelled_out() -> None:
    """Control characters, and those that turn text around; markup stays, as text."""
    assert Scrubber([]).text("a\x1b[2Jb\u202ec<b>\n\td") == "a\\x1b[2Jb\\u202ec<b>\n\td"


def test_numbers_that_a_browser_would_change_become_text() -> None:
    """Large integers, infinities and NaN."""
    told = Scrubber([]).answer([2**53, 2**53 + 1, -(2**60), float("nan"), float("inf"), 1.5, None])
    assert told == [2**53, str(2**53 + 1), str(-(2**60)), "nan", "inf", 1.5, None]
    assert json.loads(json.dumps(told, allow_nan=False)) == told
