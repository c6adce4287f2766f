"""Settings from outside of a program: `--set`, the environment, `txn.toml`, `pyproject.toml`.

`txn run --set NAME=VALUE` wins over everything. Settings that the program leaves out come from the
variable `TXN_` plus the setting's name in capitals, else from `txn.toml` in the working directory
or beside the program, else from `[tool.txn]` of the `pyproject.toml` there. So a deployment can
size a topology without a change of the program.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import ValidationError

from txn.config.topology_config import TopologyConfig, is_unknown
from txn.errors import UserError

if sys.version_info >= (3, 11):
    import tomllib
else:  # pragma: no cover
    import tomli as tomllib

__all__ = ["completed", "credentials_in", "overridden", "secrets_of"]

_PREFIX = "TXN_"
_PAIRS = ("zookeeper_auth", "zookeeper_readers")
_LISTS = {
    "shared_folders": os.pathsep,
    "new_tables": ",",
    "dropped_tables": ",",
    "dropped_columns": ",",
    "backfilled_tables": ",",
    "rebuilt_tables": ",",
    "dropped_streams": ",",
}
"""Setting -> the separator of its values in a text. A table's path may have a colon."""
_SECRETS = ("zookeeper_auth", "zookeeper_keyfile_password")
_SECRET_BYTES = 64 * 1024


class _Setting(NamedTuple):
    """A setting's value and the place where it was set."""

    value: Any
    place: str


def completed(
    config: TopologyConfig, environ: Mapping[str, str], folders: Iterable[Path | None] = ()
) -> TopologyConfig:
    """Return `config` with the settings that it leaves out, from the environment and from files.

    Args:
        folders: folders that may have `txn.toml` and `pyproject.toml`; the last one wins.

    Raises:
        UserError: an unknown name, an invalid value, or an unreadable file.
    """
    settings: dict[str, _Setting] = {}
    spelled = {folder.resolve(): folder for folder in folders if folder is not None}
    for folder in spelled.values():
        settings |= _read_files(folder)
    settings |= _read_environment(environ)
    left_out = {k: s for k, s in settings.items() if k not in config.model_fields_set}
    return _apply(config, left_out)


def overridden(config: TopologyConfig, pairs: Sequence[str]) -> TopologyConfig:
    """Return `config` with other values for some settings.

    Args:
        pairs: the `NAME=VALUE` arguments of `--set`.

    Raises:
        UserError: as `completed`; or a secret, which would show in the list of processes.
    """
    settings = {}
    for pair in pairs:
        name, equals, text = pair.partition("=")
        if not equals:
            raise UserError(
                f"--set {pair} is not NAME=VALUE, such as --set max_spout_pending=8.",
                number="TXN-119",
            )
        if name in _SECRETS:
            raise UserError(
                f"--set {name} would show a secret to everybody on this machine. Put it into a "
                f"file, and name that: {_PREFIX}{name.upper()}_FILE=PATH.",
                number="TXN-120",
            )
        settings[name] = _Setting(_parsed(name, text, f"--set {name}"), f"--set {name}")
    return _apply(config, settings)


def credentials_in(config: TopologyConfig) -> frozenset[str]:
    """Return the secrets in these settings: credentials, and their passwords."""
    secrets: set[str] = set()
    for _, credential in config.zookeeper_auth:
        secrets |= secrets_of(credential.get_secret_value())
    if config.zookeeper_keyfile_password is not None:
        secrets.add(config.zookeeper_keyfile_password.get_secret_value())
    return frozenset(secrets)


def secrets_of(credential: str) -> set[str]:
    """Return what must not be shown of "user:password": all of it, and the password."""
    return {credential, credential.partition(":")[2]}


def _apply(config: TopologyConfig, settings: Mapping[str, _Setting]) -> TopologyConfig:
    for name, (_, place) in settings.items():
        if unknown := is_unknown(name):
            raise UserError(f"{_capital(place)}: {unknown}", number="TXN-119")
    if not settings:
        return config
    program_values = {name: getattr(config, name) for name in config.model_fields_set}
    try:
        made = TopologyConfig.model_validate(
            {**program_values, **{k: s.value for k, s in settings.items()}}
        )
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        name = str(first["loc"][0])
        # Never show these values: a secret may have been put into the wrong one of them.
        shown = "" if name.startswith("zookeeper_") else f" ({settings[name].value!r})"
        raise UserError(
            f"{_capital(settings[name].place)} cannot be used{shown}: {first['msg']}. Correct it, "
            "or take it away "
            "(docs/configuration.md has all settings).",
            number="TXN-119",
        ) from None
    made.places.update({**config.places, **{k: s.place for k, s in settings.items()}})
    return made


