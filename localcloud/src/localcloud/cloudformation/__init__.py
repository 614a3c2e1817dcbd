"""The local cloud's own CloudFormation engine, on top of moto's resource models."""
