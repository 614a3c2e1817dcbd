"""Security groups, routes and gateways of the local cloud's VPCs, enforced by the kernel's packet filter."""
