"""Compile what a solve needs while SciPy is still being imported: a command waits half a second less."""

import threading
from contextlib import suppress

import numpy as np

from allocator.errors import AllocatorError
from allocator.optimum.accounts import account
from allocator.optimum.newton import polish
from allocator.scenario.building import build
from allocator.scenario.schema import Scenario


def compile_ahead(scenario: Scenario) -> threading.Thread:
    """Start compiling for a scenario's problem; join the thread before solving."""

    def run() -> None:
        with suppress(AllocatorError):  # solving meets the same error, and reports it
            problem = build(scenario).problem
            anywhere = np.array([25.0, 30.0, 1.0, 0.0])
            polish(problem, anywhere, True)
            account(problem, anywhere)  # SLSQP's values and gradients among it

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    return thread
