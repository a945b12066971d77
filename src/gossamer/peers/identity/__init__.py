"""Who is who: certificates, kits, the network file."""
