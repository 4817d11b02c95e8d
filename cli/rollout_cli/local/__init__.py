"""The local run's cluster: its one job in a file, its pods as processes. Composed by `rolloutctl run`."""
