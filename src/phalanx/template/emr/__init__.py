"""The documents of EMR: a cluster that EMR makes, one that phalanx adopts, and what starts the agent on its nodes."""
