"""Studies: what to run, on which subject, how much; and the engine that runs it."""
