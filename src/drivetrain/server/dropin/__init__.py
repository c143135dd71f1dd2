"""The worker protocols of FastChat and of DB-GPT, for their controllers and API servers, over the worker port."""
