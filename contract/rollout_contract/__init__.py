"""What every part of RolloutJob agrees on: the resource, names, keys, messages, bytes on the wire, errors.

In: pydantic models, pure functions, plain records. Not in: I/O, clocks, randomness, torch, numpy. Everyone imports the
contract, and nobody each other.
"""
