//go:build linux

package kubetest

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"stoker.io/stoker/test/cluster/build"
	"stoker.io/stoker/test/cluster/keeper"
	"stoker.io/stoker/test/cluster/local"
)

// Environment variables for an existing cluster, which is neither started nor stopped.
const (
	KubeconfigVariable = "STOKER_TEST_KUBECONFIG"
	// ImagesVariable, if not empty, means that the existing cluster already has the images of the tests.
	ImagesVariable = "STOKER_TEST_IMAGES_LOADED"
	// HostVariable is the address at which pods of the existing cluster reach the machine of the tests.
	HostVariable = "STOKER_TEST_HOST_ADDRESS"
)

// choice is the cluster for tests with pods.
type choice struct {
	given  string        // kubeconfig of an existing cluster, or ""
	config keeper.Config // the cluster to start if given is ""
	reason string        // why the cluster is not kind
}

func (c choice) String() string {
	switch {
	case c.given != "":
		return "that of " + c.given
	case c.config.Kind != nil:
		return "kind with " + c.config.Kind.Image
	}
	return "built from modules, on this machine (" + c.reason + ")"
}

// choose returns the cluster of KubeconfigVariable, otherwise kind if it works, otherwise a cluster on this machine. It
// does not rely on kind's own check, which mistakes a docker client for a docker daemon.
func choose(ctx context.Context, cache *build.Cache, nodes int) (choice, error) {
	if path := os.Getenv(KubeconfigVariable); path != "" {
		if _, err := os.Stat(path); err != nil {
			return choice{}, fmt.Errorf("%s: %w", KubeconfigVariable, err)
		}
		return choice{given: path}, nil
	}
	reason := "no kind: the tests need more than one node, or a given version"
	if nodes == 1 && os.Getenv(build.VersionVariable) == "" {
		kind, err := usableKind(ctx, cache.Kind)
		if err == nil {
			return choice{config: local.Kind(cache, kind)}, nil
		}
		reason = "no kind: " + err.Error()
	}
	config, err := local.Prepare(ctx, cache, nodes, os.Getenv(build.VersionVariable))
	return choice{config: config, reason: reason}, err
}

// usableKind returns how to run kind, or an error if kind cannot run. It builds kind only if a Docker daemon answers.
func usableKind(ctx context.Context, build func(context.Context) (string, error)) (keeper.Kind, error) {
	if _, err := runForLine(ctx, "docker", "info", "--format", "{{.ServerVersion}}"); err != nil {
		return keeper.Kind{}, err
	}
	program, err := build(ctx)
	if err != nil {
		return keeper.Kind{}, err
	}
	image, err := runForLine(ctx, program, "image")
	if err != nil {
		return keeper.Kind{}, err
	}
	if _, err := runForLine(ctx, "docker", "image", "inspect", "--format", "{{.Id}}", image); err != nil {
		return keeper.Kind{}, err
	}
	return keeper.Kind{Program: program, Image: image}, nil
}

// runForLine runs a program that prints one line within ten seconds, and returns the line.
func runForLine(ctx context.Context, program string, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.WaitDelay = time.Second
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	answer := strings.TrimSpace(string(out))
	switch {
	case err != nil:
		first, _, _ := strings.Cut(strings.TrimSpace(stderr.String()), "\n")
		return "", fmt.Errorf("%s %s: %w: %s", program, strings.Join(args, " "), err, first)
	case answer == "": // a client without a daemon may print nothing and exit with 0
		return "", fmt.Errorf("%s %s: no answer", program, strings.Join(args, " "))
	}
	return answer, nil
}

// kindNodes are the nodes of a kind cluster, which are containers.
type kindNodes struct{ keeper.Kind }

func (k kindNodes) load(ctx context.Context, archive string) error {
	out, err := exec.CommandContext(ctx, k.Program, "load", "image-archive", "--name", keeper.KindName, archive).CombinedOutput()
	if err != nil {
		return fmt.Errorf("kind load: %w: %s", err, strings.TrimSpace(string(out)))
	}
	return nil
}

func (k kindNodes) host(ctx context.Context) (string, error) {
	gateways, err := runForLine(ctx, "docker", "network", "inspect", "kind", "--format", "{{range .IPAM.Config}}{{.Gateway}} {{end}}")
	if err != nil {
		return "", err
	}
	for _, address := range strings.Fields(gateways) {
		if ip := net.ParseIP(address); ip != nil && ip.To4() != nil {
			return address, nil
		}
	}
	return "", fmt.Errorf("docker's network kind has no gateway with an IPv4 address: %q", gateways)
}

// volumes returns kind's class, which has a provisioner.
func (k kindNodes) volumes(context.Context, *Cluster, int) (string, error) { return "standard", nil }

// givenNodes are the nodes of an existing cluster.
type givenNodes struct{}

func (givenNodes) load(context.Context, string) error {
	if os.Getenv(ImagesVariable) == "" {
		return fmt.Errorf("the tests cannot load images into a given cluster: load them yourself, and set %s=1", ImagesVariable)
	}
	return nil
}

func (givenNodes) host(context.Context) (string, error) {
	if address := os.Getenv(HostVariable); address != "" {
		return address, nil
	}
	return "", fmt.Errorf("unknown address of this machine for pods of a given cluster: set %s", HostVariable)
}

// volumes returns the existing cluster's default class.
func (givenNodes) volumes(ctx context.Context, c *Cluster, _ int) (string, error) {
	client, err := c.clientset()
	if err != nil {
		return "", err
	}
	classes, err := client.StorageV1().StorageClasses().List(ctx, metav1.ListOptions{})
	if err != nil {
		return "", err
	}
	for _, class := range classes.Items {
		if class.Annotations["storageclass.kubernetes.io/is-default-class"] == "true" {
			return class.Name, nil
		}
	}
	return "", errors.New("the given cluster has no default storage class")
}
