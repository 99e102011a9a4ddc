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
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/clientcmd/api"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/kube"
	"stoker.io/stoker/internal/status/statustest"
	"stoker.io/stoker/test/cluster/kubetest"
	"stoker.io/stoker/test/program/output"
)

// Goals of stoker ui and stoker notify.
const (
	pageTime   = 200 * time.Millisecond // to load a page of one cluster
	sitesTime  = 300 * time.Millisecond // to load a page of three clusters; and the first page, from the start of the command
	pageBytes  = 200 << 10
	pageMemory = 64 << 20 // anonymous memory of stoker ui
	notifyRest = 0        // requests of the notifier, besides its Lease, while nothing happens
	leaseRate  = 31       // requests of the notifier for its Lease, in a minute
)

// observe measures the pages of a large fleet, those of as many gateways in three clusters, and what the notifier asks the API server while
// nothing happens.
func observe(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	f := flag.NewFlagSet("observe", flag.ContinueOnError)
	f.SetOutput(stderr)
	gateways := f.Int("gateways", 1000, "gateways, 75 to 2000")
	rounds := f.Int("n", 20, "how often stoker ui is started, and then loads each page, 1 to 100")
	idle := f.Duration("idle", time.Minute, "how long nothing happens")
	if err := f.Parse(args); err != nil {
		return err
	}
	if *gateways < 75 || *gateways > 2000 || *rounds < 1 || *rounds > 100 || *idle < time.Second {
		return errors.New("-gateways: want 75 to 2000; -n: want 1 to 100; -idle: want a second at least")
	}
	return withControl(ctx, stderr, func(ctx context.Context, c control) error {
		memory := int64(0)
		load := func(kubeconfig string, pages []page, args ...string) error {
			c.progress.Print("loading ", pages[0].name)
			for range *rounds {
				m, err := loadPages(ctx, c.binary, kubeconfig, *rounds, pages, args...)
				if err != nil {
					return err
				}
				memory = max(memory, m)
			}
			return nil
		}
		front, fleet, err := c.frontOfFleet(ctx, "one", *gateways)
		if err != nil {
			return err
		}
		defer front.Close()
		pages := []page{{name: "the first page", limit: sitesTime}, {name: "all fleets", path: "/", limit: pageTime},
			{name: "the fleet", path: fleet, limit: pageTime}, {name: "the fleet, the last page by name", path: fleet + "?sort=name&page=99", limit: pageTime}}
		if err := load(front.kubeconfig, pages); err != nil {
			return err
		}
		config := api.NewConfig()
		for i, name := range []string{"east", "north", "south"} {
			site, path, err := c.frontOfFleet(ctx, name, (*gateways+i)/3)
			if err != nil {
				return err
			}
			defer site.Close()
			config.Clusters[name] = &api.Cluster{Server: site.URL}
			config.Contexts[name] = &api.Context{Cluster: name, Namespace: strings.Split(path, "/")[2]}
			fleet = "/sites/" + name + path
		}
		kubeconfig := filepath.Join(c.work, "three")
		if err := clientcmd.WriteToFile(*config, kubeconfig); err != nil {
			return err
		}
		three := []page{{name: "three clusters, the first page", limit: sitesTime}, {name: "three clusters, all fleets", path: "/", limit: sitesTime},
			{name: "three clusters, a fleet", path: fleet, limit: sitesTime}}
		if err := load(kubeconfig, three, "--contexts", "all"); err != nil {
			return err
		}
		c.progress.Printf("watching the notifier for %s", *idle)
		own, others, err := front.notifier(ctx, c.binary, *idle)
		if err != nil {
			return err
		}
		return writeObserved(stdout, *gateways, *rounds, *idle, append(pages, three...), memory, own, others)
	})
}

