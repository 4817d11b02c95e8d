"""Reads the stream of a job and prints what is in it: the smallest learner there is."""

from rollout_stream import RolloutStream

stream = RolloutStream.connect()  # from the variables that `rolloutctl run` sets for its learner

for batch in stream.batches(group="reader"):
    with batch:  # acked at the end of the block; if it raises, the batch comes again
        data, header = batch.data, batch.header
        distance = (data["goal"] - data["position"]).norm(dim=-1)  # [num_envs, num_steps]
        print(
            f"batch {header.sequence} of {header.worker}: {list(data.shape)} frames,",
            f"mean distance {distance.mean():.2f}, {header.episodes.count} episodes ended",
            flush=True,
        )
