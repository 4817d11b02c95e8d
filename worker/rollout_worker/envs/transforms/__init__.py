"""Transforms that collectors need: counting steps, summing rewards, marking first frames, masking actions.

`TransformedEnv(env, Compose(StepCounter(100), RewardSum()))` is the environment with them. What a transform writes is
written at every level of the tensordict that has flags, with that level's shape.
"""
