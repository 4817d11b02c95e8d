"""What a process is told in its environment."""

from __future__ import annotations

import pytest

from rollout_contract import podenv


@pytest.mark.parametrize(
    ("text", "password"),
    [(None, None), ("", None), (" \n", None), ("pw", "pw"), ("pw\r\n", "pw"), ("p w ", "p w")],
)
def test_a_password_has_no_white_space_around_it(text: str | None, password: str | None) -> None:
    """Whichever way it came: operator and gateway read it from a file, workers and learners from a variable."""
    environ = {} if text is None else {podenv.REDIS_PASSWORD: text}
    assert podenv.redis_password(environ) == password
