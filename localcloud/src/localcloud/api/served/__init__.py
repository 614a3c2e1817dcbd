"""What the local cloud serves of AWS's APIs: everything else is refused by name, and requests are checked first."""
