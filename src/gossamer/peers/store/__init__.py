"""The files of a peer: letters, outbox, mailbox, journal."""
