//go:build linux

package node

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// Names and addresses on this machine that belong to the cluster.
const (
	Address = "10.250.0.1" // node 1 and the API server; pods reach servers on this machine at it
	bridge  = "stoker0"
	table   = "stoker_local"
)

func address(node int) string    { return fmt.Sprintf("10.250.0.%d", node) }
func podCIDR(node int) string    { return fmt.Sprintf("10.244.%d.0/24", node-1) }
func podBridge(node int) string  { return fmt.Sprintf("stokercni%d", node-1) }
func cgroupRoot(node int) string { return fmt.Sprintf("stoker-n%d", node) }

// Name returns the name of a node, counted from 1.
func Name(node int) string { return fmt.Sprintf("node%d", node) }

// MaxNodes is the maximum number of nodes of a cluster.
const MaxNodes = 3

// Check returns an error if a cluster cannot have that many nodes.
func Check(nodes int) error {
	if nodes < 1 || nodes > MaxNodes {
		return fmt.Errorf("%d nodes: want 1 to %d", nodes, MaxNodes)
	}
	return nil
}

// Machine sets up this machine's network and cgroups for a cluster, and restores them. File has the original state while
// a cluster exists, so that another process can call Restore.
type Machine struct{ File string }

// saved is the original state.
type saved struct {
	Settings map[string]string // by file below /proc/sys
	Made     []string          // directories that save created; Restore removes them, and fails if one is not empty
}

// settings are files below /proc/sys that Prepare, the kubelet, kube-proxy and the network plugins change.
var settings = []string{
	"vm/overcommit_memory", "vm/panic_on_oom", "kernel/panic", "kernel/panic_on_oops", "kernel/keys/root_maxkeys",
	"kernel/keys/root_maxbytes", "fs/inotify/max_user_instances", "net/ipv4/conf/all/route_localnet",
	"net/netfilter/nf_conntrack_max", "net/bridge/bridge-nf-call-iptables", "net/bridge/bridge-nf-call-ip6tables",
	"net/ipv4/ip_forward", "net/ipv4/conf/default/forwarding", "net/ipv4/conf/all/forwarding",
}

// Covered returns the machine's directories that node programs use. The cluster mounts an empty directory over each,
// because the content must not persist.
func Covered() []string { return slices.Clone(coveredDirs) }

var coveredDirs = []string{"/run/netns", "/run/containerd", "/var/lib/cni", "/var/lib/kubelet", "/var/log"}

// Prepare sets up the network and the cgroups for a number of nodes. The caller must have called Restore before, because
// Prepare overwrites File.
func (m Machine) Prepare(ctx context.Context, nodes int) error {
	if err := m.save(); err != nil {
		return err
	}
	if err := ip(ctx, "link", "add", bridge, "type", "bridge"); err != nil {
		return err
	}
	for n := 1; n <= nodes; n++ {
		if err := ip(ctx, "addr", "add", address(n)+"/24", "dev", bridge); err != nil {
			return err
		}
		if err := makeCgroup(cgroupRoot(n)); err != nil {
			return err
		}
	}
	if err := ip(ctx, "link", "set", bridge, "up"); err != nil {
		return err
	}
	const filtered = "net/bridge/bridge-nf-call-iptables"
	if _, err := os.Stat(filepath.Join("/proc/sys", filtered)); err != nil {
		if err := run(ctx, "modprobe", "br_netfilter"); err != nil {
			return fmt.Errorf("the kernel has no br_netfilter, without which a Service does not reach pods of the same bridge: %w", err)
		}
	}
	for name, value := range map[string]string{
		"net/ipv4/conf/" + bridge + "/forwarding": "1",
		"net/ipv4/ip_forward":                     "1",
		"fs/inotify/max_user_instances":           "8192", // each kubelet and containerd uses many
		filtered:                                  "1",
	} {
		if err := os.WriteFile(filepath.Join("/proc/sys", name), []byte(value), 0); err != nil {
			return err
		}
	}
	if err := deleteTable(ctx, "inet "+table); err != nil {
		return err
	}
	// Allow traffic between pods and to this machine; forward nothing to or from elsewhere.
	return runWithInput(ctx, fmt.Sprintf(`
table inet %[1]s {
  chain forward {
    type filter hook forward priority -10; policy accept;
    iifname "stokercni*" oifname "stokercni*" accept
    iifname "stokercni*" drop
    oifname "stokercni*" drop
  }
}
`, table), "nft", "-f", "-")
}

func ip(ctx context.Context, args ...string) error { return run(ctx, "ip", args...) }

// deleteTable deletes a table of nftables. It creates the table first, because deleting a missing one is an error.
func deleteTable(ctx context.Context, name string) error {
	return runWithInput(ctx, fmt.Sprintf("table %[1]s { }\ndelete table %[1]s\n", name), "nft", "-f", "-")
}

// save records the original state before anything is changed.
func (m Machine) save() error {
	s := saved{Settings: map[string]string{}}
	for _, name := range settings {
		if value, err := os.ReadFile(filepath.Join("/proc/sys", name)); err == nil {
			s.Settings[name] = strings.TrimSpace(string(value))
		}
	}
	for _, dir := range coveredDirs {
		if _, err := os.Stat(dir); errors.Is(err, fs.ErrNotExist) {
			s.Made = append(s.Made, dir)
		}
	}
	if err := m.write(s); err != nil {
		return err
	}
	for _, dir := range s.Made {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return err
		}
	}
	return nil
}

// write writes File as a whole: without it, the original state is lost.
func (m Machine) write(s saved) error {
	raw, err := json.Marshal(s)
	if err != nil {
		return err
	}
	temp := m.File + ".new"
	if err := os.WriteFile(temp, raw, 0o600); err != nil {
		return err
	}
	return os.Rename(temp, m.File)
}

// read reads File. A file that a crash of the machine has cut short has no state to restore: the settings do not outlive a boot.
func (m Machine) read() (saved, error) {
	raw, err := os.ReadFile(m.File)
	if err != nil {
		return saved{}, err
	}
	var s saved
	if !json.Valid(raw) {
		return s, nil
	}
	err = json.Unmarshal(raw, &s)
	return s, err
}

// Restore undoes Prepare and the changes that the nodes made, after all their processes have ended. It does nothing
// without File. It removes File when everything is restored, and returns an error otherwise.
func (m Machine) Restore(ctx context.Context) error {
	s, err := m.read()
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	errs := []error{err}
	links, err := clusterBridges()
	errs = append(errs, err)
	for _, link := range links {
		errs = append(errs, ip(ctx, "link", "del", link))
	}
	for _, name := range []string{"ip kube-proxy", "ip6 kube-proxy", "inet " + table} {
		errs = append(errs, deleteTable(ctx, name))
	}
	errs = append(errs, removeCgroups(ctx))
	for name, value := range s.Settings {
		path := filepath.Join("/proc/sys", name)
		if now, err := os.ReadFile(path); err == nil && strings.TrimSpace(string(now)) != value {
			errs = append(errs, os.WriteFile(path, []byte(value), 0))
		}
	}
	for _, dir := range s.Made {
		if err := os.Remove(dir); err != nil && !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, err)
		}
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	return os.Remove(m.File)
}

// clusterBridges lists the existing bridges of the cluster.
func clusterBridges() ([]string, error) {
	entries, err := os.ReadDir("/sys/class/net")
	if err != nil {
		return nil, err
	}
	var own []string
	for _, e := range entries {
		if e.Name() == bridge || strings.HasPrefix(e.Name(), "stokercni") {
			own = append(own, e.Name())
		}
	}
	return own, nil
}
