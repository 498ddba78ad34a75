"""Configuration of Prometheus, Alertmanager and dashboards, rendered from metric families and alerts."""
