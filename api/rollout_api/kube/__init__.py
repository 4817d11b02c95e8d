"""The gateway in a cluster: jobs and rights from the Kubernetes API. Loaded only where that is asked for."""
