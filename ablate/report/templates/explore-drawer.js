// Later: drawer
