"""An API server in memory, over real HTTP: versions, preconditions, watches that end, drop and expire, faults on order.

Holds what the operator relies on and refuses what the real one refuses; it validates no schemas.
"""

from __future__ import annotations

import asyncio
import copy
import json
import re
import socket
import uuid
from collections import deque
from dataclasses import dataclass, field

from aiohttp import web

from rollout_contract.crd import crd_document
from rollout_operator.times import to_text

JOBS = "/apis/rolloutjob.dev/v1alpha1"
KINDS = {
    ("/api/v1", "pods"): ("Pod", "v1"),
    (JOBS, "rolloutjobs"): ("RolloutJob", "rolloutjob.dev/v1alpha1"),
    ("/apis/coordination.k8s.io/v1", "leases"): ("Lease", "coordination.k8s.io/v1"),
    ("/apis/events.k8s.io/v1", "events"): ("Event", "events.k8s.io/v1"),
}
PATH = re.compile(
    r"(?P<prefix>/api/v1|/apis/[^/]+/[^/]+)(/namespaces/(?P<ns>[^/]+))?/(?P<plural>[a-z]+)(/(?P<name>[^/]+))?(/(?P<part>[a-z]+))?"
)


@dataclass
class Fault:
    """An answer that is given instead of doing it, `times` times; `after`: instead of the answer, the work is done."""

    method: str
    path: str
    status: int
    body: object = ""
    headers: dict = field(default_factory=dict)
    times: int = 1
    after: bool = False
    hang_s: float = 0.0
    """It is done, or answered, so late."""
    late_s: float = 0.0
    """The answer comes so late after it was done."""


class Refused(Exception):
    """A Status of the API server."""

    def __init__(self, status, reason, message=""):
        super().__init__(message)
        self.status, self.reason, self.message = status, reason, message or reason

    def answer(self):
        body = {
            "kind": "Status",
            "status": "Failure",
            "reason": self.reason,
            "message": self.message,
            "code": self.status,
        }
        return web.json_response(body, status=self.status)


