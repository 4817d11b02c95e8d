"""What the chart renders: for many sets of values, in both Helms; and what it refuses."""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest
import yaml
from foreign_kinds import SPECS
from installed import merged
from value_sets import REFUSED, SETS

from rollout_api.environment import settings_from as gateway_settings_from
from rollout_contract.names import API_VERSION
from rollout_operator.environment import settings_from

CHART = Path(__file__).parents[2] / "charts" / "rollout"
FOREIGN = {"monitoring.coreos.com/v1", "gateway.networking.k8s.io/v1"}
"""Kinds of others, whose definitions a test cluster does not have."""
Documents = list[dict[str, Any]]

pytestmark = pytest.mark.xdist_group("chart")  # what was rendered for one test serves the next


def pods(documents: Documents) -> list[tuple[str, dict[str, Any]]]:
    found = []
    for document in documents:
        name = f"{document['kind']}/{document['metadata']['name']}"
        if document["kind"] == "Pod":
            found.append((name, document["spec"]))
        elif "template" in document.get("spec", {}):
            found.append((name, document["spec"]["template"]["spec"]))
    return found


def of_kind(documents: Documents, kind: str, name: str = "") -> dict[str, Any]:
    (found,) = [d for d in documents if d["kind"] == kind and d["metadata"]["name"].endswith(name)]
    return found


def environment(documents: Documents, program: str) -> dict[str, str]:
    deployment = of_kind(documents, "Deployment", program)
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    return {variable["name"]: variable.get("value", "") for variable in container["env"]}


@pytest.fixture(params=SETS.values(), ids=SETS.keys())
def values(request: pytest.FixtureRequest) -> dict[str, Any]:
    return request.param


def test_lint(any_helm: Any) -> None:
    any_helm.run("lint", str(CHART), "--strict", "--kube-version", "1.34.0")


def test_renders_in_both_helms(any_helm: Any, values: dict[str, Any]) -> None:
    documents = any_helm.template(values)
    keys = [(d["kind"], d["metadata"].get("namespace"), d["metadata"]["name"]) for d in documents]
    assert len(keys) == len(set(keys)), "an object is there twice"
    for document in documents:
        labels = document["metadata"].get("labels", {})
        assert labels.get("app.kubernetes.io/part-of") == "rolloutjob", document["metadata"]["name"]
        assert len(document["metadata"]["name"]) <= 63


@pytest.mark.parametrize(("wrong", "named"), REFUSED.values(), ids=REFUSED.keys())
def test_refuses(any_helm: Any, wrong: dict[str, Any], named: str) -> None:
    with pytest.raises(Exception, match=named.replace(".", r"\.")):
        any_helm.template(wrong)


def test_every_pod_is_restricted(helm: Any, values: dict[str, Any]) -> None:
    """Containers that run on; volumes of root's need one that does not, and they are for test clusters."""
    found = pods(helm.template(values))
    assert found
    for name, spec in found:
        pod = spec["securityContext"]
        assert pod["runAsNonRoot"] is True, name
        assert pod["seccompProfile"] == {"type": "RuntimeDefault"}, name
        for container in spec["containers"]:
            security = container["securityContext"]
            assert security["allowPrivilegeEscalation"] is False, name
            assert security["readOnlyRootFilesystem"] is True, name
            assert security["capabilities"] == {"drop": ["ALL"]}, name
            assert container["resources"]["requests"], name
            assert container["resources"]["limits"]["memory"], name


def texts_of(documents: Documents) -> list[str]:
    """Everything that Kubernetes wants to be text."""
    found = []
    for document in documents:
        abouts = [document["metadata"], document.get("spec", {}).get("template", {}).get("metadata", {})]
        found += [
            v for about in abouts for key in ("labels", "annotations") for v in about.get(key, {}).values()
        ]
    for _, spec in pods(documents):
        found += spec.get("nodeSelector", {}).values()
        found += [v["value"] for c in spec["containers"] for v in c.get("env", ()) if "value" in v]
        found += [a for c in spec["containers"] for a in c.get("args", ())]
    return found


