"""Values that the chart takes, and values that it refuses with what its answer names."""

from __future__ import annotations

from typing import Any

EXTERNAL = {"external": {"host": "redis.example"}}
SETS: dict[str, dict[str, Any]] = {
    "defaults": {},
    "two-namespaces": {"watch": {"namespaces": ["default", "kube-public"]}},
    "whole-cluster": {"watch": {"namespaces": ["*"]}, "redis": {"auth": {"secretNamespaces": ["default"]}}},
    "no-definition": {"crds": {"install": False}},
    "no-user-roles": {"rbac": {"userRoles": False}},
    "no-rbac": {
        "rbac": {"create": False, "userRoles": False},
        "operator": {"serviceAccount": {"create": False, "name": "mine"}},
        "gateway": {"serviceAccount": {"create": False, "name": "mine"}},
    },
    "no-gateway": {"gateway": {"enabled": False}},
    "external": {"redis": EXTERNAL},
    "external-with-secret": {"redis": {**EXTERNAL, "auth": {"existingSecret": "auth", "secretKey": "pass"}}},
    "external-with-password": {"redis": {**EXTERNAL, "auth": {"password": "p"}}},
    "external-with-tls": {
        "redis": {
            "external": {
                "host": "redis.example",
                "port": 6380,
                "username": "rl",
                "tls": {"enabled": True, "caSecret": "ca", "caKey": "root.pem"},
            },
            "auth": {"existingSecret": "auth"},
        }
    },
    "external-ipv6": {"redis": {"external": {"host": "fd00::1"}}},
    "job-secrets": {
        "redis": {
            "jobSecrets": [
                {
                    "namespace": "team",
                    "name": "redis-auth",
                    "keys": ["password"],
                    "secret": "team-redis-auth",
                },
                {"namespace": "rl-system", "name": "own", "keys": ["password", "ca.crt"]},
            ]
        }
    },
    "redis-in-memory": {"redis": {"persistence": {"enabled": False}}},
    "redis-deleted": {
        "redis": {"persistence": {"onUninstall": "Delete", "size": "1Gi", "storageClass": "standard"}}
    },
    "redis-of-root": {"redis": {"persistence": {"volumeOwner": "Root"}}},
    "redis-by-hand": {"redis": {"maxmemory": "512mb", "extraArgs": ["--tcp-keepalive", 60]}},
    "redis-existing-secret": {"redis": {"auth": {"existingSecret": "mine"}}},
    "ingress": {
        "gateway": {
            "ingress": {"enabled": True, "className": "nginx", "host": "rl.example", "tlsSecret": "tls"}
        }
    },
    "http-route": {
        "gateway": {
            "httpRoute": {"enabled": True, "parentRefs": [{"name": "gw"}], "hostnames": ["rl.example"]}
        }
    },
    "other-route": {
        "gateway": {
            "httpRoute": {
                "enabled": True,
                "annotations": {"note": "x"},
                "parentRefs": [{"name": "gw", "namespace": "ingress", "sectionName": "https", "port": 443}],
            },
            "service": {"port": 8080},
        }
    },
    "autoscaling": {"gateway": {"autoscaling": {"enabled": True, "minReplicas": 2, "maxReplicas": 9}}},
    "token-review": {"gateway": {"auth": "TokenReview"}},
    "https": {"gateway": {"tls": {"existingSecret": "tls"}, "service": {"port": 443}}},
    "monitoring": {
        "metrics": {
            "podMonitor": {"enabled": True, "labels": {"release": "prometheus"}},
            "serviceMonitor": {"enabled": True, "tokenSecret": {"name": "token"}},
            "prometheusRule": {"enabled": True},
            "dashboard": {"enabled": True},
        }
    },
    "monitoring-https": {
        "metrics": {"serviceMonitor": {"enabled": True, "tokenSecret": {"name": "token"}, "interval": "90s"}},
        "gateway": {"tls": {"existingSecret": "tls"}},
    },
    "no-network-policies": {"networkPolicy": {"enabled": False}},
    "other-network": {
        "networkPolicy": {
            "gatewayFrom": [{"namespaceSelector": {"matchLabels": {"team": "rl"}}}],
            "workers": {"extraEgress": [{"ports": [{"port": 443, "protocol": "TCP"}]}]},
        }
    },
    "images": {
        "global": {"imageRegistry": "registry.example/rl", "imagePullSecrets": ["pull"]},
        "operator": {"image": {"digest": f"sha256:{'a' * 64}"}},
        "worker": {"image": {"registry": "other.example", "tag": "7"}},
    },
    "scheduling": {
        program: {
            "nodeSelector": {"kubernetes.io/os": "linux"},
            "tolerations": [{"key": "rl", "operator": "Exists"}],
            "priorityClassName": "system-cluster-critical",
            "podLabels": {"team": "rl"},
            "podAnnotations": {"note": "x"},
            "affinity": {"nodeAffinity": {}},
        }
        for program in ("operator", "gateway", "redis")
    },
    "extras": {
        "commonLabels": {"team": "rl"},
        "commonAnnotations": {"owner": "rl"},
        **{
            program: {
                "env": [{"name": "HTTPS_PROXY", "value": "http://proxy.example"}],
                "volumes": [{"name": "more", "emptyDir": {}}],
                "volumeMounts": [{"name": "more", "mountPath": "/more"}],
            }
            for program in ("operator", "gateway")
        },
    },
    "long-name": {"fullnameOverride": "a" * 60},
    "values-that-yaml-takes-for-numbers": {
        "nameOverride": "5",
        "fullnameOverride": "rl",
        "commonLabels": {"build": 20240101, "is-new": True, "ratio": 1.5, "commit": "1e7"},
        "commonAnnotations": {"ticket": 7},
        "global": {"imagePullSecrets": ["3"]},
        "operator": {
            "image": {"tag": "1.10"},
            "podAnnotations": {"prometheus.io/scrape": True, "prometheus.io/port": 8080},
            "nodeSelector": {"gpu": True},
            "serviceAccount": {"name": "77", "annotations": {"id": 5}},
        },
        "gateway": {
            "tls": {"existingSecret": "99"},
            "service": {"annotations": {"weight": 10}},
            "podLabels": {"build": 8},
            "serviceAccount": {"name": "78"},
            "ingress": {
                "enabled": True,
                "className": "1",
                "host": "1.2",
                "tlsSecret": "7",
                "annotations": {"proxy-body-size": 0, "ssl-redirect": True},
            },
        },
        "redis": {
            "auth": {"existingSecret": "123", "secretKey": "7"},
            "persistence": {"storageClass": "1"},
            "extraArgs": ["--tcp-keepalive", 1000000],
            "jobSecrets": [{"namespace": "456", "name": "1", "keys": ["2"], "secret": "4"}],
        },
    },
    "hosts": {"gateway": {"allowedHosts": ["RL.example"]}},
    "another-port": {"gateway": {"service": {"port": 9090, "type": "LoadBalancer"}}},
    "more-egress": {"networkPolicy": {"extraEgress": [{"ports": [{"port": 7000, "protocol": "TCP"}]}]}},
}

REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "typo-at-the-top": ({"opertor": {}}, "opertor"),
    "typo-below": ({"redis": {"persistance": {}}}, "persistance"),
    "typo-in-an-image": ({"operator": {"image": {"repo": "x"}}}, "repo"),
    "typo-in-a-security-context": ({"podSecurityContext": {"runAsUsr": 1}}, "runAsUsr"),
    "typo-in-a-container's-security-context": (
        {"securityContext": {"readOnlyRootFileSystem": True}},
        "FileSystem",
    ),
    "typo-in-a-toleration": ({"redis": {"tolerations": [{"key": "rl", "op": "Exists"}]}}, "op"),
    "typo-in-a-variable": ({"operator": {"env": [{"name": "A", "valuefrom": {}}]}}, "valuefrom"),
    "typo-in-a-mount": ({"gateway": {"volumeMounts": [{"name": "a", "path": "/a"}]}}, "mountPath|path"),
    "typo-in-a-peer": ({"networkPolicy": {"gatewayFrom": [{"namespaceselector": {}}]}}, "namespaceselector"),
    "typo-in-a-rule": ({"networkPolicy": {"workers": {"extraEgress": [{"port": 443}]}}}, "port"),
    "typo-in-a-route": ({"gateway": {"httpRoute": {"parentRefs": [{"gateway": "gw"}]}}}, "name|gateway"),
    "typo-four-levels-deep": ({"redis": {"external": {"tls": {"caScret": "x"}}}}, "caScret"),
    "wrong-type": ({"gateway": {"replicas": "two"}}, "replicas"),
    "no-replica": ({"gateway": {"replicas": 0}}, "replicas"),
    "log-level": ({"operator": {"logLevel": "LOUD"}}, "logLevel"),
    "namespace": ({"watch": {"namespaces": ["Team_A"]}}, "namespaces"),
    "star-beside-others": ({"watch": {"namespaces": ["*", "default"]}}, "watch.namespaces"),
    "host-with-scheme": ({"redis": {"external": {"host": "redis://x"}}}, "host"),
    "digest": ({"operator": {"image": {"digest": "sha256:1"}}}, "digest"),
    "ingress-without-host": ({"gateway": {"ingress": {"enabled": True}}}, "gateway.ingress.host"),
    "route-without-parent": ({"gateway": {"httpRoute": {"enabled": True}}}, "parentRefs"),
    "account-without-name": ({"operator": {"serviceAccount": {"create": False}}}, "serviceAccount.name"),
    "unknown-auth": ({"gateway": {"auth": "None"}}, "auth"),
    "memory-that-cannot-be-read": (
        {"redis": {"resources": {"limits": {"memory": "1.5Gi"}}}},
        "redis.maxmemory",
    ),
    "release-that-no-service-can-be-called": ({"fullnameOverride": "4a"}, "fullnameOverride"),
    "name-with-a-dot": ({"nameOverride": "a.b"}, "nameOverride"),
    "label-of-the-chart's-own": (
        {"commonLabels": {"app.kubernetes.io/part-of": "x"}},
        "app.kubernetes.io/part-of",
    ),
    "label-that-selects": ({"redis": {"podLabels": {"app.kubernetes.io/name": "x"}}}, "redis.podLabels"),
    "tag-that-is-a-number": ({"operator": {"image": {"tag": 1.10}}}, "tag"),
    "variable-that-is-a-number": ({"operator": {"env": [{"name": "A", "value": 1}]}}, "value"),
    "toleration-that-is-a-truth-value": ({"redis": {"tolerations": [{"key": "a", "value": True}]}}, "value"),
    "budget": ({"gateway": {"podDisruptionBudget": {"maxUnavailable": "half"}}}, "maxUnavailable"),
    "autoscaling-upside-down": (
        {"gateway": {"autoscaling": {"enabled": True, "minReplicas": 7}}},
        "gateway.autoscaling: minReplicas",
    ),
    "autoscaling-by-nothing": (
        {"gateway": {"autoscaling": {"enabled": True}, "resources": {"requests": {"cpu": None}}}},
        "gateway.resources.requests.cpu",
    ),
    "external-without-host": ({"redis": {"external": {"port": 6380}}}, "redis.external.host"),
    "external-tls-without-host": ({"redis": {"external": {"tls": {"enabled": True}}}}, "redis.external.host"),
    "authority-without-tls": (
        {"redis": {"external": {"host": "a", "tls": {"caSecret": "ca"}}}},
        "redis.external.tls.enabled",
    ),
    "user-that-breaks-the-address": ({"redis": {"external": {"host": "a", "username": "a:b"}}}, "username"),
    "two-passwords": (
        {"redis": {"auth": {"existingSecret": "a", "password": "p"}}},
        "redis.auth: existingSecret",
    ),
}
