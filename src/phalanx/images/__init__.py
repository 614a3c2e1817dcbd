"""Machine images made from recipes: what EC2 Image Builder installs and tests, and the stack in which it does so."""
