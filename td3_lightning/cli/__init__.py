"""The command line: commands, the precedence of settings, and the sentences for mistakes.

Nothing imports this package, and no computation lives here: each command calls what Python programs call, too.
"""
