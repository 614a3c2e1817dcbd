"""What differs where Amazon EMR makes a cluster's machines, and not Auto Scaling."""
