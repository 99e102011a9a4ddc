import rates


def line(count, seconds):
	"""One line for the shift book."""
	return '%.0f an hour' % rates.per_hour(count, seconds)
