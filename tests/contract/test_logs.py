"""Log lines of the programs in a cluster."""

import json
import logging
import sys

from rollout_contract.logs import JsonFormatter


def _record(message: str, *args: object, exc_info: object = None) -> logging.LogRecord:
    return logging.LogRecord("x.y", logging.WARNING, "f", 1, message, args, exc_info)  # type: ignore[arg-type]


def test_a_line_is_one_object_whatever_the_message_holds():
    line = JsonFormatter().format(_record("pod %s\nis gone", "é"))

    assert "\n" not in line
    assert '"message": "pod é\\nis gone"' in line
    assert {"level": "WARNING", "logger": "x.y"}.items() <= json.loads(line).items()


def test_an_exception_brings_its_traceback():
    try:
        raise ValueError("boom")
    except ValueError:
        line = JsonFormatter().format(_record("it failed", exc_info=sys.exc_info()))

    assert json.loads(line)["error"].endswith("ValueError: boom")


def test_fields_stand_beside_the_message_and_never_hide_it():
    record = _record("ready")
    record.fields = {"frames": 7, "message": "forged", "worker": "forged"}
    line = json.loads(JsonFormatter({"worker": "default-0-0"}).format(record))

    assert (line["message"], line["frames"], line["worker"]) == ("ready", 7, "default-0-0")
