"""The constrained optimum: SLSQP finds the basin, Newton on the KKT system finishes."""
