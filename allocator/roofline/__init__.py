"""The roofline: what a token costs on real hardware, as pure functions of size, batch and context."""
