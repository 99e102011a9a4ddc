//go:build !linux

package disk

// mountPoints returns nil: mount points are not known here.
func mountPoints() ([]string, error) { return nil, nil }
