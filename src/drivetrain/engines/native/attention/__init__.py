"""Our attention inside the library's model classes, over the packed row of a step."""
