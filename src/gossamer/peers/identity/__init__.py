"""Identity: certificates, kits, the network file."""
