//go:build linux

package node

import (
	"bytes"
	"context"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"text/template"
	"time"

	"stoker.io/stoker/test/cluster/control"
	"stoker.io/stoker/test/cluster/pki"
	"stoker.io/stoker/test/cluster/process"
)

//go:embed files
var files embed.FS

// Node is a node: a containerd and a kubelet. All nodes share the machine's network; each has its own address on it.
type Node struct {
	number   int
	run, dir string
	programs *process.Group
}

// New returns a node, counted from 1. Its state is in dir, its sockets in run, which must be a short
// path, because the kernel limits the path of a socket.
func New(number int, run, dir string, programs *process.Group) *Node {
	return &Node{number, filepath.Join(run, cgroupRoot(number)), filepath.Join(dir, Name(number)), programs}
}

// Containerd returns the program name of the node's containerd.
func (n *Node) Containerd() string { return fmt.Sprintf("containerd-n%d", n.number) }

// Kubelet returns the program name of the node's kubelet.
func (n *Node) Kubelet() string { return fmt.Sprintf("kubelet-n%d", n.number) }

func (n *Node) socket() string { return filepath.Join(n.run, "containerd.sock") }

// Volume creates the directory of a volume that any user may write to, and returns its path.
func (n *Node) Volume(name string) (string, error) {
	if !filepath.IsLocal(name) {
		return "", fmt.Errorf("volume %q: want a name", name)
	}
	path := filepath.Join(n.dir, "volumes", name)
	if err := os.MkdirAll(path, 0o777); err != nil {
		return "", err
	}
	return path, os.Chmod(path, 0o777) // independent of the umask
}

// StartContainerd starts the node's containerd and imports images.
func (n *Node) StartContainerd(ctx context.Context, images []string) error {
	for _, dir := range []string{n.run, filepath.Join(n.dir, "cni"), filepath.Join(n.dir, "kubelet"), filepath.Join(n.dir, "pod-logs")} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return err
		}
	}
	values := map[string]string{
		"Dir": n.dir, "Run": n.run, "Socket": n.socket(), "Plugins": cniPlugins, "Bridge": podBridge(n.number), "PodCIDR": podCIDR(n.number),
	}
	config := filepath.Join(n.dir, "containerd.toml")
	if err := errors.Join(
		render("containerd.toml", config, values),
		render("cni.conflist", filepath.Join(n.dir, "cni", "10-stoker.conflist"), values),
	); err != nil {
		return err
	}
	containerd, err := exec.LookPath("containerd")
	if err != nil {
		return err
	}
	if err := n.programs.Start(process.Program{Name: n.Containerd(), Path: containerd, Args: []string{"-c", config}}); err != nil {
		return err
	}
	if err := n.containerdReady(ctx); err != nil {
		return err
	}
	for _, image := range images {
		if err := n.Import(ctx, image); err != nil {
			return err
		}
	}
	return nil
}

// startTimeout is the timeout for the start of a program of the node.
const startTimeout = time.Minute

func (n *Node) containerdReady(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	return n.programs.Wait(ctx, n.Containerd(), func(ctx context.Context) error { return n.ctr(ctx, "version") }, n.Containerd())
}

// Import imports an image from an archive.
func (n *Node) Import(ctx context.Context, archive string) error {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	return n.ctr(ctx, "-n", "k8s.io", "images", "import", archive)
}

func (n *Node) ctr(ctx context.Context, args ...string) error {
	return run(ctx, "ctr", append([]string{"-a", n.socket()}, args...)...)
}

// devicePluginSocket is a socket that each kubelet creates; its path cannot be configured.
const devicePluginSocket = "/var/lib/kubelet/device-plugins/kubelet.sock"

// StartKubelet starts the node's kubelet, which registers the node with the API server, and waits until other kubelets
// can start.
func (n *Node) StartKubelet(ctx context.Context, plane *control.Plane, bin string) error {
	return n.kubeletReady(ctx, func() error { return n.startKubelet(plane, bin) })
}

// kubeletReady starts a kubelet by start and waits until it has created its socket. Until then the kubelet exits
// if its containerd does not answer or another kubelet of the machine starts: each replaces the socket of the one before, and
// exits if another one has replaced its own meanwhile.
func (n *Node) kubeletReady(ctx context.Context, start func() error) error {
	if err := os.Remove(devicePluginSocket); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := start(); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	return n.programs.Wait(ctx, n.Kubelet()+" to listen", func(context.Context) error {
		_, err := os.Stat(devicePluginSocket)
		return err
	}, n.Kubelet())
}

// Restart restarts a program of the node that has ended, and waits until it is ready. It returns false if the program is
// not the node's.
func (n *Node) Restart(ctx context.Context, name string) (mine bool, err error) {
	start := func() error { return n.programs.Restart(name) }
	switch name {
	case n.Containerd():
		if err := start(); err != nil {
			return true, err
		}
		return true, n.containerdReady(ctx)
	case n.Kubelet():
		return true, n.kubeletReady(ctx, start)
	}
	return false, nil
}

func (n *Node) startKubelet(plane *control.Plane, bin string) error {
	name := Name(n.number)
	subject := pki.Subject{Name: "system:node:" + name, Groups: []string{"system:nodes"}}
	kubeconfig, err := plane.WriteKubeconfig("kubelet-"+name, subject)
	if err != nil {
		return err
	}
	config := filepath.Join(n.dir, "kubelet.yaml")
	if err := errors.Join(
		plane.WriteServerCertificate("kubelet-server-"+name, subject, name, address(n.number)),
		// No DNS server outside the cluster.
		os.WriteFile(filepath.Join(n.dir, "resolv.conf"), nil, 0o644),
		render("kubelet.yaml", config, map[string]string{
			"Dir": n.dir, "Socket": n.socket(), "Address": address(n.number), "PKI": plane.PKI(), "Name": name,
			"CgroupRoot": cgroupRoot(n.number), "DNS": control.ServiceDNS,
		}),
	); err != nil {
		return err
	}
	return n.programs.Start(process.Program{
		Name: n.Kubelet(), Path: filepath.Join(bin, "kubelet"),
		Args: []string{
			"--config=" + config, "--kubeconfig=" + kubeconfig, "--root-dir=" + filepath.Join(n.dir, "kubelet"),
			"--cert-dir=" + plane.PKI(), "--hostname-override=" + name, "--node-ip=" + address(n.number), "--v=1",
		},
	})
}

// StartProxy starts the machine's kube-proxy, which serves all nodes.
func StartProxy(plane *control.Plane, programs *process.Group, bin, dir string) error {
	if _, err := plane.WriteKubeconfig("kube-proxy", pki.Subject{Name: "system:kube-proxy"}); err != nil {
		return err
	}
	config := filepath.Join(dir, "kube-proxy.yaml")
	if err := render("kube-proxy.yaml", config, map[string]string{"PKI": plane.PKI(), "Address": Address}); err != nil {
		return err
	}
	return programs.Start(process.Program{
		Name: "kube-proxy", Path: filepath.Join(bin, "kube-proxy"),
		Args: []string{"--config=" + config, "--hostname-override=" + Name(1), "--v=1"},
	})
}

// WriteDNS writes the manifest of the cluster's DNS.
func WriteDNS(path string) error { return render("coredns.yaml", path, nil) }

func render(name, to string, values map[string]string) error {
	t, err := template.New(name).Option("missingkey=error").ParseFS(files, "files/"+name)
	if err != nil {
		return err
	}
	var out bytes.Buffer
	if err := t.Execute(&out, values); err != nil {
		return err
	}
	return os.WriteFile(to, out.Bytes(), 0o644)
}
