import units


def summary(flow):
	"""One line for the shift book."""
	return '%.0f l/h' % units.litres_per_hour(flow)
