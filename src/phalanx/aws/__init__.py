"""Everything that speaks to AWS's API, and the only place with botocore, which takes a while to import."""