def test_text_stays_text(helm: Any, values: dict[str, Any]) -> None:
    found = texts_of(helm.template(values))
    assert [text for text in found if not isinstance(text, str)] == []
    assert "e+" not in "".join(found).replace("e+00", "")


def test_server_takes_it(helm: Any, kubectl: str, values: dict[str, Any]) -> None:
    documents = [d for d in helm.template(values) if d["apiVersion"] not in FOREIGN]
    for document in documents:  # namespaces of the sets need not exist
        if "namespace" in document["metadata"]:
            document["metadata"]["namespace"] = "default"
    keys = {(d["kind"], d["metadata"]["name"]): d for d in documents}
    done = subprocess.run(
        [kubectl, "apply", "--server-side", "--force-conflicts", "--dry-run=server", "--validate=strict", "-f", "-"],
        input=yaml.safe_dump_all(keys.values()),
        capture_output=True,
        text=True,
        timeout=150,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "violate" not in done.stderr


@pytest.mark.parametrize("name", ["http-route", "other-route", "monitoring", "monitoring-https"])
def test_kinds_of_others_are_as_their_reference_says(helm: Any, name: str) -> None:
    found = [d for d in helm.template(SETS[name]) if d["apiVersion"] in FOREIGN]
    assert found
    for document in found:
        schema = SPECS[document["apiVersion"], document["kind"]]
        jsonschema_rs.validate(schema, document["spec"])


def test_what_is_monitored_is_there(helm: Any) -> None:
    """Selectors and ports of the monitors, the route and the autoscaler name what the chart makes."""
    documents = helm.template(merged(SETS["monitoring"], merged(SETS["http-route"], SETS["autoscaling"])))
    service = of_kind(documents, "Service", "-gateway")
    monitor = of_kind(documents, "ServiceMonitor")["spec"]
    monitored = [service, of_kind(documents, "Service", "-gateway-metrics")]
    for found in monitored:
        assert monitor["selector"]["matchLabels"].items() <= found["metadata"]["labels"].items()
    ports = sorted(port["name"] for found in monitored for port in found["spec"]["ports"])
    assert sorted(e["port"] for e in monitor["endpoints"]) == ports
    pod = of_kind(documents, "Deployment", "-operator")["spec"]["template"]
    monitor = of_kind(documents, "PodMonitor")["spec"]
    assert monitor["selector"]["matchLabels"].items() <= pod["metadata"]["labels"].items()
    ports = {p["name"] for c in pod["spec"]["containers"] for p in c["ports"]}
    assert {e["port"] for e in monitor["podMetricsEndpoints"]} <= ports
    (backend,) = of_kind(documents, "HTTPRoute")["spec"]["rules"][0]["backendRefs"]
    assert backend["name"] == service["metadata"]["name"]
    assert backend["port"] in {p["port"] for p in service["spec"]["ports"]}
    target = of_kind(documents, "HorizontalPodAutoscaler")["spec"]["scaleTargetRef"]
    assert target["name"] == of_kind(documents, "Deployment", "-gateway")["metadata"]["name"]
    assert "replicas" not in of_kind(documents, "Deployment", "-gateway")["spec"]


@pytest.mark.parametrize("name", [name for name in SETS if name not in {"no-gateway"}])
def test_operator_understands_its_environment(helm: Any, name: str) -> None:
    documents = helm.template(SETS[name])
    settings = settings_from(
        {**environment(documents, "operator"), "ROLLOUT_POD_NAMESPACE": "rl-system", "ROLLOUT_POD_NAME": "p"}
    )
    assert settings.lease_name == of_kind(documents, "Deployment", "-operator")["metadata"]["name"]


def test_operator_is_told_what_the_values_say(helm: Any) -> None:
    settings = settings_from(
        {
            **environment(helm.template(SETS["external-with-tls"]), "operator"),
            "ROLLOUT_POD_NAMESPACE": "rl-system",
        }
    )
    operator = settings.operator
    assert (operator.redis.host, operator.redis.port, operator.redis.tls) == ("redis.example", 6380, True)
    assert operator.redis.username == "rl"
    assert operator.redis_secret is not None
    assert (operator.redis_secret.name, operator.redis_secret.key) == ("auth", "password")
    assert operator.redis_ca_secret is not None
    assert (operator.redis_ca_secret.name, operator.redis_ca_secret.key) == ("ca", "root.pem")
    assert settings.namespaces == ("rl-system",)


@pytest.mark.parametrize("name", [name for name in SETS if name not in {"no-gateway"}])
def test_gateway_understands_its_environment(helm: Any, name: str, tmp_path: Path) -> None:
    """Files that the chart mounts are made here, where the variables say."""
    env = environment(helm.template(SETS[name]), "gateway") | {"ROLLOUT_SESSION_KEY": "k" * 48}
    for variable, path in env.items():
        if variable.endswith("_FILE"):
            env[variable] = str(tmp_path / variable)
            Path(env[variable]).write_text("x", encoding="utf-8")
            assert path.startswith("/etc/rollout/")
    settings = gateway_settings_from(env)
    assert settings.auth.value == ("TokenReview" if name == "token-review" else "SelfReview")
    is_https = "existingSecret" in SETS[name].get("gateway", {}).get("tls", {})
    assert (settings.tls is not None) is is_https


@pytest.mark.parametrize(
    ("name", "namespaces"),
    [("defaults", ("rl-system",)), ("two-namespaces", ("default", "kube-public")), ("whole-cluster", ())],
)
def test_watched_namespaces(helm: Any, name: str, namespaces: tuple[str, ...]) -> None:
    env = environment(helm.template(SETS[name]), "operator")
    assert settings_from({**env, "ROLLOUT_POD_NAMESPACE": "rl-system"}).namespaces == namespaces


def test_all_that_is_wrong_is_told_at_once_without_secrets(helm: Any) -> None:
    wrong = merged(REFUSED["two-passwords"][0], REFUSED["autoscaling-upside-down"][0])
    wrong["redis"]["auth"]["password"] = "s3cr3t-probe-42"
    with pytest.raises(Exception, match=r"(?s)gateway\.autoscaling.*redis\.auth") as caught:
        helm.template(wrong)
    assert "s3cr3t-probe-42" not in str(caught.value)


@pytest.mark.probe("P-50")
def test_what_answers_without_a_token_is_for_inside_the_cluster(helm: Any) -> None:
    """A Service that the world may reach has the port that asks for a token, and no other."""
    services = [d for d in helm.template(SETS["another-port"]) if d["kind"] == "Service"]
    outside = [d for d in services if d["spec"].get("type", "ClusterIP") != "ClusterIP"]
    assert [d["metadata"]["name"] for d in outside] == ["rl-rollout-gateway"]
    assert [port["targetPort"] for port in outside[0]["spec"]["ports"]] == ["http"]


@pytest.mark.parametrize(
    ("host", "is_accepted"),
    [
        ("rl.example", True),
        ("rl-rollout-gateway", True),
        ("rl-rollout-gateway.rl-system.svc:80", True),
        ("rl-rollout-gateway.rl-system.svc.cluster.local", True),
        ("10.1.2.3:8080", True),
        ("127.0.0.1:8080", True),
        ("other.example", False),
        ("rl-rollout-gateway.evil.example", False),
    ],
)
def test_limited_names_leave_the_ways_inside_the_cluster(helm: Any, host: str, is_accepted: bool) -> None:
    """Jobs show the Service's name, the notes forward a port, Prometheus asks the pod."""
    env = environment(helm.template(SETS["hosts"]), "gateway") | {"ROLLOUT_SESSION_KEY": "k" * 48}
    names = env["ROLLOUT_ALLOWED_HOSTS"].replace("$(ROLLOUT_POD_IP)", "10.1.2.3")  # as the kubelet does
    del env["ROLLOUT_REDIS_PASSWORD_FILE"]
    settings = gateway_settings_from(env | {"ROLLOUT_ALLOWED_HOSTS": names})
    assert settings.api.accepts_host(host) is is_accepted


@pytest.mark.parametrize("name", ["more-egress"])
def test_more_egress_is_of_operator_and_gateway(helm: Any, name: str) -> None:
    policies = {
        d["metadata"]["name"]: d["spec"] for d in helm.template(SETS[name]) if d["kind"] == "NetworkPolicy"
    }
    (rule,) = SETS[name]["networkPolicy"]["extraEgress"]
    has_it = {key for key, spec in policies.items() if rule in spec["egress"]}
    assert has_it == {"rl-rollout-operator", "rl-rollout-gateway"}


@pytest.mark.parametrize("release", ["42", "a.b"])
def test_a_release_whose_name_cannot_be_a_services(helm: Any, release: str) -> None:
    """Helm takes such names; half of the objects would be there before the first Service is refused."""
    command = ("template", release, str(CHART), "--namespace", "7")
    with pytest.raises(Exception, match="fullnameOverride"):
        helm.run(*command)
    text = helm.run(*command, values={"fullnameOverride": "rl"})
    for document in filter(None, yaml.safe_load_all(text)):
        about = document["metadata"]
        assert about.get("namespace", "7") == "7"
        assert all(isinstance(value, str) for value in about.get("labels", {}).values())


class TestRights:
    @pytest.mark.probe("P-52")
    def test_nothing_is_wild_and_no_secret_is_read(self, helm: Any, values: dict[str, Any]) -> None:
        for document in helm.template(values):
            for rule in document.get("rules") or ():
                assert "*" not in (*rule["verbs"], *rule["resources"], *rule["apiGroups"])
                assert "secrets" not in rule["resources"]

    @pytest.mark.probe("P-52")
    def test_namespaced_installation_binds_nothing_cluster_wide(self, helm: Any) -> None:
        for name in ("defaults", "two-namespaces"):
            documents = helm.template(SETS[name])
            assert not [d for d in documents if d["kind"] == "ClusterRoleBinding"]

    def test_roles_are_where_jobs_are(self, helm: Any) -> None:
        documents = helm.template(SETS["two-namespaces"])
        roles = {
            (d["metadata"]["namespace"], d["metadata"]["name"]) for d in documents if d["kind"] == "Role"
        }
        assert roles == {
            ("rl-system", "rl-rollout-operator-lease"),
            ("default", "rl-rollout-operator"),
            ("kube-public", "rl-rollout-operator"),
        }

    def test_gateway_may_ask_only_where_it_is_told_to(self, helm: Any) -> None:
        bindings = [d for d in helm.template(SETS["token-review"]) if d["kind"] == "ClusterRoleBinding"]
        assert [b["metadata"]["name"] for b in bindings] == ["rl-system-rl-rollout-gateway"]

    def test_levels_of_users_contain_each_other(self, helm: Any) -> None:
        documents = helm.template()

        def rights(level: str) -> set[tuple[str, str, str]]:
            rules = of_kind(documents, "ClusterRole", f"rolloutjob-{level}")["rules"]
            return {
                (group, resource, verb)
                for rule in rules
                for group in rule["apiGroups"]
                for resource in rule["resources"]
                for verb in rule["verbs"]
            }

        assert rights("view") < rights("edit") < rights("admin")
        assert {verb for _, _, verb in rights("view")} == {"get", "list", "watch"}
        for level in ("view", "edit", "admin"):
            labels = of_kind(documents, "ClusterRole", f"rolloutjob-{level}")["metadata"]["labels"]
            assert labels[f"rbac.authorization.k8s.io/aggregate-to-{level}"] == "true"


class TestSecrets:
    @pytest.mark.probe("P-54")
    def test_password_stands_in_secrets_only(self, helm: Any) -> None:
        password = "s3cr3t-probe-42"
        for document in helm.template({"redis": {"auth": {"password": password}}}):
            if document["kind"] != "Secret":
                assert password not in json.dumps(document)

    @pytest.mark.probe("P-54")
    def test_a_new_password_restarts_everybody_and_cannot_be_guessed_from_what_pods_say(
        self, helm: Any
    ) -> None:
        """A plain hash could be compared with those of all likely passwords in no time."""

        def marks(password: str) -> set[str]:
            pods = [
                d["spec"]["template"]
                for d in helm.template({"redis": {"auth": {"password": password}}})
                if d["kind"] in ("Deployment", "StatefulSet")
            ]
            assert len(pods) == 3
            return {pod["metadata"]["annotations"]["rolloutjob.dev/auth-check"] for pod in pods}

        (mark,) = marks("summer26")
        assert marks("summer26") == {mark}
        assert marks("summer27") != {mark}
        for name in hashlib.algorithms_guaranteed - {"shake_128", "shake_256"}:
            assert not hashlib.new(name, b"summer26").hexdigest().startswith(mark)

    def test_a_password_from_a_file_has_no_line_end(self, helm: Any) -> None:
        """As `--set-file` brings it."""
        both = [helm.template({"redis": {"auth": {"password": text}}}) for text in ("p4ss", "p4ss\n")]
        one, other = (of_kind(d, "Secret", "-redis")["data"]["password"] for d in both)
        assert one == other

    def test_every_namespace_with_jobs_has_the_same_password(self, helm: Any) -> None:
        documents = helm.template(SETS["two-namespaces"])
        found = {
            d["metadata"]["namespace"]: d["data"]["password"]
            for d in documents
            if d["kind"] == "Secret" and d["metadata"]["name"] == "rl-rollout-redis"
        }
        assert set(found) == {"rl-system", "default", "kube-public"}
        assert len(set(found.values())) == 1

    def test_existing_secret_is_not_written(self, helm: Any) -> None:
        names = [
            d["metadata"]["name"]
            for d in helm.template(SETS["redis-existing-secret"])
            if d["kind"] == "Secret"
        ]
        assert names == ["rl-rollout-gateway"]

    def test_external_server_without_password_has_no_secret(self, helm: Any) -> None:
        documents = helm.template(SETS["external"])
        assert "ROLLOUT_REDIS_PASSWORD_FILE" not in environment(documents, "operator")
        assert "ROLLOUT_WORKER_REDIS_SECRET" not in environment(documents, "operator")

    def test_secrets_of_jobs_are_laid_out_as_the_programs_look_for_them(self, helm: Any) -> None:
        documents = helm.template(SETS["job-secrets"])
        spec = of_kind(documents, "Deployment", "-operator")["spec"]["template"]["spec"]
        (volume,) = [v for v in spec["volumes"] if v["name"] == "job-secrets"]
        sources = [s["secret"] for s in volume["projected"]["sources"]]
        assert sources[0]["name"] == "team-redis-auth"
        assert sources[0]["items"] == [{"key": "password", "path": "team/redis-auth/password"}]
        assert sources[1]["name"] == "own"
        assert environment(documents, "operator")["ROLLOUT_SECRETS_DIR"] == "/etc/rollout/secrets"


class TestRedis:
    @pytest.mark.parametrize(
        ("limit", "wanted"), [("2Gi", str(2**31 * 3 // 4)), ("1G", "750000000"), ("4096", "3072")]
    )
    def test_memory_is_three_quarters_of_the_limit(self, helm: Any, limit: str, wanted: str) -> None:
        documents = helm.template({"redis": {"resources": {"limits": {"memory": limit}}}})
        (container,) = of_kind(documents, "StatefulSet")["spec"]["template"]["spec"]["containers"]
        assert container["args"] == ["--maxmemory", wanted]

    def test_external_server_replaces_the_bundled_one(self, helm: Any) -> None:
        documents = helm.template(SETS["external"])
        assert not [d for d in documents if d["kind"] == "StatefulSet"]
        assert environment(documents, "operator")["ROLLOUT_REDIS_URL"] == "redis://redis.example:6379"

    def test_address_of_ipv6(self, helm: Any) -> None:
        env = environment(helm.template(SETS["external-ipv6"]), "operator")
        assert env["ROLLOUT_REDIS_URL"] == "redis://[fd00::1]:6379"


def test_a_new_version_of_the_chart_alone_restarts_no_pod(helm: Any, tmp_path: Path) -> None:
    """The server's data may be in memory; and nobody waits for a restart that changes nothing."""
    newer = tmp_path / "chart"
    shutil.copytree(CHART, newer)
    about = yaml.safe_load((newer / "Chart.yaml").read_text(encoding="utf-8"))
    (newer / "Chart.yaml").write_text(yaml.safe_dump(about | {"version": "9.9.9", "appVersion": "9.9.9"}))
    tags = {part: {"image": {"tag": "1"}} for part in ("operator", "gateway", "redis", "worker")}
    kinds = ("Deployment", "StatefulSet")
    before = {d["metadata"]["name"]: d["spec"] for d in helm.template(tags) if d["kind"] in kinds}
    text = helm.run("template", "rl", str(newer), "--namespace", "rl-system", values=tags)
    after = {d["metadata"]["name"]: d["spec"] for d in yaml.safe_load_all(text) if d and d["kind"] in kinds}
    assert before.keys() == after.keys()
    assert {name: spec["template"] for name, spec in before.items()} == {
        name: spec["template"] for name, spec in after.items()
    }


def test_definition_stays_when_the_release_goes(helm: Any) -> None:
    definition = of_kind(helm.template(), "CustomResourceDefinition")
    assert definition["metadata"]["annotations"]["helm.sh/resource-policy"] == "keep"
    plain = yaml.safe_load((CHART.parent / "rollout-crd.yaml").read_text(encoding="utf-8"))
    assert definition["spec"] == plain["spec"]


def test_definition_can_be_left_out(helm: Any) -> None:
    assert not [d for d in helm.template(SETS["no-definition"]) if d["kind"] == "CustomResourceDefinition"]


@pytest.mark.probe("P-49")
def test_release_is_small(helm: Any) -> None:
    """Helm keeps the chart and what it rendered, compressed, in one Secret of at most 1 MiB."""
    import gzip

    chart = b"".join(p.read_bytes() for p in sorted(CHART.rglob("*")) if p.is_file())
    assert len(gzip.compress(chart + yaml.safe_dump_all(helm.template()).encode())) < 256 * 1024


def test_defaults_of_the_values_match_the_schema() -> None:
    """Every value has its place in the schema and the other way round, so that nothing is refused or ignored."""
    schema = json.loads((CHART / "values.schema.json").read_text(encoding="utf-8"))
    values = yaml.safe_load((CHART / "values.yaml").read_text(encoding="utf-8"))

    def compare(value: Any, node: dict[str, Any], path: str) -> None:
        while "$ref" in node:
            node = schema["definitions"][node["$ref"].rpartition("/")[2]]
        if not isinstance(value, dict) or "properties" not in node:
            return
        if path != "global":
            assert node["additionalProperties"] is False, path
        assert value.keys() <= node["properties"].keys(), path
        if not path.endswith("resources"):
            assert value.keys() == node["properties"].keys(), path
        for key, child in value.items():
            compare(child, node["properties"][key], f"{path}.{key}".lstrip("."))

    compare(values, schema, "")


def test_dashboard_and_alerts_are_readable(helm: Any) -> None:
    documents = helm.template(SETS["monitoring"])
    dashboard = json.loads(of_kind(documents, "ConfigMap", "-dashboard")["data"]["rollout.json"])
    assert {p["type"] for p in dashboard["panels"]} == {"timeseries"}
    rules = of_kind(documents, "PrometheusRule")["spec"]["groups"][0]["rules"]
    assert all(rule["expr"] and rule["annotations"]["summary"] for rule in rules)


def test_monitored_numbers_are_ones_that_the_programs_have(helm: Any) -> None:
    """A renamed metric would leave panels and alerts empty, in silence."""
    import re

    root = CHART.parents[1]
    sources = "".join(
        (root / path).read_text(encoding="utf-8")
        for path in ("operator/rollout_operator/metrics.py", "api/rollout_api/metrics.py")
    )
    known = set(re.findall(r'"(rollout_[a-z_]+)"', sources))
    used = set(
        re.findall(
            r"rollout_[a-z_]+",
            "".join((CHART / "files" / f).read_text() for f in ("alerts.yaml", "dashboard.json")),
        )
    )
    bare = {re.sub(r"_(total|bucket|count|sum)$", "", name) for name in used if name != "rollout_operator"}
    assert bare - known == set()


def test_notes_speak_of_the_resource(helm: Any) -> None:
    text = (CHART / "templates" / "NOTES.txt").read_text(encoding="utf-8")
    assert API_VERSION in text
