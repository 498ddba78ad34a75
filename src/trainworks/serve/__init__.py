"""The web server: pages and a REST API over the use cases."""