def _capital(place: str) -> str:
    """Capitalise a place for the beginning of a sentence; setting names stay as they are."""
    return place[0].upper() + place[1:] if place.startswith("environment ") else place


def _read_environment(environ: Mapping[str, str]) -> dict[str, _Setting]:
    settings = {}
    for name in TopologyConfig.model_fields:
        variable = _PREFIX + name.upper()
        text = _lookup(variable, environ, is_secret=name in _SECRETS)
        if text is not None:
            place = f"environment variable {variable}"
            settings[name] = _Setting(_parsed(name, text, variable), place)
    # Likely misspellings, with no value: `_apply` refuses them by name. Other variables with this
    # prefix may belong to other programs.
    misspelt = {
        name: _Setting(None, f"environment variable {variable}")
        for variable in environ
        if variable.startswith(_PREFIX)
        and (name := variable.removeprefix(_PREFIX).lower()) not in TopologyConfig.model_fields
        and name.removesuffix("_file") not in _SECRETS
        and "Did you mean" in (is_unknown(name) or "")
    }
    return settings | misspelt


def _read_files(folder: Path) -> dict[str, _Setting]:
    tool = _read_toml(folder / "pyproject.toml").get("tool", {})
    project = tool.get("txn", {}) if isinstance(tool, Mapping) else {}
    if not isinstance(project, Mapping):
        raise UserError(
            f"tool.txn in {folder / 'pyproject.toml'} is not a table. Write [tool.txn].",
            number="TXN-119",
        )
    settings = {
        name: _Setting(value, f"{name} in [tool.txn] of {folder / 'pyproject.toml'}")
        for name, value in project.items()
    }
    txn_toml = _read_toml(folder / "txn.toml")
    settings |= {
        name: _Setting(v, f"{name} in {folder / 'txn.toml'}") for name, v in txn_toml.items()
    }
    for name in _SECRETS:
        if name in settings:
            raise UserError(
                f"{settings[name].place} is a secret, in a file that is shared. Put it into a file "
                f"of its own, and name that: {_PREFIX}{name.upper()}_FILE=PATH.",
                number="TXN-120",
            )
    return settings


def _read_toml(path: Path) -> dict[str, Any]:
    try:
        table: dict[str, Any] = tomllib.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise UserError(
            f"Settings cannot be read from {path}: {error}. Correct it.", number="TXN-119"
        ) from error
    return table


def _parsed(name: str, text: str, place: str) -> Any:
    """Convert a text into a value that pydantic accepts for this setting."""
    if name in _PAIRS:
        return _pairs(text, place)
    if name not in _LISTS:
        return text
    # Leave out empty parts: as a path, "" would be the working directory.
    return tuple(part.strip() for part in text.split(_LISTS[name]) if part.strip())


def _lookup(variable: str, environ: Mapping[str, str], *, is_secret: bool) -> str | None:
    """Return the variable's text, or a secret's from the file in `<variable>_FILE`. Empty: None."""
    value = environ.get(variable) or None
    path = (environ.get(f"{variable}_FILE") or None) if is_secret else None
    if value is not None and path is not None:
        raise UserError(
            f"Both {variable} and {variable}_FILE are set. Unset one of them: the file is the "
            "better place, because children inherit variables.",
            number="TXN-120",
        )
    return value if path is None else _read_secret(Path(path), f"{variable}_FILE")


def _read_secret(path: Path, variable: str) -> str:
    try:
        with path.open("rb") as file:
            data = file.read(_SECRET_BYTES + 1)
        text = data.decode("utf-8").strip("\r\n")
    except (OSError, ValueError) as error:
        # Repeat nothing of a decoding error: it would show bytes of the secret.
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise UserError(
            f"{variable} names '{path}', which cannot be read: {reason}. Correct the path, or the "
            "file's owner and mode.",
            number="TXN-120",
        ) from None
    if len(data) > _SECRET_BYTES or not text:
        raise UserError(
            f"{variable} names '{path}', which is {'too long' if text else 'empty'}. Put one "
            "line per credential into it, and nothing else.",
            number="TXN-120",
        )
    return text


def _pairs(text: str, variable: str) -> tuple[tuple[str, str], ...]:
    """Parse lines of SCHEME:REST, such as digest:user:password; lines with # are comments."""
    pairs = []
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        scheme, _, rest = line.strip().partition(":")
        if not rest or not scheme.isidentifier():
            raise UserError(
                f"Line {number} of {variable} is not SCHEME:CREDENTIAL, such as "
                "digest:user:password. (Its text is not repeated here.) Correct it.",
                number="TXN-120",
            )
        pairs.append((scheme, rest))
    return tuple(pairs)
