"""Scenario files: reading, checking and turning them into a problem."""
