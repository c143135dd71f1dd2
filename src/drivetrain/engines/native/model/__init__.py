"""A model of the transformers library, loaded, checked and run on packed rows."""
