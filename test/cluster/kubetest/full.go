//go:build linux

package kubetest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilrand "k8s.io/apimachinery/pkg/util/rand"

	"stoker.io/stoker/test/cluster/build"
	"stoker.io/stoker/test/cluster/image"
	"stoker.io/stoker/test/cluster/keeper"
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
