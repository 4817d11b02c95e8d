"""Log lines as JSON, one object a line, with the fields that a log store searches for. Set up once by `program`."""

from __future__ import annotations

import json
import logging
from datetime import UTC, datetime
from typing import Final

TEXT_FORMAT: Final = "%(asctime)s %(levelname)s %(name)s: %(message)s"
QUIET: Final = ("aiohttp", "asyncio", "kubernetes", "urllib3", "uvicorn")
"""Loggers whose debugging lines may hold headers, and so tokens: never below WARNING."""


class JsonFormatter(logging.Formatter):
    """`time`, `level`, `logger`, `message`, and `error` with the traceback where there is one."""

    def format(self, record: logging.LogRecord) -> str:
        """One line."""
        line = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            line["error"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False)


def set_up_logs(*, level: str, as_json: bool) -> None:
    """Send everything to standard error."""
    handler = logging.StreamHandler()
    handler.setFormatter(JsonFormatter() if as_json else logging.Formatter(TEXT_FORMAT))
    logging.basicConfig(level=level, handlers=[handler], force=True)
    for name in QUIET:
        logging.getLogger(name).setLevel(max(logging.WARNING, logging.getLevelNamesMapping()[level]))
