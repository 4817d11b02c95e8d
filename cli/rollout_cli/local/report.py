"""The first and the last lines of a local run: where everything is, what came out, and what went wrong.

Called by `run`. Reads what the run's directory holds; decides nothing.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rollout_cli.errors import Exit
from rollout_cli.local.learner import tail_text
from rollout_cli.local.outcome import Ended, failure_text, own_words
from rollout_cli.local.run_dir import RunDir
from rollout_cli.local.services import Services
from rollout_cli.local.view import Result, View, summary
from rollout_contract import names
from rollout_contract.names import WorkerId


def announcement(services: Services) -> list[str]:
    """The first lines of a run: where everything is, and a command to try."""
    path = f"{services.url}/v1/namespaces/{services.job.metadata.namespace}/rolloutjobs/{services.job.metadata.name}/status"
    lines = [
        f"run directory  {services.run_dir.path}",
        f"data plane     {services.server}",
        f"gateway        {services.url} (its interface: {services.url}/openapi.json)",
    ]
    if services.token is None:
        return [*lines, f"try            curl {path}"]
    return [
        *lines,
        f"token          {services.token} (also in {services.run_dir.token_file})",
        f'try            curl -H "Authorization: Bearer {services.token}" {path}',
    ]


def print_end(run_dir: RunDir, ended: Ended, *, view: View | None, document: Mapping[str, Any]) -> None:
    """The summary, then, if something went wrong, what: the user's own traceback last."""
    if view is not None:
        result = _read_result(run_dir)
        curve = str(_shown_path(run_dir.path / result.curve)) if result.curve else None
        print("\n".join(summary(view, result, curve=curve)), flush=True)
    problem = ended.problem
    if ended.code == Exit.FAILED and not problem:
        problem = "\n".join(filter(None, (failure_text(document), _worker_words(run_dir, document))))
    if problem:
        print(f"rolloutctl: {problem}", file=sys.stderr)


def _read_result(run_dir: RunDir) -> Result:
    try:
        return Result.of(json.loads(run_dir.result_file.read_text()))
    except (OSError, ValueError):
        return Result()


def _shown_path(path: Path) -> Path:
    """Relative to where the user is, if it is below."""
    return path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path


def _worker_words(run_dir: RunDir, document: Mapping[str, Any]) -> str:
    """What the worker that failed last had to say: from its log, its own traceback last."""
    last = (document.get("status") or {}).get("lastFailure")
    if not last:
        return ""
    pod = names.pod_name(
        document["metadata"]["name"], WorkerId(last["group"], last["worker"], last["attempt"])
    )
    log, message = run_dir.logs / f"{pod}.log", str(last.get("message") or "")
    if not log.exists():
        return message
    return f"(its log: {_shown_path(log)})\n{own_words(tail_text(log), message)}"
