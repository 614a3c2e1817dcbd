"""CloudFormation with a control flow of its own, over moto's resource models."""
