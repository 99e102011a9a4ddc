// Command coredns is the cluster's DNS server with the plugins that a test cluster needs; the stock build links the client
// libraries of every cloud.
package main

import (
	"github.com/coredns/coredns/core/dnsserver"
	"github.com/coredns/coredns/coremain"
	_ "github.com/coredns/coredns/plugin/cache"
	_ "github.com/coredns/coredns/plugin/errors"
	_ "github.com/coredns/coredns/plugin/health"
	_ "github.com/coredns/coredns/plugin/hosts"
	_ "github.com/coredns/coredns/plugin/kubernetes"
	_ "github.com/coredns/coredns/plugin/log"
	_ "github.com/coredns/coredns/plugin/ready"
)

func main() {
	// The order of the plugins, which is also the list of those that a configuration may name.
	dnsserver.Directives = []string{"errors", "log", "health", "ready", "cache", "hosts", "kubernetes"}
	coremain.Run()
}
