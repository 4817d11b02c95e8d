from __future__ import annotations

import argparse
import os
import traceback

import pytest

from rollout_cli import connection
from rollout_cli.connection import connect
from rollout_cli.errors import UsageError
from rollout_cli.local.run_dir import GatewayRecord, RunDir, write_gateway, write_record, write_secret

KUBECONFIG = """
current-context: work
contexts:
- {name: home, context: {namespace: other}}
- {name: work, context: {namespace: from-kubeconfig, cluster: c, user: u}}
"""


def flags(**given) -> argparse.Namespace:
    return argparse.Namespace(
        **{"namespace": None, "url": None, "token_file": None, "run_dir": None, **given}
    )


@pytest.fixture
def here(tmp_path, monkeypatch):
    """An empty working directory, no pod's namespace file."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(connection, "POD_NAMESPACE_FILE", tmp_path / "pod-namespace")
    return tmp_path


def make_run(directory, name: str, *, namespace: str = "from-run") -> RunDir:
    run = RunDir(directory / "runs" / name)
    run.logs.mkdir(parents=True)
    run.job_file.write_text("{}")
    write_record(run, {})
    write_gateway(run, GatewayRecord(f"http://127.0.0.1:1/{name}", namespace, "tiny", os.getpid()))
    write_secret(run.token_file, f"token of {name}\n")
    return run


@pytest.mark.probe("P-59")
def test_namespaces_in_their_one_order(here, capsys):
    kubeconfig = here / "config"
    kubeconfig.write_text(KUBECONFIG)
    (here / "pod-namespace").write_text("from-pod\n")
    environ = {"ROLLOUT_NAMESPACE": "from-environment", "KUBECONFIG": str(kubeconfig)}
    url = "http://gateway"

    def used(*, namespace: str | None = None) -> str | None:
        return connect(flags(url=url, namespace=namespace), environ).namespace

    assert used(namespace="from-flag") == "from-flag"
    assert used() == "from-environment"
    del environ["ROLLOUT_NAMESPACE"]
    assert used() == "from-pod"
    (here / "pod-namespace").unlink()
    assert used() == "from-kubeconfig"
    kubeconfig.unlink()
    assert used() is None
    with pytest.raises(UsageError) as error:
        connect(flags(url=url), environ).job_path("tiny")

    for source in ("--namespace", "ROLLOUT_NAMESPACE", "pod", "kubeconfig"):
        assert source in str(error.value)
    shown = capsys.readouterr().err.splitlines()
    assert "namespace from-flag (--namespace)" in shown[0]
    assert "namespace from-environment (ROLLOUT_NAMESPACE)" in shown[1]
    assert "namespace from-pod (pod)" in shown[2]
    assert "namespace from-kubeconfig (kubeconfig)" in shown[3]


def test_gateways_in_their_one_order(here, capsys):
    make_run(here, "tiny-1")
    environ = {"ROLLOUT_GATEWAY_URL": "http://from-environment/"}

    assert connect(flags(url="https://from-flag"), environ).client.url == "https://from-flag"
    assert connect(flags(), environ).client.url == "http://from-environment"
    found = connect(flags(), {})
    assert (found.client.url, found.client.token, found.namespace) == (
        "http://127.0.0.1:1/tiny-1",
        "token of tiny-1",
        "from-run",
    )
    assert "run tiny-1" in capsys.readouterr().err


def test_the_newest_run_is_meant_unless_one_is_named(here):
    first = make_run(here, "tiny-1")
    second = make_run(here, "tiny-2")
    os.utime(first.record_file, (1, 1))

    assert connect(flags(), {}).client.token == "token of tiny-2"
    assert connect(flags(run_dir=first.path), {}).client.token == "token of tiny-1"
    second.gateway_file.unlink()
    assert connect(flags(), {}).client.token == "token of tiny-1"


def test_tokens_in_their_one_order(here):
    make_run(here, "tiny-1")
    (here / "t").write_text("from-flag\n")
    environ = {"ROLLOUT_TOKEN": "from-environment"}

    assert connect(flags(token_file=here / "t"), environ).client.token == "from-flag"
    assert connect(flags(), environ).client.token == "from-environment"
    assert connect(flags(), {}).client.token == "token of tiny-1"
    assert connect(flags(url="http://elsewhere"), {}).client.token is None


def test_a_token_is_never_shown(here, capsys):
    make_run(here, "tiny-1")
    found = connect(flags(), {})

    assert "token of" not in capsys.readouterr().err + repr(found) + str(found)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        pytest.param({"token_file": "nowhere"}, "--token-file", id="token file"),
        pytest.param({"url": "ftp://x"}, "--url is 'ftp://x'", id="scheme"),
        pytest.param({"url": "http://me:s3cr3t@x"}, "--url holds a user", id="a user in the URL"),
    ],
)
def test_a_source_that_cannot_be_read_is_an_error(here, given, message):
    make_run(here, "tiny-1")
    if "token_file" in given:
        given = {"token_file": here / given["token_file"]}

    with pytest.raises(UsageError, match=message) as caught:
        connect(flags(**given), {})
    assert "s3cr3t" not in str(caught.value)


SECRET = "s3cr3t-probe-42"


@pytest.mark.probe("P-54")
@pytest.mark.parametrize(
    "text", [f"{SECRET}\r\nX: y", f"{SECRET}\0", f"{SECRET}é", f"{SECRET}\n{SECRET}", " \n"]
)
@pytest.mark.parametrize("source", ["ROLLOUT_TOKEN", "--token-file"])
def test_a_token_that_no_header_can_hold_is_refused_without_it(here, capsys, text, source):
    """The HTTP client's own error quotes it."""
    (here / "t").write_text(text, newline="")
    is_file = source == "--token-file"
    with pytest.raises(UsageError, match=source) as caught:
        connect(
            flags(url="http://x", token_file=here / "t" if is_file else None),
            {} if is_file else {source: text},
        )
    assert SECRET not in "".join(traceback.format_exception(caught.value)) + capsys.readouterr().err


def test_the_line_end_of_a_token_is_none_of_it(here):
    assert connect(flags(url="http://x"), {"ROLLOUT_TOKEN": "abc\r\n"}).client.token == "abc"


@pytest.mark.probe("P-54")
@pytest.mark.parametrize(
    "text", ["users: [{token: %s: x}]", "a: b: %s", "contexts: [%s", "contexts: %s", "- %s"]
)
def test_a_broken_kubeconfig_is_not_quoted(here, text):
    """It holds tokens."""
    (here / "config").write_text(text % SECRET)
    with pytest.raises(UsageError, match="kubeconfig") as caught:
        connect(flags(url="http://x"), {"KUBECONFIG": str(here / "config")})
    assert SECRET not in "".join(traceback.format_exception(caught.value))


def test_a_broken_kubeconfig_is_an_error(here):
    (here / "config").write_text("contexts: [1")

    with pytest.raises(UsageError, match="kubeconfig"):
        connect(flags(url="http://x"), {"KUBECONFIG": str(here / "config")})


def test_without_any_run_the_error_says_how_to_name_one(here):
    with pytest.raises(UsageError, match=r"--run-dir.*--url"):
        connect(flags(), {})
