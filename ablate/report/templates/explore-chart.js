// Later: chart
