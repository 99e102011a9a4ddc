"""Rates that all areas calculate alike."""


def per_hour(count, seconds):
	if seconds <= 0:
		return 0.0
	return count * 3600.0 / seconds
