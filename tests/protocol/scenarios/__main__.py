"""`python -m tests.protocol.scenarios`: what the scenarios say now; `--rewrite` writes it down."""

from __future__ import annotations

import sys
from argparse import ArgumentParser

from tests.protocol.scenarios.language import rewrite, scenarios


def main() -> int:
    """The command; 1 if a scenario says something else than its file."""
    parser = ArgumentParser(prog="python -m tests.protocol.scenarios", description=__doc__)
    parser.add_argument("--rewrite", action="store_true", help="put it into the files")
    if parser.parse_args().rewrite:
        print("\n".join(f"rewritten: {file.name}" for file in rewrite()) or "nothing has changed")
        return 0
    wrong = [each.name for each in scenarios() if each.played() != each.text]
    print("\n".join(wrong) or "all is as the files say")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
