"""How long a shift of this plant is. The gateway's environment says it."""

from java.lang import System


def seconds():
	return int(System.getenv('SHIFT_HOURS')) * 3600
