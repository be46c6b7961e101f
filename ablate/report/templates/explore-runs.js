// Later: runs
