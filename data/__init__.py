"""Facts at rest: real data sets, the trace store, every table and every SQL statement."""
