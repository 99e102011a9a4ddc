package kubetest

import (
	"context"
	_ "embed" // for stages
	"fmt"
	"os"
	"path/filepath"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"stoker.io/stoker/test/cluster/build"
	"stoker.io/stoker/test/cluster/process"
)

// stages is the configuration of kwok: the states that pods and nodes go through.
//
//go:embed stages.yaml
var stages []byte

// simulator is the name of the program that simulates nodes.
const simulator = "kwok"

// SimulatedNodes requests a number of nodes on which pods become ready but do not run, together with the controllers
// and the scheduler, for tests with many pods.
func SimulatedNodes(number int) Option {
	return func(o *options) { o.simulated, o.controllers, o.scheduler = number, true, true }
}

// simulate starts the simulator if needed, and adds missing nodes.
func (c *Cluster) simulate(ctx context.Context, number int) error {
	if c.simulated == 0 {
		cache, err := build.Open(build.Cache{Progress: os.Stderr})
		if err != nil {
			return err
		}
		program, err := cache.Kwok(ctx)
		if err != nil {
			return err
		}
		dir := filepath.Dir(c.kubeconfig)
		config := filepath.Join(dir, "stages.yaml")
		if err := os.WriteFile(config, stages, 0o600); err != nil {
			return err
		}
		err = c.plane.Programs.Start(process.Program{
			Name: simulator, Path: program,
			Args: []string{
				"--kubeconfig=" + c.kubeconfig, "--manage-all-nodes=false", "--manage-nodes-with-annotation-selector=kwok.x-k8s.io/node=fake",
				"--cidr=10.128.0.0/9", "--node-ip=10.250.1.1", "--node-lease-duration-seconds=40", "--config=" + config,
			},
			Env: []string{"HOME=" + dir}, // ignore the user's own configuration
		})
		if err != nil {
			return err
		}
	}
	client, err := c.clientset()
	if err != nil {
		return err
	}
	capacity := corev1.ResourceList{
		corev1.ResourceCPU: resource.MustParse("64"), corev1.ResourceMemory: resource.MustParse("512Gi"), corev1.ResourcePods: resource.MustParse("1000"),
	}
	for ; c.simulated < number; c.simulated++ {
		name := fmt.Sprintf("simulated-%d", c.simulated)
		_, err := client.CoreV1().Nodes().Create(ctx, &corev1.Node{
			ObjectMeta: metav1.ObjectMeta{
				Name:        name,
				Annotations: map[string]string{"kwok.x-k8s.io/node": "fake", "node.alpha.kubernetes.io/ttl": "0"},
				Labels:      map[string]string{corev1.LabelHostname: name, corev1.LabelOSStable: "linux", "type": "simulated"},
			},
			Status: corev1.NodeStatus{Allocatable: capacity, Capacity: capacity},
		}, metav1.CreateOptions{})
		if err != nil && !apierrors.IsAlreadyExists(err) {
			return err
		}
	}
	ctx, cancel := context.WithTimeout(ctx, stepTimeout)
	defer cancel()
	return c.plane.Programs.Wait(ctx, "simulated nodes", func(ctx context.Context) error {
		nodes, err := client.CoreV1().Nodes().List(ctx, metav1.ListOptions{LabelSelector: "type=simulated"})
		if err != nil {
			return err
		}
		ready := 0
		for _, n := range nodes.Items {
			for _, condition := range n.Status.Conditions {
				if condition.Type == corev1.NodeReady && condition.Status == corev1.ConditionTrue {
					ready++
				}
			}
		}
		if ready < number {
			return fmt.Errorf("%d of %d are ready", ready, number)
		}
		return nil
	}, simulator)
}
