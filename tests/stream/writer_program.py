"""A worker process without environments, started and killed by tests: reserves and appends until the job is finished.

Arguments: url, namespace/name, uid, index, attempt, frames per batch. Says `ready` once it has joined.
"""

from __future__ import annotations

import sys
import time

from rollout_contract import wire
from rollout_contract.messages import AppendStatus, ReserveStatus
from rollout_contract.names import JobRef, WorkerId
from rollout_stream import StreamWriter


def main() -> int:
    url, name, uid, index, attempt, frames = sys.argv[1:]
    namespace, name = name.split("/")
    worker = WorkerId("cpu", int(index), int(attempt))
    with StreamWriter.connect(url, job=JobRef(namespace, name, uid), worker=worker, patience_s=60) as writer:
        print("ready", flush=True)
        reservation = writer.reserve(int(frames))
        while reservation.status != ReserveStatus.FINISHED:
            if reservation.status != ReserveStatus.GRANTED:
                time.sleep(0.005)
                reservation = writer.reserve(int(frames))
                continue
            n = reservation.granted
            header = wire.BatchHeader(
                job=uid,
                worker=worker,
                sequence=writer.next_sequence,
                shape=(n, 1),
                frames=n,
                seed_epoch=reservation.seed_epoch,
            )
            frame = wire.encode(header, [wire.Leaf("x", "uint8", (n, 1, 4), bytes(4 * n))])
            reply = writer.append(header, frame, want=int(frames))
            if reply.status == AppendStatus.FENCED:
                return 76
            reservation = reply.next
    return 0


if __name__ == "__main__":
    sys.exit(main())
