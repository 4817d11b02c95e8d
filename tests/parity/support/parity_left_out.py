"""The rows of the behaviour table that are not compared with the oracle, each with the reason.

Every one of them is tested against the value that the table calls right. A row is here only where the oracle is wrong in
every mode, or where there is nothing that two libraries could both write down.
"""

from __future__ import annotations

WRONG = "the oracle is wrong in every mode: "
OTHERWISE = "nothing to compare: "

LEFT_OUT = {
    "E-05": WRONG + "keywords that change shapes fail at the first reset, not at construction",
    "E-14": WRONG + "configure_parallel checks less than the constructor",
    "E-34": WRONG + "a missing action reaches the environment, or an old one is used again",
    "E-37": WRONG + "a leaf that an environment leaves out is an old value of the buffer",
    "E-50": WRONG + "rows that are not reset read as zeros, or are missing",
    "E-57": WRONG + "too few keywords are an IndexError after some resets, or a wait for ever",
    "E-64": WRONG + "a step mask of nobody crashes, or ends the processes",
    "E-65": WRONG + "a step mask within a batch is refused",
    "E-67": WRONG + "a partial step from an action and a mask alone is an AttributeError",
    "E-68": WRONG + "a partial step of rows of unlike shapes cannot be stacked",
    "E-69": WRONG + "a partial step of an open shape cannot be stacked",
    "E-80": WRONG + "until all are done is refused within a batch (see E-65)",
    "E-82": OTHERWISE + "round trips are counted by a test of ours; the oracle counts none",
    "E-100": WRONG + "batch sizes that differ are an error that names nobody",
    "E-105": WRONG + "rollouts of an open shape fail where a policy or a reset touches it",
    "E-117": WRONG + "a failure to load a state is waited for and not told",
    "E-124": WRONG + "an attribute before the start both starts and raises, or recurses for ever",
    "E-128": WRONG + "methods whose names are part of 'to' give nothing",
    "E-133": OTHERWISE + "it takes two devices",
    "E-134": OTHERWISE + "it takes two devices",
    "E-135": OTHERWISE + "it takes a device that is not there",
    "E-137": WRONG + "without shared memory, forked children write where nobody reads",
    "E-146": WRONG + "closing waits without a bound, or raises",
    "E-147": WRONG + "there is no `with` block",
    "E-148": WRONG + "a late answer is taken for the next one",
    "E-149": WRONG + "children end when their parent is idle",
    "E-153": WRONG + "after a failure nothing works any more, closing included",
    "E-154": WRONG + "a factory that fails in a child leaves the others running",
    "E-155": OTHERWISE + "it is about processes whose parent is gone",
}
