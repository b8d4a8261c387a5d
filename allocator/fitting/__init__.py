"""Laws estimated from runs."""
