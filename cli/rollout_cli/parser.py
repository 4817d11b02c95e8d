"""The command line of `rolloutctl`: every command, option and help text, and which function answers it.

Called by `main`. Only argparse is imported here; `command` holds the function as `module:name`.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import NoReturn, TypeAlias

CONNECTION_HELP = """\
Which gateway: --url, then ROLLOUT_GATEWAY_URL, then the newest run under ./runs (or --run-dir).
Which token:   --token-file, then ROLLOUT_TOKEN, then that run's `token` file.
Which namespace: --namespace, then ROLLOUT_NAMESPACE, then the run's, then the pod's namespace file, then the
current context of the kubeconfig. What was used is printed on stderr.
"""


def build_parser() -> argparse.ArgumentParser:
    """The parser of the whole command line."""
    parser = argparse.ArgumentParser(
        prog="rolloutctl",
        description="Run RolloutJobs on this machine, and talk to the gateway of one that runs.",
    )
    parser.add_argument("--version", action=_ShowVersion, nargs=0, help="show the version and exit")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    _add_run(commands)
    _add_validate(commands)
    _add_remote(commands)
    return parser


_Commands: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"


def _add_run(commands: _Commands) -> None:
    run = commands.add_parser(
        "run",
        help="run a job on this machine until it ends",
        description="Run a job on this machine: embedded Redis, gateway, workers and, if given, a learner. "
        "Ends when the job is Complete and the learner has ended (0), when it Failed (1), on Ctrl-C (130) or SIGTERM (143).",
    )
    run.add_argument("manifest", type=Path, metavar="JOB.yaml")
    run.add_argument(
        "--learner", type=Path, metavar="FILE.py", help="program that reads batches and publishes weights"
    )
    run.add_argument(
        "--run-dir",
        type=Path,
        metavar="DIR",
        help="where logs and results go (default: runs/<job>-<n>, the next free n)",
    )
    run.add_argument("--host", default="127.0.0.1", help="address of the gateway (default: %(default)s)")
    run.add_argument("--port", type=int, default=0, help="port of the gateway (default: a free one)")
    run.add_argument(
        "--redis",
        metavar="URL",
        help="use this server (redis://[user:password@]host:port) instead of an embedded one",
    )
    run.add_argument(
        "--no-auth", action="store_true", help="no token for the gateway; only on a loopback address"
    )
    run.add_argument("--seed", type=int, metavar="N", help="the job's seed; short for --set spec.seed=N")
    run.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="PATH=VALUE",
        help="change the manifest, e.g. spec.env.processes=4 (VALUE is YAML); may be repeated",
    )
    run.set_defaults(command="rollout_cli.local.run:command")


def _add_validate(commands: _Commands) -> None:
    validate = commands.add_parser(
        "validate",
        help="check a manifest",
        description="Check a manifest: every fault with line, path, value and what would be right. Exit code 2 for any.",
    )
    validate.add_argument("manifest", type=Path, nargs="+", metavar="JOB.yaml")
    validate.add_argument(
        "--imports",
        action="store_true",
        help="also import the entrypoints, with the manifest's directory on the path",
    )
    validate.set_defaults(command="rollout_cli.validate:command")


def _add_remote(commands: _Commands) -> None:
    get = _remote(commands, "get", "list jobs, or show one")
    get.add_argument("name", nargs="?", metavar="JOB")
    get.add_argument("-o", "--output", choices=("text", "json", "yaml"), default="text")
    get.add_argument(
        "-A", "--all-namespaces", action="store_true", help="jobs of all namespaces that you may see"
    )

    logs = commands.add_parser(
        "logs", help="show the logs of a local run", description="Show the logs of a local run."
    )
    logs.add_argument(
        "who", nargs="?", metavar="WORKER", help="a worker (default-0), `learner` or `redis`; none: list them"
    )
    logs.add_argument(
        "--run-dir", type=Path, metavar="DIR", help="the run (default: the newest under ./runs)"
    )
    logs.add_argument(
        "-n", "--lines", type=_count, default=100, help="how many last lines; 0: all (default: %(default)s)"
    )
    logs.set_defaults(command="rollout_cli.logs:command")

    weights = _remote(commands, "weights", "list the policy's versions, download one, upload one")
    weights.add_argument("name", metavar="JOB")
    what = weights.add_mutually_exclusive_group()
    what.add_argument("--get", metavar="VERSION", help="download a version (a number or `latest`) to --file")
    what.add_argument(
        "--put", type=Path, metavar="FILE", help="publish a safetensors file as the next version"
    )
    weights.add_argument(
        "--file", type=Path, metavar="FILE", help="where --get writes (default: <job>-<version>.safetensors)"
    )

    seed = _remote(commands, "seed", "show the seed, or set it (all environments are re-seeded)")
    seed.add_argument("name", metavar="JOB")
    seed.add_argument("seed", nargs="?", type=int, metavar="SEED")

    for action, words in (
        ("suspend", "stop the workers, keep the job"),
        ("resume", "start the workers of a suspended job again"),
        ("complete", "end the job as Complete with the frames that it has"),
    ):
        _remote(commands, action, words).add_argument("name", metavar="JOB")


def _remote(commands: _Commands, name: str, words: str) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = commands.add_parser(
        name,
        help=words,
        description=words[0].upper() + words[1:] + ".",
        epilog=CONNECTION_HELP,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("-n", "--namespace", help="the job's namespace")
    parser.add_argument("--url", help="the gateway's base URL")
    parser.add_argument("--token-file", type=Path, metavar="FILE", help="file that holds the token")
    parser.add_argument("--run-dir", type=Path, metavar="DIR", help="a local run's directory")
    parser.set_defaults(command=f"rollout_cli.remote:{name}")
    return parser


def _count(text: str) -> int:
    """A whole number from 0 on."""
    if not (text.isascii() and text.isdecimal()):
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number from 0 on")
    return int(text)


class _ShowVersion(argparse.Action):
    """Looks the version up only when it is asked for: that takes longer than all the rest of `--help`."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> NoReturn:
        from importlib.metadata import PackageNotFoundError, version

        try:
            found = version("rolloutjob")
        except PackageNotFoundError:
            found = "(not installed)"
        print(f"rolloutctl {found}")
        parser.exit()
