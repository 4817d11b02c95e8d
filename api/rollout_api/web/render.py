"""Makes the page's HTML. Pure: every text from outside is escaped here, in `_Text`, and nowhere else.

Called by the page route with models of the interface; the script in `page.js` shows the same models later on.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from functools import cache
from html import escape
from importlib.resources import files
from typing import Final

from rollout_api.models import CurvePoint, Episodes, JobStatus, Live, WorkerList
from rollout_api.store import JobPage
from rollout_contract.spec import RolloutJob
from rollout_contract.status import State

LEFT, RIGHT, TOP, BOTTOM = 60, 790, 16, 204
WIDTH, HEIGHT = 800, 236
CHART: Final = json.dumps({"left": LEFT, "right": RIGHT, "top": TOP, "bottom": BOTTOM})
KINDS: Final = {State.RUNNING: "good", State.COMPLETE: "good", State.FAILED: "bad", State.DEGRADED: "bad"}
"""How a state looks; the others are plain."""


def login_page(nonce: str, hint: str, *, was_refused: bool = False) -> str:
    """The form that takes the token. `hint` says where to find one."""
    refused = '<p class="bad" role="alert">This token is not valid.</p>' if was_refused else ""
    return _document(
        nonce,
        "Sign in",
        f"""<div class="narrow"><h2>Sign in</h2><div class="card">{refused}
<form method="post" action="/login">
<label>Token<input type="password" name="token" autocomplete="current-password" required autofocus></label>
<button>Sign in</button></form>
<p class="soft">{escape(hint)}</p></div></div>""",
        script=False,
    )


def list_page(nonce: str, page: JobPage, *, namespace: str = "") -> str:
    """All jobs of a namespace (empty: of all that the caller may see), each a link to its page."""
    rows = "".join(_job_row(job) for job in page.jobs)
    if not rows:
        rows = '<tr><td colspan="6" class="soft">There is no job.</td></tr>'
    note = f'<p class="soft">The first {len(page.jobs)} are shown.</p>' if page.continue_token else ""
    if page.unknown:
        others = escape(", ".join(page.unknown))
        note += f'<p class="bad">Not shown, because they hold what this gateway does not know: {others}</p>'
    table = _table(("Namespace", "Name", "State", "Workers", "Frames", "Suspended"), rows)
    title = f"Jobs in {namespace}" if namespace else "Jobs"
    return _document(nonce, title, f'<h2>{escape(title)}</h2><div class="card">{table}{note}</div>')


def namespace_page(nonce: str, who: str) -> str:
    """A form that asks for a namespace, for somebody who may not list the jobs of all."""
    return _document(
        nonce,
        "Which namespace",
        f"""<div class="narrow"><h2>Which namespace?</h2><div class="card"><form method="get" action="/">
<label>Namespace<input name="namespace" required autofocus></label><button>Show its jobs</button></form>
<p class="soft">{escape(who)} may not list jobs in all namespaces.</p></div></div>""",
        script=False,
    )


def job_page(
    nonce: str, status: JobStatus, workers: WorkerList, episodes: Episodes | None, *, path: str
) -> str:
    """One job, live. `path` is that of its REST interface."""
    state = status.state or State.PENDING
    kind = KINDS.get(state, "soft")
    away = f"No live numbers: {status.live_error.detail}" if status.live_error else ""
    curve = episodes.curve if episodes else []
    body = f"""<div data-job="{escape(path)}" data-kinds="{escape(json.dumps(KINDS))}">
