"""Settings from outside of a program, and the page that describes them."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

import pytest
from pydantic import ValidationError

from txn import Topology, TopologyConfig
from txn.config.settings import completed, overridden
from txn.errors import UserError
from txn.operations.loading import load_topology

PAGE = Path(__file__).parents[2] / "docs" / "configuration.md"


def described() -> list[str]:
    """A line of the page's table for each setting."""
    lines = []
    for name, field in TopologyConfig.model_fields.items():
        default = "" if field.default in (None, ()) else repr(field.default).replace("'", '"')
        text = " ".join((field.description or "").split())
        lines.append(f"| `{name}` | {f'`{default}`' if default else 'none'} | {text} |")
    return lines


def test_the_page_describes_every_setting() -> None:
    """The table in docs/configuration.md is that of the code; `TXN_REWRITE=1` writes it anew."""
    head, table, rest = re.split(
        r"(?<=\| --- \| --- \| --- \|\n)((?:\|.*\n)*)", PAGE.read_text("utf-8")
    )
    if "TXN_REWRITE" in os.environ:
        PAGE.write_text(head + "\n".join(described()) + "\n" + rest, "utf-8")
    assert table.splitlines() == described()


def test_help_describes_every_setting() -> None:
    """`help(TopologyConfig)` has each setting with its default and its meaning."""
    text = TopologyConfig.__doc__ or ""
    for name, field in TopologyConfig.model_fields.items():
        assert field.description, name
        assert f"{name} (default {field.default!r}): {field.description.split()[0]}" in text


