// Command agent keeps one Ignition gateway's data directory at a commit of git.
//
// Standalone, without Kubernetes, it reads a GatewaySync from a file:
//
//	agent --file gatewaysync.yaml --data-dir /usr/local/bin/ignition/data --gateway-name line-1 --gateway-url http://127.0.0.1:8088
//
// In a gateway's pod, as the sidecar that the injector adds, it follows the SyncTarget of a GatewaySync, which names the
// commit. The environment configures it:
//
//	POD_NAME, POD_NAMESPACE, POD_UID         the pod; the UID owns the SyncReport
//	CR_NAME                                  the GatewaySync
//	GATEWAY_NAME, PROFILE                    the gateway, and its profile if the pod has no annotation for it
//	DATA_PATH, REPO_PATH                     Ignition's data directory; the cache of git objects
//	GATEWAY_PORT, GATEWAY_TLS, SYNC_PERIOD   defaults for what the GatewaySync does not set
//	SECRETS_DIR, SECRETS                     the pod's Secrets, a directory each; their keys, as NAME/KEY,NAME/KEY
//	KEY_DIR                                  a folder for the API key that the agent makes (spec.gateway.api.managed)
//	PODINFO_DIR                              labels and annotations of the pod, as the downward API writes them
//	GATEWAY_MOUNTS                           paths below the data directory that the agent leaves alone, as ["PATH","PATH"]
//
// docs/reference/agent.md is the reference of its flags, environment, HTTP routes and exit codes.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"
)

// version is set by the build.
var version = "dev"

func main() {
	if err := hideProcess(); err != nil {
		fmt.Fprintf(os.Stderr, "agent: other programs may read this process: %v\n", err)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	os.Exit(run(ctx, os.Args[1:], os.Environ(), os.Stdout, os.Stderr))
}
