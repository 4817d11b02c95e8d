"""The page: HTML made on the server, with its style and script inside. No build step, nothing fetched from elsewhere."""
