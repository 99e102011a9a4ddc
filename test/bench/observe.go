package main

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/cookiejar"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/kube"
	"stoker.io/stoker/internal/status/statustest"
	"stoker.io/stoker/test/cluster/kubetest"
	"stoker.io/stoker/test/program/output"
)

// Goals of stoker ui and stoker notify.
const (
	pageTime    = 200 * time.Millisecond // a page of a fleet, on the server
	pageBytes   = 200 << 10
	pageMemory  = 64 << 20 // anonymous memory of stoker ui
	notifyRest  = 0        // requests of the notifier, besides its Lease, while nothing happens
	renewsAtRun = 31       // of the Lease, in a minute
)

// observe measures the page of a large fleet and what the notifier asks the API server while nothing happens.
func observe(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	f := flag.NewFlagSet("observe", flag.ContinueOnError)
	f.SetOutput(stderr)
	gateways := f.Int("gateways", 1000, "gateways of the fleet, 1 to 2000")
	rounds := f.Int("n", 20, "how often each page is loaded, 1 to 1000")
	idle := f.Duration("idle", time.Minute, "how long nothing happens")
	if err := f.Parse(args); err != nil {
		return err
	}
	if *gateways < 1 || *gateways > 2000 || *rounds < 1 || *rounds > 1000 || *idle < time.Second {
		return errors.New("-gateways: want 1 to 2000; -n: want 1 to 1000; -idle: want a second at least")
	}
	return withControl(ctx, stderr, func(ctx context.Context, c control) error {
		namespace, err := largeFleet(ctx, c.config, *gateways)
		if err != nil {
			return err
		}
		front, err := newCounter(c.config, filepath.Join(c.work, "kubeconfig"), namespace, func(r *http.Request) string {
			if strings.Contains(r.URL.Path, "/leases") {
				return "lease"
			}
			return "others"
		})
		if err != nil {
			return err
		}
		defer front.Close()
		c.progress.Print("loading pages")
		pages, memory, err := loadPages(ctx, c.binary, front.kubeconfig, namespace, *rounds)
		if err != nil {
			return err
		}
		c.progress.Printf("watching the notifier for %s", *idle)
		own, others, err := front.notifier(ctx, c.binary, *idle)
		if err != nil {
			return err
		}
		return writeObserved(stdout, *gateways, *rounds, *idle, pages, memory, own, others)
	})
}

// largeFleet writes a GatewaySync with n gateways, of which every 25th is behind, and returns its namespace.
func largeFleet(ctx context.Context, config *rest.Config, n int) (string, error) {
	admin, err := kube.ConnectTo(config, "bench")
	if err != nil {
		return "", err
	}
	ns, err := admin.Core.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "observe-"}}, metav1.CreateOptions{})
	if err != nil {
		return "", err
	}
	gs := &v1alpha1.GatewaySync{ObjectMeta: metav1.ObjectMeta{Name: "site"}}
	gs.Spec.Git.Repo, gs.Spec.Git.Ref = "https://git.example.com/site.git", "main"
	syncs := kube.GatewaySyncs(admin.Dynamic, ns.Name)
	if gs, err = syncs.Create(ctx, gs, metav1.CreateOptions{}); err != nil {
		return "", err
	}
	now := metav1.NewTime(time.Now().UTC().Truncate(time.Second))
	commit, old := strings.Repeat("8a9ef4f0", 5), strings.Repeat("3abea812", 5)
	st := &gs.Status
	st.ObservedGeneration, st.ConfirmedAt = gs.Generation, &now
	st.Target = &v1alpha1.TargetStatus{Ref: "main", RefShort: "main", Commit: commit, CommitShort: commit[:7]}
	for i := range n {
		g := v1alpha1.DiscoveredGateway{Name: fmt.Sprintf("area-%d", i+1), PodName: fmt.Sprintf("area-%d", i), Profile: "edge", SyncStatus: v1alpha1.GatewaySynced,
			Reason: v1alpha1.ReasonSynced, SyncedCommit: commit, SyncedRef: "main", LastSyncTime: &now, LastSyncDuration: "2.4s", FilesChanged: 12, GatewayDetails: v1alpha1.GatewayDetails{AgentVersion: "v0.1.0"}, LastScanResult: "projects: done in 1.1s"}
		if i%25 == 24 {
			g.SyncStatus, g.Reason, g.SyncedCommit = v1alpha1.GatewayHeld, v1alpha1.ReasonDesignerSessionActive, old
			g.Message = "Designer session of maria on project filling since 07:42; the sync goes on when it is closed"
		}
		st.DiscoveredGateways = append(st.DiscoveredGateways, g)
	}
	statustest.Complete(gs)
	_, err = syncs.Update(ctx, gs, metav1.UpdateOptions{}, "status")
	return ns.Name, err
}

