//go:build linux

package argocd

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"slices"
	"strconv"
)

// Argo CD accepts neither an open socket nor port 0. So its ports are from a range that is used neither for outgoing
// connections nor for NodePorts.
const (
	firstPort, lastPort = 10000, 29999
	outgoing            = "/proc/sys/net/ipv4/ip_local_port_range"
)

// freePort returns a free port of that range that is not in but.
func freePort(but []int) (int, error) {
	text, err := os.ReadFile(outgoing)
	if err != nil {
		return 0, err
	}
	var first, last int
	if _, err := fmt.Sscan(string(text), &first, &last); err != nil {
		return 0, fmt.Errorf("%s: %w", outgoing, err)
	}
	for range 1000 {
		port := firstPort + rand.IntN(lastPort-firstPort+1)
		if slices.Contains(but, port) || port >= first && port <= last {
			continue
		}
		// All addresses, because some metrics servers cannot be bound to a single one.
		l, err := net.Listen("tcp", ":"+strconv.Itoa(port))
		if err != nil {
			continue
		}
		return port, l.Close()
	}
	return 0, errors.New("no free port between 10000 and 29999 that " + outgoing + " leaves")
}

func local(port int) string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(port)) }