<h2>{escape(status.namespace)}/{escape(status.name)} <span class="state {kind}" data-value="state">{escape(state)}</span>
<span class="link" data-value="link"></span></h2>
<p class="bad" data-value="away">{escape(away)}</p>
{_tiles(status)}
<h2>Return of episodes, over frames</h2><div class="card">{_chart(curve)}</div>
<h2>Workers</h2><div class="card">{_workers(workers)}</div>
<h2>Conditions</h2><div class="card">{_conditions(status)}</div>
{_failure(status)}</div>"""
    others = f'<a href="/?namespace={escape(status.namespace)}">Jobs in {escape(status.namespace)}</a>'
    return _document(nonce, f"{status.namespace}/{status.name}", body, where=others)


def _document(nonce: str, title: str, body: str, *, script: bool = True, where: str = "") -> str:
    code = f'<script nonce="{nonce}">{_asset("page.js")}</script>' if script else ""
    reload = '<noscript><meta http-equiv="refresh" content="5"></noscript>' if script else ""
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>{escape(title)} · RolloutJob</title>
<meta name="viewport" content="width=device-width, initial-scale=1">{reload}
<link rel="icon" href="data:,"><style nonce="{nonce}">{_asset("page.css")}</style></head>
<body><header><h1><a href="/">RolloutJob</a></h1>{where}</header><main>{body}</main>{code}</body></html>
"""


@cache
def _asset(name: str) -> str:
    return files(__package__).joinpath(name).read_text(encoding="utf-8")


def _table(headings: Sequence[str], rows: str, *, name: str = "") -> str:
    head = "".join(f'<th scope="col">{escape(heading)}</th>' for heading in headings)
    mark = f' data-rows="{name}"' if name else ""
    return f"<table><thead><tr>{head}</tr></thead><tbody{mark}>{rows}</tbody></table>"


def _row(cells: Iterable[tuple[object, str]]) -> str:
    found = (f'<td class="{kind}">{escape(_shown(value))}</td>' for value, kind in cells)
    return f"<tr>{''.join(found)}</tr>"


def _shown(value: object) -> str:
    match value:
        case None:
            return "–"
        case bool():
            return "yes" if value else "no"
        case int():
            return f"{value:,}"
        case float():
            return f"{value:.2f}".rstrip("0").rstrip(".")
        case _:
            return str(value)


def _job_row(job: RolloutJob) -> str:
    namespace, name = job.metadata.namespace, job.metadata.name
    link = f'<a href="/?namespace={escape(namespace)}&amp;job={escape(name)}">{escape(name)}</a>'
    progress = job.status.progress
    rest = _row(
        [
            (job.status.state or "Pending", ""),
            (job.status.ready_workers, ""),
            (progress.frames if progress else 0, ""),
            (job.spec.suspend, ""),
        ]
    )
    return f"<tr><td>{escape(namespace)}</td><td>{link}</td>{rest.removeprefix('<tr>')}"


def _tiles(status: JobStatus) -> str:
    live = status.live
    percent = live.progress.percent if live else None
    ready = f"{status.ready_workers} ready" if status.ready_workers else ""
    tiles = [
        _tile("Frames", "frames", live and live.progress.frames, "total", _total(live)),
        _tile("Frames/s", "rate", live and round(live.progress.frames_per_second)),
        _tile("Workers", "workers", live and live.progress.workers, "ready", ready),
        _tile("Mean return", "return", live and live.recent_return, "episodes", _episodes(live)),
        _tile("Policy version", "version", live and live.weights.latest_version, "lag", _lag(live)),
        _tile("Unacked frames", "unacked", live and live.stream.unacked_frames, "dropped", _dropped(live)),
        _tile("Seed", "seed", live and str(live.seed.seed), "epoch", live and f"epoch {live.seed.epoch}"),
    ]
    return (
        f'<progress max="100" value="{percent or 0}" aria-label="Frames of the total"></progress>'
        f'<dl class="tiles">{"".join(tiles)}</dl>'
    )


def _tile(title: str, name: str, value: object, small: str = "", text: object = "") -> str:
    note = f'<small data-value="{small}">{escape(str(text or ""))}</small>' if small else "<small></small>"
    return f'<div><dt>{title}</dt><dd data-value="{name}">{escape(_shown(value))}</dd>{note}</div>'


