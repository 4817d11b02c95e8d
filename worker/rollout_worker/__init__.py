"""The worker: environments under a collector, batches into the stream, weights and seeds back.

In: `envs` (what is stepped and by which processes), `collectors` (what makes batches of it), `policy`, and the program
itself (`main` builds, `loop` runs, `pacing` decides). Not in: who starts workers, and who reads what they write.
"""