def test_what_stands_nearest_to_the_run_wins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`--set`, the program, the environment, txn.toml, pyproject.toml, in this order; each setting
    knows where it stands.
    """
    (tmp_path / "pyproject.toml").write_text(
        "[tool.txn]\nackers = 0\nretry_backoff_ms = 1\nmax_spout_pending = 1\n"
    )
    (tmp_path / "txn.toml").write_text(
        'retry_backoff_ms = 2\nmax_spout_pending = 2\nshared_folders = ["/a"]\n'
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("TXN_ZOOKEEPER_ACL", raising=False)
    monkeypatch.setenv("TXN_MAX_SPOUT_PENDING", "3")
    monkeypatch.setenv("TXN_MAX_GROUP_COMMIT", "3")
    monkeypatch.setenv("TXN_SHARED_FOLDERS", "/b:/c")
    found = Topology("t", TopologyConfig(max_group_commit=4, verify="rows")).settings
    assert (found.ackers, found.retry_backoff_ms, found.max_spout_pending) == (0, 2, 3)
    assert (found.max_group_commit, found.verify) == (4, "rows")
    assert found.shared_folders == ("/b", "/c")
    assert found.places == {
        "ackers": "ackers in [tool.txn] of pyproject.toml",
        "retry_backoff_ms": "retry_backoff_ms in txn.toml",
        "max_spout_pending": "environment variable TXN_MAX_SPOUT_PENDING",
        "shared_folders": "environment variable TXN_SHARED_FOLDERS",
    }
    last = overridden(found, ["max_group_commit=5", "verify=edges"])
    assert (last.max_group_commit, last.verify, last.ackers) == (5, "edges", 0)
    assert last.places["max_group_commit"] == "--set max_group_commit"
    assert last.places["ackers"] == found.places["ackers"]


@pytest.mark.parametrize(
    ("file", "text", "says"),
    [
        (
            "txn.toml",
            "max_spout_pendng = 2",
            "^max_spout_pendng in .*txn.toml: .*Did you mean max_spout_pend",
        ),
        ("txn.toml", "colour = 2", "'colour' is not a setting of a topology. docs/config"),
        (
            "txn.toml",
            "ackers = -1",
            r"^ackers in .*txn.toml cannot be used \(-?\d+\): .*greater than or equal",
        ),
        ("txn.toml", "ackers = ", "Settings cannot be read from .*txn.toml: Invalid value"),
        (
            "txn.toml",
            'zookeeper_auth = [["digest", "canary"]]',
            "is a secret.*TXN_ZOOKEEPER_AUTH_F",
        ),
        ("pyproject.toml", "[tool]\ntxn = 1", "tool.txn in .*pyproject.toml is not a table"),
        ("pyproject.toml", "[tool.txn]\nverfy = 1", "of .*pyproject.toml: .*Did you mean verify"),
    ],
)
def test_a_file_that_means_nothing(tmp_path: Path, file: str, text: str, says: str) -> None:
    """The setting and the file are named, and a secret is not repeated."""
    (tmp_path / file).write_text(text)
    with pytest.raises(UserError, match=says) as error:
        completed(TopologyConfig(), {}, [tmp_path])
    assert "canary" not in str(error.value)


@pytest.mark.parametrize(
    ("pair", "says"),
    [
        ("max_spout_pending", "--set max_spout_pending is not NAME=VALUE"),
        ("max_spout_pendng=2", "--set max_spout_pendng: .*Did you mean max_spout_pending"),
        ("ackers=many", r"--set ackers cannot be used \('many'\): Input should be a valid integer"),
        ("zookeeper_auth=digest:me:canary", "would show a secret.*TXN_ZOOKEEPER_AUTH_FILE=PATH"),
    ],
)
def test_a_value_on_the_command_line_that_means_nothing(pair: str, says: str) -> None:
    """It is refused by name, and a secret is not repeated."""
    with pytest.raises(UserError, match=says) as error:
        overridden(TopologyConfig(), [pair])
    assert "canary" not in str(error.value)


def test_a_misspelt_setting_in_the_program_is_told_the_nearest_name() -> None:
    """`TopologyConfig(max_batch_attempt=3)` names `max_batch_attempts`."""
    with pytest.raises(ValidationError, match="Did you mean max_batch_attempts"):
        TopologyConfig(max_batch_attempt=3)  # type: ignore[call-arg]


@pytest.mark.parametrize("name", ["max_group_commit", "max_group_processing"])
def test_a_group_is_no_longer_than_vacuum_and_the_sweep_look_back(name: str) -> None:
    """A group of 64 txids is allowed, and one of 65 is refused with the setting and the bound."""
    assert getattr(TopologyConfig.model_validate({name: 64}), name) == 64
    with pytest.raises(ValidationError, match=f"{name}\n.*less than or equal to 64"):
        TopologyConfig.model_validate({name: 65})


def test_variables_of_other_programs_are_left_alone() -> None:
    """Only a variable that looks like a misspelt setting is refused."""
    assert completed(TopologyConfig(), {"TXN_HOME": "/x", "TXN_JARS": "y"}) == TopologyConfig()
    with pytest.raises(UserError, match="TXN_MESSAGE_TIMEOUT_SEC: .*Did you mean message_timeout"):
        completed(TopologyConfig(), {"TXN_MESSAGE_TIMEOUT_SEC": "9"})


def test_settings_come_from_the_environment(tmp_path: Path) -> None:
    """What the program leaves out; a file may have several credentials and comments."""
    secret = tmp_path / "secret"
    secret.write_text("# ours\ndigest:me:ses:ame\n\nsasl:you:open\n")
    environ = {
        "TXN_ZOOKEEPER_AUTH_FILE": str(secret),
        "TXN_ZOOKEEPER_READERS": "ip:10.0.0.0/8",
        "TXN_ZOOKEEPER_TLS": "1",
        "TXN_ZOOKEEPER_CHECK_HOSTNAME": "false",
        "TXN_ZOOKEEPER_CA": "ca.pem",
    }
    found = completed(TopologyConfig(zookeeper_ca="mine.pem"), environ)
    told = [(scheme, value.get_secret_value()) for scheme, value in found.zookeeper_auth]
    assert told == [("digest", "me:ses:ame"), ("sasl", "you:open")]
    assert (found.zookeeper_tls, found.zookeeper_check_hostname) == (True, False)
    assert found.zookeeper_readers == (("ip", "10.0.0.0/8"),)
    assert found.zookeeper_ca == "mine.pem"  # the program's own word


@pytest.mark.parametrize(
    ("environ", "says"),
    [
        ({"TXN_ZOOKEEPER_AUTH": "canary"}, "Line 1 of TXN_ZOOKEEPER_AUTH is not SCHEME"),
        ({"TXN_ZOOKEEPER_AUTH": "a:b", "TXN_ZOOKEEPER_AUTH_FILE": "f"}, "Both TXN_ZOOKEEPER_AUTH"),
        ({"TXN_ZOOKEEPER_AUTH_FILE": "/no/such"}, "'/no/such', which cannot be read"),
        ({"TXN_ZOOKEEPER_AUTH_FILE": "/dev/null"}, "'/dev/null', which is empty"),
        ({"TXN_ZOOKEEPER_AUTH_FILE": "/dev/zero"}, "'/dev/zero', which is too long"),
        ({"TXN_ZOOKEEPER_ACL": "canary"}, "TXN_ZOOKEEPER_ACL cannot be used"),
        ({"TXN_ZOOKEEPER_TLS": "canary"}, "TXN_ZOOKEEPER_TLS cannot be used"),
    ],
)
def test_environment_that_means_nothing(environ: dict[str, str], says: str) -> None:
    """The variable is named, and what it holds is not repeated."""
    with pytest.raises(UserError, match=says) as error:
        completed(TopologyConfig(), environ)
    assert "canary" not in str(error.value)


def test_lists_of_paths_are_written_in_one_text(tmp_path: Path) -> None:
    """Spaces beside a comma are none of a path's, and no text is no path, not the folder here."""
    pairs = ["dropped_tables=s3://a/b, c ", "new_tables=", "shared_folders=/a:/b"]
    pairs.append("dropped_streams=one,two")
    found = overridden(TopologyConfig(new_tables=("there",)), pairs)
    assert found.dropped_tables == ("s3://a/b", "c")
    assert found.new_tables == ()
    assert found.dropped_streams == ("one", "two")
    assert found.shared_folders == ("/a", "/b")
    (tmp_path / "pyproject.toml").write_text("tool = 3\n")  # of no concern to us
    assert completed(TopologyConfig(), {}, [tmp_path]) == TopologyConfig()


def test_settings_beside_the_program_count_wherever_it_is_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of the working directory win, as they do over any other file."""
    program, here = tmp_path / "program", tmp_path / "here"
    for folder, pending in ((program, 3), (here, 5)):
        folder.mkdir()
        (folder / "txn.toml").write_text(f"max_spout_pending = {pending}\n", "utf-8")
    (program / "pyproject.toml").write_text("[tool.txn]\nmax_group_commit = 7\n", "utf-8")
    (program / "program.py").write_text("from txn import Topology; t = Topology('t')", "utf-8")
    monkeypatch.chdir(here)
    monkeypatch.setattr(sys, "path", list(sys.path))
    settings = load_topology("../program/program.py:t").settings
    assert (settings.max_spout_pending, settings.max_group_commit) == (5, 7)
    monkeypatch.chdir(tmp_path)
    settings = load_topology("program/program.py:t").settings
    assert (settings.max_spout_pending, settings.max_group_commit) == (3, 7)
