"""Jobs from this machine's side: what a job is, and how to send, follow and stop one."""
