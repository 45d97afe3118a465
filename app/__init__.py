"""What people see: the entry, one page a study, figures, widgets, jobs, the command line."""
