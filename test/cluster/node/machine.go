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
	"time"
)

// Addresses of the cluster. They are valid only on this machine.
const (
	Address = "10.250.0.1" // of node 1 and of the API server; for a pod, the machine itself
	bridge  = "stoker0"
	table   = "stoker_local"
)

func address(node int) string    { return fmt.Sprintf("10.250.0.%d", node) }
func podCIDR(node int) string    { return fmt.Sprintf("10.244.%d.0/24", node-1) }
func podBridge(node int) string  { return fmt.Sprintf("stokercni%d", node-1) }
func cgroupRoot(node int) string { return fmt.Sprintf("stoker-n%d", node) }

// Name returns the name of a node, counted from 1.
func Name(node int) string { return fmt.Sprintf("node%d", node) }

// Most is the maximum number of nodes of a cluster.
const Most = 3

// Check returns an error if a cluster cannot have that many nodes.
func Check(nodes int) error {
	if nodes < 1 || nodes > Most {
		return fmt.Errorf("%d nodes: want 1 to %d", nodes, Most)
	}
	return nil
}

// Machine is the state that a cluster changes on this machine outside its own processes and mounts. File has the
// original state, so that another process can call Restore.
type Machine struct{ File string }

// saved is the original state.
type saved struct {
	Settings map[string]string // files below /proc/sys
	Made     []string          // directories to remove if empty
}

// settings are changed by kubelet, kube-proxy and the network plugins.
var settings = []string{
	"vm/overcommit_memory", "vm/panic_on_oom", "kernel/panic", "kernel/panic_on_oops", "kernel/keys/root_maxkeys",
	"kernel/keys/root_maxbytes", "fs/inotify/max_user_instances", "net/ipv4/conf/all/route_localnet",
	"net/netfilter/nf_conntrack_max", "net/bridge/bridge-nf-call-iptables", "net/bridge/bridge-nf-call-ip6tables",
	"net/ipv4/ip_forward", "net/ipv4/conf/default/forwarding", "net/ipv4/conf/all/forwarding",
}

// Covered returns the machine's directories that node programs require. The cluster covers them with empty ones,
// because their content must not persist.
func Covered() []string { return slices.Clone(mounted) }

var mounted = []string{"/run/netns", "/run/containerd", "/var/lib/cni", "/var/lib/kubelet", "/var/log"}

// Prepare sets up the network and the cgroups for a number of nodes.
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
		if err := quiet(ctx, "modprobe", "br_netfilter"); err != nil {
			return fmt.Errorf("the kernel has no br_netfilter, without which a Service does not reach pods of the same bridge: %w", err)
		}
	}
	for name, value := range map[string]string{
		"net/ipv4/conf/" + bridge + "/forwarding": "1",
		"net/ipv4/ip_forward":                     "1",
		"fs/inotify/max_user_instances":           "8192",
		filtered:                                  "1",
	} {
		if err := os.WriteFile(filepath.Join("/proc/sys", name), []byte(value), 0); err != nil {
			return err
		}
	}
	// Allow traffic between pods and to this machine; forward nothing to or from elsewhere.
	return feed(ctx, fmt.Sprintf(`
table inet %[1]s { }
delete table inet %[1]s
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

func ip(ctx context.Context, args ...string) error { return quiet(ctx, "ip", args...) }

// save records the original state before anything is changed.
func (m Machine) save() error {
	s := saved{Settings: map[string]string{}}
	for _, name := range settings {
		if value, err := os.ReadFile(filepath.Join("/proc/sys", name)); err == nil {
			s.Settings[name] = strings.TrimSpace(string(value))
		}
	}
	for _, dir := range mounted {
		if _, err := os.Stat(dir); errors.Is(err, fs.ErrNotExist) {
			s.Made = append(s.Made, dir)
		}
	}
	raw, err := json.Marshal(s)
	if err != nil {
		return err
	}
	if err := os.WriteFile(m.File, raw, 0o600); err != nil {
		return err
	}
	for _, dir := range s.Made {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return err
		}
	}
	return nil
}

// Restore undoes Prepare, and the changes that the nodes made, after all their processes have ended. It does nothing if
// there is nothing to undo, and returns an error if something remains.
func (m Machine) Restore(ctx context.Context) error {
	var errs []error
	links, err := ownLinks()
	errs = append(errs, err)
	for _, link := range links {
		errs = append(errs, ip(ctx, "link", "del", link))
	}
	for _, family := range []string{"ip kube-proxy", "ip6 kube-proxy", "inet " + table} {
		// The first line creates the table in case it does not exist.
		errs = append(errs, feed(ctx, fmt.Sprintf("table %[1]s { }\ndelete table %[1]s\n", family), "nft", "-f", "-"))
	}
	errs = append(errs, removeCgroups(ctx))
	raw, err := os.ReadFile(m.File)
	if errors.Is(err, fs.ErrNotExist) {
		return errors.Join(errs...)
	}
	var s saved
	if err == nil {
		err = json.Unmarshal(raw, &s)
	}
	errs = append(errs, err)
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

// ownLinks lists the existing bridges of the cluster.
func ownLinks() ([]string, error) {
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

// pause waits a moment for the kernel.
func pause(ctx context.Context) error {
	timer := time.NewTimer(50 * time.Millisecond)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-timer.C:
		return nil
	}
}
