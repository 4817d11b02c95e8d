"""Looks into the stream of a job that runs, beside its learner: a group of its own, and three batches of it."""

from itertools import islice

from rollout_stream import RolloutStream

with RolloutStream.connect() as stream:  # from the variables in the run's `stream.env`
    for batch in islice(stream.batches(group="watch"), 3):
        with batch:
            print(
                batch.header.worker,
                batch.header.sequence,
                {key: list(batch.data[key].shape) for key in batch.data.keys(True, True)},
            )
    stream.control.remove_group("watch")  # or the job would wait for our acks
