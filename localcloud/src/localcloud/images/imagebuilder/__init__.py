"""EC2 Image Builder of the local cloud: components run on a full operating system, which becomes an image."""
