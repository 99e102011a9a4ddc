//go:build linux

package kubetest

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilrand "k8s.io/apimachinery/pkg/util/rand"

	"stoker.io/stoker/test/cluster/build"
	"stoker.io/stoker/test/cluster/image"
	"stoker.io/stoker/test/cluster/keeper"
	"stoker.io/stoker/test/cluster/local"
	"stoker.io/stoker/test/cluster/node"
)

// Full returns a cluster that can run pods, on at least the given number of nodes. All tests of the process share it. The
// first call creates it:
//
//  1. the cluster of STOKER_TEST_KUBECONFIG, if set;
//  2. with nodes == 1, a kind cluster, if the Docker daemon answers and the node image is available locally;
//  3. a cluster on this machine, with programs built from Go modules; it needs root.
//
// Tests that stop and start its programs must not run in parallel with others. The cluster ends with kubetest.Main. A
// machine can run only one: packages that use it must run one after the other, by go test -p 1.
func Full(t testing.TB, nodes int) *Cluster {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), buildTimeout)
	defer cancel()
	shared.mu.Lock()
	defer shared.mu.Unlock()
	if !shared.endedByMain {
		t.Fatal(errShared)
	}
	if shared.full == nil && shared.fullErr == nil {
		shared.full, shared.fullErr = full(ctx, nodes)
	}
	if shared.fullErr != nil {
		t.Fatalf("cluster: %v", shared.fullErr)
	}
	found, err := shared.full.Client(t).CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		t.Fatalf("nodes: %v", err)
	}
	if len(found.Items) < nodes {
		t.Fatalf("the test needs %d nodes, and the cluster has %d: call Full with the largest number of nodes first", nodes, len(found.Items))
	}
	return shared.full
}

func full(ctx context.Context, nodes int) (*Cluster, error) {
	cache, err := build.Open(build.Cache{Progress: os.Stderr})
	if err != nil {
		return nil, err
	}
	chosen, err := choose(ctx, cache, nodes)
	if err != nil {
		return nil, err
	}
	fmt.Fprintln(os.Stderr, "cluster:", chosen)
	if chosen.given != "" {
		c, err := open(chosen.given)
		if err == nil {
			c.nodes = givenNodes{}
		}
		return c, err
	}
	return startWithKeeper(ctx, cache, chosen.config)
}

// startWithKeeper starts a cluster with a keeper, which ends it when this process ends for any reason.
func startWithKeeper(ctx context.Context, cache *build.Cache, config keeper.Config) (*Cluster, error) {
	dir, err := os.MkdirTemp("", "kubetest-")
	if err != nil {
		return nil, err
	}
	program := filepath.Join(dir, "cluster")
	if err := cache.Main(ctx, "./test/cluster", program); err != nil {
		return nil, errors.Join(err, os.RemoveAll(dir))
	}
	k, err := keeper.Start(ctx, program, config, os.Stderr)
	if err != nil {
		return nil, errors.Join(err, os.RemoveAll(dir))
	}
	end := func() error { return errors.Join(k.Stop(), os.RemoveAll(dir)) }
	c, err := open(k.Kubeconfig)
	if err != nil {
		return nil, errors.Join(err, end())
	}
	c.close = end
	if config.Kind != nil {
		c.nodes = kindNodes{*config.Kind}
		return c, nil
	}
	c.nodes, c.programs = localNodes{k.Client}, k.Client
	return c, nil
}

// localNodes are nodes on this machine.
type localNodes struct{ client *keeper.Client }

func (n localNodes) load(ctx context.Context, archive string) error {
	return n.client.Import(ctx, archive)
}

func (n localNodes) host(context.Context) (string, error) { return node.Address, nil }

// localClass is the storage class of volumes that are directories of this machine.
const localClass = "kubetest"

