"""The stand-in for the NAT gateway and the VPC's name server: nodes reach the outside as this machine does."""
