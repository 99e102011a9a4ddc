package repo

import (
	"context"
	"errors"
	"net"
	"os"
	"testing"
)

// No test asks a name server: a name that this machine does not know by itself is unknown at once.
func TestMain(m *testing.M) {
	net.DefaultResolver = &net.Resolver{PreferGo: true, Dial: func(context.Context, string, string) (net.Conn, error) {
		return nil, errors.New("tests have no name server")
	}}
	os.Exit(m.Run())
}
