"""Clouds, through SkyPilot's command line: 0.14 and newer."""
