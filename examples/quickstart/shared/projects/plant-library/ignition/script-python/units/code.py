"""Units that every site calculates with."""


def litres_per_hour(cubic_metres_per_second):
	"""A flow as operators read it."""
	return cubic_metres_per_second * 3600.0 * 1000.0


def celsius(fahrenheit):
	return (fahrenheit - 32.0) * 5.0 / 9.0