// counter is a proxy of the API server that counts requests by kind.
type counter struct {
	*httptest.Server
	kubeconfig string
	mu         sync.Mutex
	requests   map[string]int
}

func newCounter(config *rest.Config, kubeconfig, namespace string, kind func(*http.Request) string) (*counter, error) {
	to, err := url.Parse(config.Host)
	if err != nil {
		return nil, err
	}
	transport, err := rest.TransportFor(config)
	if err != nil {
		return nil, err
	}
	c := &counter{kubeconfig: kubeconfig, requests: map[string]int{}}
	proxy := &httputil.ReverseProxy{Transport: transport, FlushInterval: -1, ErrorLog: log.New(io.Discard, "", 0), Rewrite: func(r *httputil.ProxyRequest) { r.SetURL(to) }}
	c.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		c.mu.Lock()
		c.requests[kind(r)]++
		c.mu.Unlock()
		proxy.ServeHTTP(w, r)
	}))
	return c, kubetest.WriteKubeconfig(&rest.Config{Host: c.URL}, kubeconfig, namespace)
}

// takeCount returns the number of requests of a kind since the last call, and resets it.
func (c *counter) takeCount(what string) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	n := c.requests[what]
	c.requests[what] = 0
	return n
}

// startCommand starts a command of stoker, and ends it with the function that it returns.
func startCommand(ctx context.Context, binary, kubeconfig string, args ...string) (*exec.Cmd, *output.Log, func(), error) {
	said := &output.Log{MaxBytes: outputBytes}
	c := command{env: append(os.Environ(), "KUBECONFIG="+kubeconfig), args: append([]string{binary}, args...)}
	cmd := c.prepare(ctx, said)
	if err := cmd.Start(); err != nil {
		return nil, nil, nil, err
	}
	return cmd, said, func() { _ = cmd.Cancel(); _ = cmd.Wait() }, nil
}

// page has the measurements of one page.
type page struct {
	name  string
	bytes int
	loads results
}

// loadPages loads pages of stoker ui, and returns its anonymous memory after that.
func loadPages(ctx context.Context, binary, kubeconfig, namespace string, rounds int) (list []page, memory int64, err error) {
	cmd, said, end, err := startCommand(ctx, binary, kubeconfig, "ui")
	if err != nil {
		return nil, 0, err
	}
	defer end()
	address := ""
	for deadline := time.Now().Add(time.Minute); address == "" && time.Now().Before(deadline) && ctx.Err() == nil; time.Sleep(20 * time.Millisecond) {
		for line := range strings.Lines(said.String()) {
			if strings.HasPrefix(line, "http://") && strings.HasSuffix(line, "\n") {
				address = strings.TrimSpace(line)
			}
		}
	}
	u, err := url.Parse(address)
	if err != nil || address == "" {
		return nil, 0, fmt.Errorf("stoker ui prints no address: %s", said.Tail())
	}
	jar, err := cookiejar.New(nil)
	if err != nil {
		return nil, 0, err
	}
	client := &http.Client{Jar: jar, Timeout: time.Minute}
	load := func(path string) (time.Duration, []byte, error) {
		began := time.Now()
		res, err := client.Get((&url.URL{Scheme: u.Scheme, Host: u.Host}).String() + path)
		if err != nil {
			return 0, nil, err
		}
		body, err := io.ReadAll(res.Body)
		took := time.Since(began)
		if res.StatusCode != http.StatusOK {
			err = errors.Join(err, fmt.Errorf("%s answers %s", path, res.Status))
		}
		return took, body, errors.Join(err, res.Body.Close())
	}
	if _, _, err := load(u.RequestURI()); err != nil { // the token becomes a cookie
		return nil, 0, err
	}
	fleet := "/fleets/" + namespace + "/site"
	for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline) && ctx.Err() == nil; time.Sleep(50 * time.Millisecond) {
		if _, body, err := load(fleet); err == nil && bytes.Contains(body, []byte("area-25<")) {
			break
		}
	}
	for _, one := range []struct{ name, path string }{{"all fleets", "/"}, {"the fleet", fleet}, {"the fleet, the last page by name", fleet + "?sort=name&page=99"}} {
		p := page{name: one.name, loads: results{}}
		for range rounds {
			took, body, err := load(one.path)
			if err != nil {
				return nil, 0, err
			}
			p.bytes = len(body)
			p.loads.add("", "page", "ui", sample{wall: took})
		}
		list = append(list, p)
	}
	return list, anonymous(cmd.Process.Pid, 0), nil
}

