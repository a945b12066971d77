"""Communication between peers: TLS, links, the service, admission of letters."""
