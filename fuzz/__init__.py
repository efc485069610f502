"""The harness: a Case goes in, a Verdict comes out; sessions, corpus, minimiser and reports are built on that."""