class FakeApi:
    """The server. `calls` are (method, path) in order; `objects` are by (plural, namespace, name)."""

    def __init__(self, clock):
        self.clock = clock
        self.objects = {}
        self.version = 100
        self.log = deque()
        self.oldest = 0
        self.calls = []
        self.faults = []
        self.schema = crd_document()["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
        self.page = 500
        self.token = None
        self.watchers = set()
        self._ending = set()
        self.is_silent = False
        self._changed = asyncio.Event()
        self._runner = None
        # Bound, and never listened at: while the server is away nobody gets its port, not even a connection to it.
        self._place = socket.socket()
        self._place.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._place.bind(("127.0.0.1", 0))
        self.port = self._place.getsockname()[1]

    async def start(self):
        app = web.Application()
        app.router.add_route("*", "/{tail:.*}", self._handle)
        self._runner = web.AppRunner(app, shutdown_timeout=0.1)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", self.port, reuse_address=True).start()

    async def stop(self):
        """Be away; `start` comes back at the same port."""
        self.drop_watches()
        await self._runner.cleanup()

    async def close(self):
        """Be gone."""
        await self.stop()
        self._place.close()

    def kubeconfig(self):
        user = {"token": self.token} if self.token else {}
        return json.dumps(
            {
                "apiVersion": "v1",
                "kind": "Config",
                "current-context": "c",
                "clusters": [{"name": "c", "cluster": {"server": f"http://127.0.0.1:{self.port}"}}],
                "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
                "users": [{"name": "u", "user": user}],
            }
        )

    # --- what happens in the cluster

    def put(self, plural, document, *, kind="MODIFIED"):
        metadata = document["metadata"]
        self.version += 1
        metadata["resourceVersion"] = str(self.version)
        key = (plural, metadata["namespace"], metadata["name"])
        self.objects[key] = document
        self._tell(plural, kind, document)
        return document

    def create(self, plural, document):
        document = copy.deepcopy(document)
        document["metadata"] |= {
            "uid": str(uuid.uuid4()),
            "creationTimestamp": to_text(self.clock()),
            "generation": 1,
        }
        if plural == "pods":
            document["status"] = {"phase": "Pending"}
        return self.put(plural, document, kind="ADDED")

    def remove(self, plural, namespace, name):
        document = self.objects.pop((plural, namespace, name))
        self.version += 1
        document = copy.deepcopy(document)
        document["metadata"]["resourceVersion"] = str(self.version)
        self._tell(plural, "DELETED", document)
        return document

    def edit(self, plural, namespace, name, change):
        document = copy.deepcopy(self.objects[plural, namespace, name])
        change(document)
        return self.put(plural, document)

    def named(self, plural):
        return {name: document for (kind, _, name), document in self.objects.items() if kind == plural}

    def run_pods(self):
        """The kubelet: what is pending becomes ready, what was asked to end is gone."""
        for (kind, namespace, name), pod in list(self.objects.items()):
            if kind != "pods":
                continue
            if "deletionTimestamp" in pod["metadata"]:
                self.remove(kind, namespace, name)
            elif pod["status"]["phase"] == "Pending":
                self.edit(kind, namespace, name, self._run)

    def _run(self, pod):
        now = to_text(self.clock())
        pod["status"] = {
            "phase": "Running",
            "conditions": [{"type": "Ready", "status": "True", "lastTransitionTime": now}],
            "containerStatuses": [{"name": "worker", "state": {"running": {"startedAt": now}}}],
        }

    def drop_watches(self):
        """Every watch ends without a word."""
        for response in list(self.watchers):
            if response.transport is not None:
                response.transport.abort()

    def compact(self):
        """What happened is forgotten: no watch can go on from before."""
        self.version += 1
        self.log.clear()
        self.oldest = self.version

    def count(self, method, pattern):
        return sum(1 for m, path in self.calls if m == method and re.search(pattern, path))

    def _tell(self, plural, kind, document):
        self.log.append((self.version, plural, kind, copy.deepcopy(document)))
        self._changed.set()
        self._changed = asyncio.Event()

    # --- HTTP

    async def _handle(self, request):
        self.calls.append((request.method, request.path_qs))
        if self.token and request.headers.get("Authorization") != f"Bearer {self.token}":
            return Refused(401, "Unauthorized").answer()
        fault = self._fault_of(request)
        if fault is not None:
            await asyncio.sleep(fault.hang_s)
        if fault is not None and not fault.after:
            return self._failed(fault)
        try:
            answer = await self._serve(request)
        except Refused as refused:
            answer = refused.answer()
        if fault is not None:
            await asyncio.sleep(fault.late_s)
        return answer if fault is None else self._failed(fault)

    def _fault_of(self, request):
        for fault in self.faults:
            if fault.times and fault.method == request.method and re.search(fault.path, request.path_qs):
                fault.times -= 1
                return fault
        return None

    def _failed(self, fault):
        if isinstance(fault.body, dict):
            return web.json_response(fault.body, status=fault.status, headers=fault.headers)
        return web.Response(text=fault.body, status=fault.status, headers=fault.headers)

    async def _serve(self, request):
        if request.path in DISCOVERY:
            return web.json_response(DISCOVERY[request.path])
        if request.path.startswith("/openapi"):
            if self.schema is None:
                raise Refused(404, "NotFound")
            schemas = {"dev.rolloutjob.v1alpha1.RolloutJob": self.schema}
            return web.json_response({"components": {"schemas": schemas}})
        match = PATH.fullmatch(request.path)
        if match is None or (match["prefix"], match["plural"]) not in KINDS:
            raise Refused(404, "NotFound", f"no such path: {request.path}")
        body = json.loads(await request.text() or "null")
        return await getattr(self, f"_{request.method.lower()}")(request, match, body)

    async def _get(self, request, match, body):
        if match["name"]:
            return web.json_response(self._one(match))
        if request.query.get("watch"):
            return await self._watch(request, match)
        found = [d for d in self._of(match) if selected(d, request.query.get("labelSelector"))]
        name = request.query.get("fieldSelector", "").removeprefix("metadata.name=")
        found = [d for d in found if name in {"", d["metadata"]["name"]}]
        start = int(request.query.get("continue") or 0)
        size = min(self.page, int(request.query.get("limit") or self.page))
        metadata = {"resourceVersion": str(self.version)}
        if start + size < len(found):
            metadata["continue"] = str(start + size)
        items = found[start : start + size]
        if "PartialObjectMetadata" in request.headers.get("Accept", ""):
            items = [{"metadata": item["metadata"]} for item in items]
        return web.json_response({"metadata": metadata, "items": items})

    async def _post(self, request, match, body):
        key = (match["plural"], match["ns"], body["metadata"]["name"])
        if key in self.objects:
            raise Refused(409, "AlreadyExists", f'{match["plural"]} "{key[2]}" already exists')
        if request.query.get("dryRun"):
            return web.json_response(body, status=201)
        return web.json_response(self.create(match["plural"], body), status=201)

    async def _put(self, request, match, body):
        held = self._one(match)
        self._check(held, body["metadata"])
        document = copy.deepcopy(body)
        document["metadata"] = {**held["metadata"], **body["metadata"]}
        return web.json_response(self.put(match["plural"], document))

    async def _patch(self, request, match, body):
        held = self._one(match)
        self._check(held, body.get("metadata") or {}, is_apply="apply" in request.content_type)
        document = copy.deepcopy(held)
        if match["part"] == "status":
            document["status"] = body["status"]
        else:
            document = merge(
                document, {**body, "metadata": {**body.get("metadata", {}), "resourceVersion": None}}
            )
        document["metadata"]["resourceVersion"] = held["metadata"]["resourceVersion"]
        if document == held:
            return web.json_response(held)
        metadata = document["metadata"]
        if "deletionTimestamp" in metadata and not metadata.get("finalizers"):
            return web.json_response(self.remove(match["plural"], match["ns"], match["name"]))
        return web.json_response(self.put(match["plural"], document))

    async def _delete(self, request, match, body):
        held = self._one(match)
        self._check(held, (body or {}).get("preconditions") or {})
        is_running = match["plural"] == "pods" and held["status"]["phase"] == "Running"
        if is_running or held["metadata"].get("finalizers"):
            grace = (body or {}).get("gracePeriodSeconds", 60)

            def mark(document):
                document["metadata"] |= {
                    "deletionTimestamp": to_text(self.clock() + (grace if is_running else 0)),
                    "deletionGracePeriodSeconds": grace,
                }

            if "deletionTimestamp" in held["metadata"]:
                return web.json_response(held)
            return web.json_response(self.edit(match["plural"], match["ns"], match["name"], mark))
        return web.json_response(self.remove(match["plural"], match["ns"], match["name"]))

    def _one(self, match):
        try:
            return self.objects[match["plural"], match["ns"], match["name"]]
        except KeyError:
            raise Refused(404, "NotFound", f'{match["plural"]} "{match["name"]}" not found') from None

    def _of(self, match):
        return [
            document
            for (plural, namespace, _), document in sorted(self.objects.items(), key=lambda item: item[0])
            if plural == match["plural"] and match["ns"] in {None, namespace}
        ]

    def _check(self, held, wanted, *, is_apply=False):
        for name in ("uid", "resourceVersion"):
            if is_apply and name == "uid":
                continue  # as the real one
            if wanted.get(name) not in {None, held["metadata"][name]}:
                raise Refused(409, "Conflict", f"the {name} does not match")

    async def _watch(self, request, match):
        since = int(request.query.get("resourceVersion") or 0)
        response = web.StreamResponse()
        response.content_type = "application/json"
        if since < self.oldest and match["plural"] == "pods":  # of jobs in the stream: servers do both
            raise Refused(410, "Expired", "too old resource version")
        await response.prepare(request)
        await response.write(b"")
        response.transport = request.transport
        self.watchers.add(response)
        try:
            await self._send_events(response, match, since, request.query.get("labelSelector"))
        except (ConnectionError, asyncio.CancelledError):
            pass
        finally:
            self.watchers.discard(response)
            self._ending.discard(response)
        return response

    async def _send_events(self, response, match, since, selector):
        while True:
            changed = self._changed
            if since < self.oldest:
                expired = {
                    "kind": "Status",
                    "code": 410,
                    "reason": "Expired",
                    "message": "too old resource version",
                }
                await self._send(response, "ERROR", expired)
                return
            for version, plural, kind, document in list(self.log):
                if version <= since or plural != match["plural"] or self.is_silent:
                    continue
                since = version
                if match["ns"] in {None, document["metadata"]["namespace"]} and selected(document, selector):
                    await self._send(response, kind, document)
            if response in self._ending:
                return
            await changed.wait()

    def end_watches(self):
        """Every watch ends cleanly, as under load."""
        self._ending |= self.watchers
        self._changed.set()
        self._changed = asyncio.Event()

    async def _send(self, response, kind, document):
        await response.write(json.dumps({"type": kind, "object": document}).encode() + b"\n")

    async def bookmark(self):
        """Every watch is told how far it is."""
        for response in list(self.watchers):
            await self._send(response, "BOOKMARK", {"metadata": {"resourceVersion": str(self.version)}})

    async def say(self, line):
        """Every watch gets this line."""
        for response in list(self.watchers):
            await response.write(line + b"\n")


def selected(document, selector):
    labels = document["metadata"].get("labels") or {}
    return all(part in labels for part in (selector or "").split(",") if part)


def merge(base, patch):
    """A JSON merge patch."""
    new = copy.deepcopy(base)
    for name, value in patch.items():
        if value is None:
            new.pop(name, None)
        elif isinstance(value, dict):
            new[name] = merge(new.get(name) or {}, value)
        else:
            new[name] = value
    return new


_RESOURCE = {
    "name": "rolloutjobs",
    "singularName": "rolloutjob",
    "namespaced": True,
    "kind": "RolloutJob",
    "verbs": ["get", "list", "watch", "patch", "delete"],
}
_VERSION = {"groupVersion": "rolloutjob.dev/v1alpha1", "version": "v1alpha1"}
DISCOVERY = {
    "/version": {"major": "1", "minor": "34"},
    "/api": {"versions": ["v1"]},
    # kopf waits until it knows what a namespace is, though it asks for none.
    "/api/v1": {"resources": [{**_RESOURCE, "name": "namespaces", "kind": "Namespace", "namespaced": False}]},
    "/apis": {"groups": [{"name": "rolloutjob.dev", "versions": [_VERSION], "preferredVersion": _VERSION}]},
    JOBS: {"resources": [_RESOURCE, {**_RESOURCE, "name": "rolloutjobs/status"}]},
}
