//go:build !linux

package main

// hideProcess does nothing: the sidecar runs on Linux.
func hideProcess() error { return nil }
