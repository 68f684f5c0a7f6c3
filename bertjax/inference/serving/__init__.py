"""Models behind HTTP: batches, endpoints, the application, and the process of a server."""
