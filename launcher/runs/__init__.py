"""Launch, follow, stop and bring home: what happens to runs, and their local mirror."""