// notifier returns how many requests stoker notify makes while nothing happens: for its Lease, and others.
func (c *counter) notifier(ctx context.Context, binary string, idle time.Duration) (own, others int, err error) {
	_, said, end, err := startCommand(ctx, binary, c.kubeconfig, "notify", "--health-addr", "127.0.0.1:0", "--metrics-addr", "127.0.0.1:0")
	if err != nil {
		return 0, 0, err
	}
	defer end()
	if err := leads(ctx, said, "this replica sends"); err != nil {
		return 0, 0, err
	}
	select { // the first comparison writes its record
	case <-ctx.Done():
		return 0, 0, ctx.Err()
	case <-time.After(5 * time.Second):
	}
	c.takeCount("lease")
	c.takeCount("others")
	select {
	case <-ctx.Done():
		return 0, 0, ctx.Err()
	case <-time.After(idle):
	}
	return c.takeCount("lease"), c.takeCount("others"), nil
}

func writeObserved(out io.Writer, gateways, rounds int, idle time.Duration, pages []page, memory int64, own, others int) error {
	var b strings.Builder
	fmt.Fprintf(&b, "# Pages and notifications\n\n%s/%s, %d cores, %s; a fleet of %d gateways, %d loads of each page.\n\n", runtime.GOOS, runtime.GOARCH, runtime.NumCPU(), runtime.Version(), gateways, rounds)
	t := table(&b, "page", "median, ms", "slowest, ms", "kB")
	var found []goal
	for _, p := range pages {
		k := key{"", "page", "ui"}
		took, _ := median(p.loads, k, wall)
		slowest := time.Duration(0)
		for _, s := range p.loads[k] {
			slowest = max(slowest, s.wall)
		}
		ms := func(d time.Duration) string { return figure(float64(d.Microseconds())/1000, 1) }
		fmt.Fprintf(t, "| %s\t| %s\t| %s\t| %s\t|\n", p.name, ms(took), ms(slowest), figure(float64(p.bytes)/1000, 1))
		found = append(found, goal{p.name + ": at most 200 ms, and 200 KiB", fmt.Sprintf("%s ms, %d KiB", ms(took), p.bytes>>10), verdict(took <= pageTime && p.bytes <= pageBytes)})
	}
	if err := t.Flush(); err != nil {
		return err
	}
	limit := int(float64(renewsAtRun)*idle.Minutes()) + 1
	found = append(found,
		goal{"stoker ui: at most 64 MiB of anonymous memory", mebibytes(memory) + " MiB", verdict(memory > 0 && memory <= pageMemory)},
		goal{"stoker notify, nothing happens: no request besides those of its Lease", fmt.Sprintf("%d in %.0f s", others, idle.Seconds()), verdict(others <= notifyRest)},
		goal{fmt.Sprintf("stoker notify, nothing happens: at most %d requests for its Lease", limit), fmt.Sprintf("%d in %.0f s", own, idle.Seconds()), verdict(own <= limit)})
	b.WriteString("\n## Goals\n\n")
	t = table(&b, "goal", "measured", "")
	for _, g := range found {
		fmt.Fprintf(t, "| %s\t| %s\t| %s\t|\n", g.what, g.measured, g.verdict)
	}
	if err := t.Flush(); err != nil {
		return err
	}
	_, err := io.WriteString(out, b.String())
	return err
}
