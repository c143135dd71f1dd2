"""The OpenAI HTTP API over the worker port. Knows no engine and no concrete worker; needs the extra `server`."""
