"""AWS's weather: delays, duplicates, refusals, throttling. A seed draws it, and it strikes where each thing happens."""
