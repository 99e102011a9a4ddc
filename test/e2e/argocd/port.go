//go:build linux

package argocd

import (
	"errors"
	"math/rand/v2"
	"net"
	"slices"
	"strconv"
)

// Argo CD cannot be given an open socket, nor one that is kept for it. So its ports are from a range that no outgoing
// connection and no NodePort is given.
const firstPort, lastPort = 20000, 29999

// freePort returns a port on which nobody listens, and which is none of those.
func freePort(but []int) (int, error) {
	for range 100 {
		port := firstPort + rand.IntN(lastPort-firstPort+1)
		if slices.Contains(but, port) {
			continue
		}
		// All addresses: some servers of metrics cannot be told to listen on one.
		l, err := net.Listen("tcp", ":"+strconv.Itoa(port))
		if err != nil {
			continue
		}
		return port, l.Close()
	}
	return 0, errors.New("no free port between 20000 and 29999")
}

func local(port int) string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(port)) }
