"""Settings from outside of a program: `--set`, the environment, `txn.toml`, `pyproject.toml`.

`txn run --set NAME=VALUE` wins over everything. What the program leaves out comes from the variable
`TXN_` and the setting's name in capitals, else from `txn.toml` in the working directory, else from
`[tool.txn]` of its `pyproject.toml`. So a deployment can size a topology without another program.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import ValidationError

from txn.config.topology_config import TopologyConfig, is_unknown
from txn.errors import UserError

if sys.version_info >= (3, 11):
    import tomllib
else:  # pragma: no cover
    import tomli as tomllib

__all__ = ["completed", "overridden"]

_PREFIX = "TXN_"
_PAIRS = ("zookeeper_auth", "zookeeper_readers")
_LISTS = {"shared_folders": os.pathsep, "new_tables": ",", "dropped_tables": ","}
"""Setting -> what stands between its values, in a text. A table's path may have a colon."""
_SECRETS = ("zookeeper_auth", "zookeeper_keyfile_password")
_SECRET_BYTES = 64 * 1024


class _Found(NamedTuple):
    """A setting's value, and where it stands."""

    value: Any
    place: str


def completed(
    config: TopologyConfig, environ: Mapping[str, str], folder: Path | None = None
) -> TopologyConfig:
    """`config` with the settings that it leaves out, from the environment and from files.

    Args:
        folder: where `txn.toml` and `pyproject.toml` are looked for; None: nowhere.

    Raises:
        UserError: an unknown name, a value that cannot be used, or a file that cannot be read.
    """
    found = {} if folder is None else _of_files(folder)
    found |= _of_environment(environ)
    return _with(config, {n: f for n, f in found.items() if n not in config.model_fields_set})


def overridden(config: TopologyConfig, pairs: Sequence[str]) -> TopologyConfig:
    """`config` with other values for some settings.

    Args:
        pairs: `NAME=VALUE` of each, as after `--set`.

    Raises:
        UserError: as `completed`; or a secret, which would show in the list of processes.
    """
    found = {}
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
        found[name] = _Found(_parsed(name, text, f"--set {name}"), f"--set {name}")
    return _with(config, found)


def _with(config: TopologyConfig, found: Mapping[str, _Found]) -> TopologyConfig:
    for name, (_, place) in found.items():
        if unknown := is_unknown(name):
            raise UserError(f"{_capital(place)}: {unknown}", number="TXN-119")
    if not found:
        return config
    own = {name: getattr(config, name) for name in config.model_fields_set}
    try:
        made = TopologyConfig.model_validate({**own, **{n: f.value for n, f in found.items()}})
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        name = str(first["loc"][0])
        # A secret may stand at a setting beside its own.
        given = "" if name.startswith("zookeeper_") else f" ({found[name].value!r})"
        raise UserError(
            f"{_capital(found[name].place)} cannot be used{given}: {first['msg']}. Correct it, or "
            "take it away "
            "(docs/configuration.md has all settings).",
            number="TXN-119",
        ) from None
    made.places.update({**config.places, **{n: f.place for n, f in found.items()}})
    return made


def _capital(place: str) -> str:
    """A place at the beginning of a sentence; a setting's own name stays as it is written."""
    return place[0].upper() + place[1:] if place.startswith("environment ") else place


def _of_environment(environ: Mapping[str, str]) -> dict[str, _Found]:
    found = {}
    for name in TopologyConfig.model_fields:
        variable = _PREFIX + name.upper()
        text = _lookup(variable, environ, is_secret=name in _SECRETS)
        if text is not None:
            place = f"environment variable {variable}"
            found[name] = _Found(_parsed(name, text, variable), place)
    return found | {
        name: _Found(None, f"environment variable {variable}")
        for variable in environ
        if variable.startswith(_PREFIX)
        # Other programs may have variables with this prefix. Only what looks meant is refused.
        and (name := variable.removeprefix(_PREFIX).lower()) not in TopologyConfig.model_fields
        and name.removesuffix("_file") not in _SECRETS
        and "Did you mean" in (is_unknown(name) or "")
    }


def _of_files(folder: Path) -> dict[str, _Found]:
    tool = _toml(folder / "pyproject.toml").get("tool", {})
    project = tool.get("txn", {}) if isinstance(tool, Mapping) else {}
    if not isinstance(project, Mapping):
        raise UserError(
            f"tool.txn in {folder / 'pyproject.toml'} is not a table. Write [tool.txn].",
            number="TXN-119",
        )
    found = {
        name: _Found(value, f"{name} in [tool.txn] of {folder / 'pyproject.toml'}")
        for name, value in project.items()
    }
    own = _toml(folder / "txn.toml")
    found |= {name: _Found(v, f"{name} in {folder / 'txn.toml'}") for name, v in own.items()}
    for name in _SECRETS:
        if name in found:
            raise UserError(
                f"{found[name].place} is a secret, in a file that is shared. Put it into a file "
                f"of its own, and name that: {_PREFIX}{name.upper()}_FILE=PATH.",
                number="TXN-120",
            )
    return found


def _toml(path: Path) -> dict[str, Any]:
    try:
        found: dict[str, Any] = tomllib.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise UserError(
            f"Settings cannot be read from {path}: {error}. Correct it.", number="TXN-119"
        ) from error
    return found


def _parsed(name: str, text: str, place: str) -> Any:
    """A text as pydantic takes it for this setting."""
    if name in _PAIRS:
        return _pairs(text, place)
    if name not in _LISTS:
        return text
    # An empty part is no path: identity("") would be the working directory.
    return tuple(part.strip() for part in text.split(_LISTS[name]) if part.strip())


def _lookup(variable: str, environ: Mapping[str, str], *, is_secret: bool) -> str | None:
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
        # Of a decoding error nothing is repeated: it would show bytes of the secret.
        why = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise UserError(
            f"{variable} names '{path}', which cannot be read: {why}. Correct the path, or the "
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
    """`digest:user:password`, a line each; lines that begin with # are comments."""
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
