"""What is sent with a job, as one zipapp: the head's runner, a starter on every node, a keeper around every rank."""
