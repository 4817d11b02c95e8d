"""The gateway: jobs, status, weights and seeds over HTTP. No torch; starts in well under a second."""
