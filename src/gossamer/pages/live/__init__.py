"""The live page: follows runs or a network of peers, and never writes where they do."""
