"""The routes, one module per part of the interface; `app` puts them together."""
