"""What travels with a job: the head's runner, a starter on every node, a keeper around every rank; one zipapp."""
