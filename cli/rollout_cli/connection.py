"""Which gateway, token and namespace a command uses: one documented order each, and said when used.

Called by `remote`. The order stands in `parser.CONNECTION_HELP`; a source that is there but cannot be read is an error,
never a reason to go on to the next.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from rollout_cli.client import Client
from rollout_cli.errors import UsageError
from rollout_cli.local.run_dir import DEFAULT_BASE, GatewayRecord, RunDir, newest_run, read_gateway
from rollout_contract import podenv
from rollout_contract.tokens import authorization

URL = podenv.GATEWAY_URL
NAMESPACE = "ROLLOUT_NAMESPACE"
POD_NAMESPACE_FILE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")


@dataclass(frozen=True, slots=True)
class Connection:
    """A gateway to talk to, and the namespace that is meant where none is named (None: none is known)."""

    client: Client
    namespace: str | None

    def job_path(self, name: str) -> str:
        """Path of one job. UsageError if no source names a namespace."""
        from rollout_cli.client import quoted

        return f"/v1/namespaces/{quoted(self.require_namespace())}/rolloutjobs/{quoted(name)}"

    def require_namespace(self) -> str:
        """The namespace. UsageError that lists where one could have come from."""
        if self.namespace is None:
            raise UsageError(
                f"which namespace? Name it with --namespace or {NAMESPACE}; there is no local run, no pod's namespace "
                f"file ({POD_NAMESPACE_FILE}) and no namespace in the kubeconfig's current context"
            )
        return self.namespace


def connect(arguments: argparse.Namespace, environ: Mapping[str, str]) -> Connection:
    """The connection that the flags, the environment and this directory give; printed on stderr."""
    run = _run_of(arguments, environ)
    record = read_gateway(run) if run else None
    url, url_source = _url(arguments, environ, record)
    token = _token(arguments, environ, run)
    namespace, namespace_source = _namespace(arguments, environ, record)
    where = f"run {run.path.name}" if run else url_source
    shown = f"namespace {namespace} ({namespace_source})" if namespace else "no namespace"
    print(f"gateway {url} ({where}), {shown}", file=sys.stderr)
    return Connection(Client(url, token), namespace)


def _run_of(arguments: argparse.Namespace, environ: Mapping[str, str]) -> RunDir | None:
    """The local run that the gateway is taken from; None where a flag or the environment names a gateway."""
    if arguments.run_dir is not None:
        return RunDir(arguments.run_dir.absolute())
    if arguments.url or environ.get(URL):
        return None
    return newest_run(DEFAULT_BASE, is_live=True)


def _url(
    arguments: argparse.Namespace, environ: Mapping[str, str], record: GatewayRecord | None
) -> tuple[str, str]:
    for url, source in ((arguments.url, "--url"), (None if record else environ.get(URL), URL)):
        if url:
            if not url.startswith(("http://", "https://")):
                raise UsageError(f"{source} is {url!r}: write http://HOST:PORT or https://HOST")
            if "@" in urlsplit(url).netloc:  # it is shown, and the gateway would not look at it
                raise UsageError(f"{source} holds a user: write it without, and give a token")
            return url.rstrip("/"), source
    assert record is not None, "a run is looked for where nothing else names a gateway"
    return record.url, "run"


def _token(arguments: argparse.Namespace, environ: Mapping[str, str], run: RunDir | None) -> str | None:
    if arguments.token_file is not None:
        return _whole(_read(arguments.token_file, "--token-file"), "--token-file")
    if token := environ.get(podenv.TOKEN):
        return _whole(token, podenv.TOKEN)
    if run is not None and run.token_file.exists():
        return _whole(_read(run.token_file, "the run's token"), "the run's token")
    return None


def _whole(token: str, source: str) -> str:
    """The token, if a request can carry it."""
    try:
        authorization(token)
    except ValueError as error:
        raise UsageError(f"{source}: {error}") from error
    return token.strip()


def _namespace(
    arguments: argparse.Namespace, environ: Mapping[str, str], record: GatewayRecord | None
) -> tuple[str | None, str]:
    if arguments.namespace:
        return arguments.namespace, "--namespace"
    if environ.get(NAMESPACE):
        return environ[NAMESPACE], NAMESPACE
    if record is not None:
        return record.namespace, "run"
    if POD_NAMESPACE_FILE.exists():
        return _read(POD_NAMESPACE_FILE, "the pod's namespace"), "pod"
    return _kubeconfig_namespace(environ), "kubeconfig"


def _kubeconfig_namespace(environ: Mapping[str, str]) -> str | None:
    """The namespace of the current context, None where no kubeconfig names one."""
    import yaml

    names = environ.get("KUBECONFIG", "").split(":") if environ.get("KUBECONFIG") else []
    files = [Path(name) for name in names if name] or [Path.home() / ".kube" / "config"]
    current: str | None = None
    contexts: dict[str, str | None] = {}
    for path in filter(Path.exists, files):
        try:
            config = yaml.safe_load(_read(path, "the kubeconfig")) or {}
            current = current or config.get("current-context")
            for context in config.get("contexts") or ():
                contexts.setdefault(context["name"], (context.get("context") or {}).get("namespace"))
        except yaml.YAMLError as error:  # whose own words quote the line, which may be a token's
            mark = getattr(error, "problem_mark", None)
            where = f" in line {mark.line + 1}" if mark else ""
            raise UsageError(f"the kubeconfig {path} cannot be read: it is no YAML{where}") from None
        except (AttributeError, KeyError, TypeError) as error:
            raise UsageError(f"the kubeconfig {path} cannot be read: it holds no list of contexts") from error
    return contexts.get(current) if current else None


def _read(path: Path, what: str) -> str:
    try:
        return path.read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(
            f"{what} ({path}) cannot be read: {getattr(error, 'strerror', None) or error}"
        ) from error
