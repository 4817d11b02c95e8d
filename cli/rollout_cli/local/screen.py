"""Shows a run while it goes on: one live screen on a terminal, one plain line every few seconds on a pipe.

Called by `run`, with a `View` about once a second. What is told in between (a restart, a warning) is a line of its own in
both. Knows nothing of the job.
"""

from __future__ import annotations

import sys
from typing import Protocol, TextIO

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from rollout_cli.local.view import View, clock, plain_line, remarkable

PLAIN_EVERY_S = 3.0
LEARNER_LINES = 6
MAX_WORKER_ROWS = 20


class Screen(Protocol):
    """Where a run is shown."""

    def show(self, view: View) -> None:
        """The job now."""

    def tell(self, text: str) -> None:
        """Something that happened, to be kept."""

    def close(self) -> None:
        """Nothing more is shown; the output is as a terminal should be left."""


def open_screen(stream: TextIO | None = None) -> Screen:
    """The screen that fits the output: live on a terminal, plain lines otherwise."""
    stream = stream or sys.stdout
    return LiveScreen(Console(file=stream)) if stream.isatty() else PlainScreen(stream)


class PlainScreen:
    """One line every PLAIN_EVERY_S, and the learner's own lines as they come, a few at a time."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._next = 0.0
        self._state = ""
        self._shown_lines: tuple[str, ...] = ()

    def show(self, view: View) -> None:
        """Print the view, unless the last one is younger and nothing important has changed."""
        if view.elapsed_s < self._next and view.state == self._state:
            return
        self._next = view.elapsed_s + PLAIN_EVERY_S
        self._state = view.state
        if view.learner_lines != self._shown_lines:
            self._shown_lines = view.learner_lines
            for line in view.learner_lines[-1:]:
                self._print(f"learner: {line}")
        self._print(plain_line(view))

    def tell(self, text: str) -> None:
        """Print it."""
        self._print(text)

    def close(self) -> None:
        """Nothing is held."""

    def _print(self, text: str) -> None:
        print(text, file=self._stream, flush=True)


class LiveScreen:
    """A screen that is drawn in place."""

    def __init__(self, console: Console) -> None:
        self._live = Live(console=console, auto_refresh=False, transient=True, redirect_stdout=False)
        self._live.start()

    def show(self, view: View) -> None:
        """Draw the view."""
        self._live.update(drawing(view), refresh=True)

    def tell(self, text: str) -> None:
        """Print it above the drawing."""
        self._live.console.print(Text(text))

    def close(self) -> None:
        """Take the drawing away and show the cursor again."""
        self._live.stop()


def drawing(view: View) -> RenderableType:
    """The view as boxes and tables."""
    parts: list[RenderableType] = [_head(view)]
    if view.percent is not None:
        parts.append(_bar(view.percent))
    parts.append(_workers(view))
    for condition in remarkable(view.conditions):
        text = f"{condition.type}={condition.status} {condition.reason}"
        parts.append(Text(f"{text}: {condition.message}" if condition.message else text, style="yellow"))
    if view.trouble:
        parts.append(Text(view.trouble, style="red"))
    if view.learner:
        lines = Text(
            "\n".join(view.learner_lines[-LEARNER_LINES:]), style="dim", no_wrap=True, overflow="ellipsis"
        )
        title = f"learner: {view.learner}" + (
            f", {view.learner_restarts} restarts" if view.learner_restarts else ""
        )
        parts.append(Panel(lines, title=title, title_align="left"))
    subtitle = f"{clock(view.elapsed_s)}  {view.gateway}".rstrip()
    return Panel(Group(*parts), title=f"{view.job}: {view.state}", title_align="left", subtitle=subtitle)


def _bar(percent: float) -> Table:
    """In a table of its own: the bar alone ends no line."""
    grid = Table.grid(expand=True)
    grid.add_row(ProgressBar(total=100.0, completed=min(100.0, percent)))
    return grid


def _head(view: View) -> Table:
    grid = Table.grid(padding=(0, 3))
    total = f" of {view.total_frames:,} ({view.percent:.1f} %)" if view.percent is not None else ""
    rate = "–" if view.frames_per_second is None else f"{view.frames_per_second:,.0f}"
    mean = "–" if view.mean_return is None else f"{view.mean_return:.2f}"
    lag = "" if view.lag is None else f", lag {view.lag}"
    grid.add_row("frames", f"{view.frames:,}{total}", "frames/s", rate)
    grid.add_row("return (last 100)", mean, "episodes", f"{view.episodes:,}")
    grid.add_row(
        "policy version", f"{view.policy_version}{lag}", "unacked frames", f"{view.unacked_frames:,}"
    )
    return grid


def _workers(view: View) -> Table:
    table = Table(expand=True, box=None, header_style="bold")
    for heading in ("worker", "attempt", "state", "frames", "frames/s", "policy", "last error"):
        table.add_column(heading, no_wrap=True, overflow="ellipsis")
    for row in view.workers[:MAX_WORKER_ROWS]:
        table.add_row(
            row.name,
            str(row.attempt),
            row.state,
            f"{row.frames:,}",
            f"{row.frames_per_second:,.0f}",
            str(row.policy_version),
            row.last_error.splitlines()[0] if row.last_error else "",
        )
    hidden = len(view.workers) - MAX_WORKER_ROWS
    restarts = f", {view.worker_restarts} restarts" if view.worker_restarts else ""
    more = f"and {hidden} more; " if hidden > 0 else ""
    table.caption = f"{more}ready {view.ready_workers or '0/0'}{restarts}"
    return table