def _total(live: Live | None) -> str:
    if live is None:
        return ""
    return f"of {live.progress.total_frames:,}" if live.progress.total_frames else "no end set"


def _episodes(live: Live | None) -> str:
    return f"{live.progress.episodes:,} episodes" if live else ""


def _lag(live: Live | None) -> str:
    return f"workers’ lag {live.weights.lag}" if live else ""


def _dropped(live: Live | None) -> str:
    return f"{live.stream.dropped_frames:,} dropped" if live else ""


def _chart(curve: Sequence[CurvePoint]) -> str:
    xs, ys = [p.frames for p in curve], [p.mean_return for p in curve]
    points = " ".join(
        f"{_at(x, xs, LEFT, RIGHT):.1f},{_at(y, ys, BOTTOM, TOP):.1f}" for x, y in zip(xs, ys, strict=True)
    )
    labels = (
        [_shown(min(ys)), _shown(max(ys)), _shown(min(xs)), _shown(max(xs))] if curve else ["", "", "", ""]
    )
    low, high, first, last = (escape(label) for label in labels)
    return f"""<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="Learning curve" data-chart="{escape(CHART)}">
<line class="grid" x1="{LEFT}" y1="{BOTTOM}" x2="{RIGHT}" y2="{BOTTOM}"/>
<line class="grid" x1="{LEFT}" y1="{TOP}" x2="{RIGHT}" y2="{TOP}"/>
<text x="{LEFT - 8}" y="{BOTTOM}" text-anchor="end" data-value="y0">{low}</text>
<text x="{LEFT - 8}" y="{TOP + 8}" text-anchor="end" data-value="y1">{high}</text>
<text x="{LEFT}" y="{HEIGHT - 12}" data-value="x0">{first}</text>
<text x="{RIGHT}" y="{HEIGHT - 12}" text-anchor="end" data-value="x1">{last}</text>
<polyline class="curve" points="{points}"/></svg>"""


def _at(value: float, values: Sequence[float], start: float, stop: float) -> float:
    low, high = min(values), max(values)
    return start + (value - low) / (high - low) * (stop - start) if high > low else (start + stop) / 2


def _workers(workers: WorkerList) -> str:
    rows = "".join(
        _row(
            [
                (f"{w.group}-{w.index}", ""),
                (w.attempt, ""),
                ("Lost" if w.is_lost else w.state, "bad" if w.is_lost else ""),
                (w.frames, ""),
                (round(w.frames_per_second), ""),
                (w.policy_version, ""),
                (w.seed_epoch, ""),
                (f"{w.last_seen_seconds:.1f} s", "soft"),
                (w.last_error, "text bad"),
            ]
        )
        for w in workers.items
    )
    headings = ("Worker", "Attempt", "State", "Frames", "Frames/s", "Version", "Epoch", "Seen", "Last error")
    return _table(headings, rows, name="workers")


def _conditions(status: JobStatus) -> str:
    rows = "".join(
        _row(
            [
                (c.type, ""),
                (c.status, ""),
                (c.reason, ""),
                (c.message, "text"),
                (c.last_transition_time, "soft"),
            ]
        )
        for c in status.conditions
    )
    return _table(("Condition", "Status", "Reason", "Message", "Since"), rows, name="conditions")


def _failure(status: JobStatus) -> str:
    """Always there, so that the script can fill it; hidden as long as nothing has failed."""
    failure = status.last_failure
    who, text = "", ""
    if failure is not None:
        who = f"{failure.group}-{failure.worker}, attempt {failure.attempt}, exit code {_shown(failure.exit_code)}"
        text = failure.message or ""
    hidden = "" if failure else " hidden"
    return (
        f'<section data-value="failure"{hidden}><h2>Last failure</h2><div class="card">'
        f'<p data-value="failed">{escape(who)}</p><pre data-value="words">{escape(text)}</pre></div></section>'
    )
