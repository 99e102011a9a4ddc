"""What the shift book says of a cycle."""


def summary(strokes, seconds):
	if seconds <= 0:
		return 'no cycle'
	return '%.1f strokes a minute' % (strokes * 60.0 / seconds)
