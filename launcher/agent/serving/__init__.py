"""At the other end of a client's connection: the verbs that an agent answers."""
