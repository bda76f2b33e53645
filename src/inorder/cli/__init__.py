"""The command line: a file per noun, thin skins over the library."""