func (n localNodes) volumes(ctx context.Context, c *Cluster, number int) (string, error) {
	client, err := c.clientset()
	if err != nil {
		return "", err
	}
	binding := storagev1.VolumeBindingWaitForFirstConsumer
	_, err = client.StorageV1().StorageClasses().Create(ctx, &storagev1.StorageClass{
		ObjectMeta: metav1.ObjectMeta{Name: localClass}, Provisioner: "kubernetes.io/no-provisioner", VolumeBindingMode: &binding,
	}, metav1.CreateOptions{})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		return "", err
	}
	for i := range number {
		name := fmt.Sprintf("kubetest-%d-%s", i, utilrand.String(8))
		dirs, err := n.client.MakeVolume(ctx, name)
		if err != nil {
			return "", err
		}
		dir := dirs[i%len(dirs)]
		_, err = client.CoreV1().PersistentVolumes().Create(ctx, &corev1.PersistentVolume{
			ObjectMeta: metav1.ObjectMeta{Name: name},
			Spec: corev1.PersistentVolumeSpec{
				Capacity:    corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("10Gi")},
				AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
				// The volume is used once, and removed with the cluster.
				PersistentVolumeReclaimPolicy: corev1.PersistentVolumeReclaimRetain,
				StorageClassName:              localClass,
				NodeAffinity:                  nodeAffinity(dir.Node),
				PersistentVolumeSource:        corev1.PersistentVolumeSource{Local: &corev1.LocalVolumeSource{Path: dir.Path}},
			},
		}, metav1.CreateOptions{})
		if err != nil {
			return "", err
		}
	}
	return localClass, nil
}

// nodeAffinity binds a volume to a node.
func nodeAffinity(name string) *corev1.VolumeNodeAffinity {
	return &corev1.VolumeNodeAffinity{Required: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
		MatchExpressions: []corev1.NodeSelectorRequirement{{Key: corev1.LabelHostname, Operator: corev1.NodeSelectorOpIn, Values: []string{name}}},
	}}}}
}

// Image writes an image archive and loads it into every node. Pods use it with imagePullPolicy Never or IfNotPresent.
func (c *Cluster) Image(t testing.TB, i image.Image) {
	t.Helper()
	archive := filepath.Join(t.TempDir(), "image.tar")
	if err := image.Write(archive, i); err != nil {
		t.Fatal(err)
	}
	c.loadArchive(t, archive)
}

// ProgramImage builds a main package of this module, such as "./agent", statically, makes an image of it and loads that
// into every node. The program is the entrypoint, unless the image names one.
func (c *Cluster) ProgramImage(t testing.TB, pkg string, i image.Image) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), buildTimeout)
	defer cancel()
	cache, err := build.Open(build.Cache{Progress: os.Stderr})
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	program, archive := filepath.Join(dir, filepath.Base(pkg)), filepath.Join(dir, "image.tar")
	if err := errors.Join(cache.Main(ctx, pkg, program), build.ProgramImage(program, archive, i)); err != nil {
		t.Fatalf("image of %s: %v", pkg, err)
	}
	c.loadArchive(t, archive)
}

func (c *Cluster) loadArchive(t testing.TB, archive string) {
	t.Helper()
	c.needNodes(t)
	ctx, cancel := context.WithTimeout(context.Background(), buildTimeout)
	defer cancel()
	if err := c.nodes.load(ctx, archive); err != nil {
		t.Fatalf("load an image: %v", err)
	}
}

// HostAddress returns the address at which pods reach servers of the test, which must listen on it or on all addresses.
func (c *Cluster) HostAddress(t testing.TB) string {
	t.Helper()
	c.needNodes(t)
	address, err := c.nodes.host(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return address
}

// Volumes returns a storage class whose claims get volumes. If the cluster has no provisioner, Volumes creates number
// volumes. Each has a nominal 10Gi, any user may write to it, and fsGroup works.
func (c *Cluster) Volumes(t testing.TB, number int) string {
	t.Helper()
	c.needNodes(t)
	ctx, cancel := context.WithTimeout(context.Background(), stepTimeout)
	defer cancel()
	class, err := c.nodes.volumes(ctx, c, number)
	if err != nil {
		t.Fatalf("volumes: %v", err)
	}
	return class
}

func (c *Cluster) needNodes(t testing.TB) {
	t.Helper()
	if c.nodes == nil {
		t.Fatal("a control plane has no nodes: use kubetest.Full")
	}
}

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
