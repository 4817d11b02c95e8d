"""A worker without environments and without torch: serves health, joins the stream, appends until nothing is left.

What it does beside that is in `spec.env.kwargs`: `exit_code` (of attempts below `for_attempts`, after `after_batches`),
`pause_s` between batches, `silent` (joins, and never appends), `then_until` (after so many `batches` it waits until there
is this file).
"""

from __future__ import annotations

import http.server
import os
import signal
import sys
import threading
import time

from rollout_contract import podenv, wire
from rollout_contract.errors import WriterFenced
from rollout_contract.messages import AppendStatus, Heartbeat, ReserveStatus
from rollout_stream.writer import StreamWriter


class Health(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()

    def log_message(self, *arguments):
        pass


def serve_health():
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Health)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    with open(os.environ[podenv.HEALTH_FILE] + ".new", "w") as file:
        file.write(str(server.server_port))
    os.replace(os.environ[podenv.HEALTH_FILE] + ".new", os.environ[podenv.HEALTH_FILE])


def main():
    document = podenv.from_env(os.environ)
    asked = document.env.kwargs or {}
    stopping = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stopping.set())
    fails = document.attempt < asked.get("for_attempts", 0)
    batches = 0
    url = f"unix://{os.environ['TOY_SOCKET']}"
    try:
        writer = StreamWriter.connect(
            url,
            job=document.job,
            worker=document.worker,
            password=os.environ[podenv.REDIS_PASSWORD],
            patience_s=60,
        )
    except WriterFenced:
        return 76
    with writer:
        serve_health()
        want = document.collector.frames_per_batch

        def beat():
            record = Heartbeat(
                group=document.group,
                index=document.index,
                attempt=document.attempt,
                state="Collecting",
                pid=os.getpid(),
            )
            writer.heartbeat(record)

        beat()
        if asked.get("silent"):
            stopping.wait(600)
            return 143
        reservation = writer.reserve(want)
        while reservation.status != ReserveStatus.FINISHED:
            if stopping.is_set():
                return 143
            if fails and batches >= asked.get("after_batches", 0):
                with open(os.environ[podenv.TERMINATION_LOG], "w") as file:
                    file.write(f"ToyError: asked to fail with {asked['exit_code']}")
                return asked["exit_code"]
            if reservation.status != ReserveStatus.GRANTED:
                time.sleep(0.01)
                reservation = writer.reserve(want)
                continue
            n = reservation.granted
            header = wire.BatchHeader(
                job=document.uid,
                worker=document.worker,
                sequence=writer.next_sequence,
                shape=(n, 1),
                frames=n,
                seed_epoch=reservation.seed_epoch,
            )
            reply = writer.append(
                header, wire.encode(header, [wire.Leaf("x", "uint8", (n, 1), bytes(n))]), want=want
            )
            if reply.status == AppendStatus.FENCED:
                return 76
            batches += 1
            reservation = reply.next
            time.sleep(asked.get("pause_s", 0))
            while batches == asked.get("batches") and not os.path.exists(asked["then_until"]):
                if stopping.wait(0.02):
                    return 143
    return 0


if __name__ == "__main__":
    sys.exit(main())
