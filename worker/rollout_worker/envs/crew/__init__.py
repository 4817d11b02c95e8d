"""The crew: all child processes of one vector env, as their parent sees them.

`crew.Crew` gives orders (`orders`), waits (`waiting`, on `wakeups` and `replies`), hands on what became of those that
died or fell silent (`silence`, `findings`, `losses`, `rescue`), and ends (`ending`). `births` starts processes.

Knows what a fault is; knows nothing of specs, blocks or tensors.

A child answers a command in this order: its reply words (outcome, then the command's number), if it is the last one a
count on the shared event descriptor, and only then what it has to send on its socket. So nobody waits for a message that
was not announced.
"""
