"""The stand-in for the NAT gateway and the VPC's name server: nodes reach the Internet as this machine does."""