// frontOfFleet writes a fleet of n gateways to a namespace of its own. It returns a proxy of the API server and the path of the fleet's page.
func (c control) frontOfFleet(ctx context.Context, name string, n int) (*counter, string, error) {
	namespace, err := largeFleet(ctx, c.config, n)
	if err != nil {
		return nil, "", err
	}
	front, err := newCounter(c.config, filepath.Join(c.work, name), namespace, func(r *http.Request) string {
		if strings.Contains(r.URL.Path, "/leases") {
			return "lease"
		}
		return "others"
	})
	return front, "/fleets/" + namespace + "/site", err
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
	if _, err = syncs.Update(ctx, gs, metav1.UpdateOptions{}, "status"); err != nil {
		return "", err
	}
	lead := v1alpha1.LeadRecord{Holder: "area-0_1", DurationSeconds: 3600, Renewed: &metav1.MicroTime{Time: time.Now()}}
	target := &v1alpha1.SyncTarget{ObjectMeta: metav1.ObjectMeta{Name: gs.Name}, Spec: v1alpha1.SyncTargetSpec{Format: v1alpha1.TargetFormat, Lead: lead}}
	_, err = kube.SyncTargets(admin.Dynamic, ns.Name).Create(ctx, target, metav1.CreateOptions{})
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

// startCommand starts a command of stoker. The caller ends it with the returned function.
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
	name, path string
	limit      time.Duration
	bytes      int
	loads      results
}

func (p *page) add(took time.Duration, bytes int) {
	if p.loads == nil {
		p.loads = results{}
	}
	p.bytes = bytes
	p.loads.add("", "page", "ui", sample{wall: took})
}

// loadPages starts stoker ui and loads pages. The first one is that of all fleets, as soon as it shows the gateways of all clusters. It returns
// the command's anonymous memory after that.
func loadPages(ctx context.Context, binary, kubeconfig string, rounds int, pages []page, args ...string) (memory int64, err error) {
	started := time.Now()
	cmd, said, end, err := startCommand(ctx, binary, kubeconfig, append([]string{"ui"}, args...)...)
	if err != nil {
		return 0, err
	}
	defer end()
	address := ""
	for deadline := time.Now().Add(time.Minute); address == "" && time.Now().Before(deadline) && ctx.Err() == nil; time.Sleep(time.Millisecond) {
		for line := range strings.Lines(said.String()) {
			if strings.HasPrefix(line, "http://") && strings.HasSuffix(line, "\n") {
				address = strings.TrimSpace(line)
			}
		}
	}
	u, err := url.Parse(address)
	if err != nil || address == "" {
		return 0, fmt.Errorf("stoker ui prints no address: %s", said.Tail())
	}
	jar, err := cookiejar.New(nil)
	if err != nil {
		return 0, err
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
		return 0, err
	}
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
		_, body, err := load("/")
		if err == nil && bytes.Contains(body, []byte("gateways are behind</h1>")) {
			pages[0].add(time.Since(started), len(body))
			break
		}
		if ctx.Err() != nil || time.Now().After(deadline) {
			return 0, errors.Join(errors.New("stoker ui does not show all gateways"), err, ctx.Err())
		}
	}
	for i := range pages[1:] {
		for range rounds {
			took, body, err := load(pages[i+1].path)
			if err != nil {
				return 0, err
			}
			pages[i+1].add(took, len(body))
		}
	}
	return anonymous(cmd.Process.Pid, 0), nil
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
	fmt.Fprintf(&b, "# Pages and notifications\n\n%s/%s, %d cores, %s; %d gateways, in one cluster and in three; %d starts, each with as many loads of each other page.\n\n",
		runtime.GOOS, runtime.GOARCH, runtime.NumCPU(), runtime.Version(), gateways, rounds)
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
		found = append(found, goal{fmt.Sprintf("%s: at most %d ms, and 200 KiB", p.name, p.limit.Milliseconds()), fmt.Sprintf("%s ms, %d KiB", ms(took), p.bytes>>10), verdict(took <= p.limit && p.bytes <= pageBytes)})
	}
	if err := t.Flush(); err != nil {
		return err
	}
	limit := int(float64(leaseRate)*idle.Minutes()) + 1
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
