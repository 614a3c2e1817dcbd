"""Jobs as this machine sees them: what a job is, how it is sent, followed and stopped."""
