"""Images with a full operating system: built from a distribution's packages, and kept in the user's data directory."""
