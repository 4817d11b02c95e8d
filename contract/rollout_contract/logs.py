"""Log lines of a program in a cluster: JSON, one object a line, with the fields that a log store searches for.

Set up once by a program's `main`, which names the loggers of its libraries that must stay quiet.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Final

TEXT_FORMAT: Final = "%(asctime)s %(levelname)s %(name)s: %(message)s"


class JsonFormatter(logging.Formatter):
    """`time`, `level`, `logger`, `message`, and `error` with the traceback where there is one.

    Beside them the program's own fields, and those that a record brings (`extra={"fields": {…}}`); the former names win.
    """

    def __init__(self, fields: Mapping[str, object] | None = None) -> None:
        super().__init__()
        self._fields = dict(fields or {})

    def format(self, record: logging.LogRecord) -> str:
        """One line."""
        line = {
            **getattr(record, "fields", {}),
            **self._fields,
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            line["error"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False)


def set_up_logs(
    *, level: str, as_json: bool, quiet: Iterable[str] = (), fields: Mapping[str, object] | None = None
) -> None:
    """Send everything to standard error; loggers named in `quiet` from WARNING on only. `fields`: in every line of JSON."""
    handler = logging.StreamHandler()
    handler.setFormatter(JsonFormatter(fields) if as_json else logging.Formatter(TEXT_FORMAT))
    logging.basicConfig(level=level, handlers=[handler], force=True)
    for name in quiet:
        logging.getLogger(name).setLevel(max(logging.WARNING, logging.getLevelNamesMapping()[level]))
