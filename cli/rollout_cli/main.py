"""Entry point of `rolloutctl`: parses the command line, calls the command, turns errors into words and exit codes.

Commands are imported when they are called, so that `rolloutctl --help` loads neither pydantic nor torch.
"""

from __future__ import annotations

import importlib
import os
import signal
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from rollout_cli.parser import build_parser

if TYPE_CHECKING:
    from rollout_contract.errors import RolloutError


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns its exit code (see `errors.Exit`). SystemExit only from the argument parser itself."""
    parser = build_parser()
    arguments = parser.parse_args(argv)
    module_name, _, function = str(arguments.command).partition(":")
    from rollout_contract.errors import RolloutError

    try:
        command = getattr(importlib.import_module(module_name), function)
        return int(command(arguments))
    except RolloutError as error:
        return _report(error)
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    except BrokenPipeError:
        # The reader of our output is gone (`rolloutctl get | head`): end as other programs do, without a traceback.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 128 + signal.SIGPIPE


def _report(error: RolloutError) -> int:
    from rollout_cli.errors import Exit, GatewayError

    print(f"rolloutctl: {error}", file=sys.stderr)
    return Exit.FAILED if isinstance(error, GatewayError) else Exit.USAGE


if __name__ == "__main__":
    sys.exit(main())
