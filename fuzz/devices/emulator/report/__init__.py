"""What came of a launch: the report of a deadlock, a race or a bad access, and the timeline of CTAs and warps."""
