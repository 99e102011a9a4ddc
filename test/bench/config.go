package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/backoff"
	"stoker.io/stoker/internal/kube"
	"stoker.io/stoker/test/cluster/kubetest"
	"stoker.io/stoker/test/gitserver"
	"stoker.io/stoker/test/program/output"
)

// Goals of ConfigSyncs.
const (
	changeTime  = 2 * time.Second
	changeBytes = 64 << 10
	configIdle  = 5 // requests of a run that changes nothing, beside one GET for each object
)

// configFigures are the times of runs, what the program asked of the API server and of git, and its memory.
type configFigures struct {
	first   time.Duration
	changes results // of one object; pack is what git sent
	// While nothing happens.
	runs, gets, writes, others int
	idleBytes                  int64
	memory                     int64
}

// config measures stoker config run with one ConfigSync of many objects in a large repository.
func config(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	f := flag.NewFlagSet("config", flag.ContinueOnError)
	f.SetOutput(stderr)
	objects := f.Int("objects", 500, "objects of the ConfigSync, 10 to 2000")
	files := f.Int("files", 10_000, "other files of the repository, 0 to 100000")
	rounds := f.Int("n", 5, "how often an object changes, 1 to 100")
	runs := f.Int("runs", 5, "how many runs change nothing, 1 to 100")
	if err := f.Parse(args); err != nil {
		return err
	}
	if *objects < 10 || *objects > 2000 || *files < 0 || *files > 100_000 || *rounds < 1 || *rounds > 100 || *runs < 1 || *runs > 100 {
		return errors.New("-objects: want 10 to 2000; -files: want 0 to 100000; -n and -runs: want 1 to 100")
	}
	return withControl(ctx, stderr, func(ctx context.Context, c control) (err error) {
		admin, err := kube.ConnectTo(c.config, "bench")
		if err != nil {
			return err
		}
		p := &plant{admin: admin}
		if err := p.prepare(ctx, filepath.Join(c.work, "git"), *objects, *files); err != nil {
			return err
		}
		defer func() { err = errors.Join(err, p.git.Close()) }()
		if p.api, err = newCounter(c.config, filepath.Join(c.work, "kubeconfig"), p.namespace, p.kind); err != nil {
			return err
		}
		defer p.api.Close()
		direct := filepath.Join(c.work, "direct")
		if err := kubetest.WriteKubeconfig(c.config, direct, p.namespace); err != nil {
			return err
		}
		m := configFigures{changes: results{}}
		c.progress.Print("changing one object")
		if err := p.while(ctx, c.binary, direct, func() error { return p.changes(ctx, &m, *rounds) }); err != nil {
			return err
		}
		c.progress.Printf("nothing happens for %d runs", *runs)
		if err := p.while(ctx, c.binary, p.api.kubeconfig, func() error { return p.idle(ctx, &m, *runs) }); err != nil {
			return err
		}
		return m.write(stdout, *objects, *files)
	})
}

// plant is a namespace with a ConfigSync, and its repository.
type plant struct {
	admin     kube.Clients
	api       *counter
	git       *gitserver.Server
	repo      *gitserver.Repo
	namespace string
	first     string // commit
	pid       int    // of the program
}

// kind classifies a request to the API server.
func (p *plant) kind(r *http.Request) string {
	switch object := strings.Contains(r.URL.Path, "/configmaps/"); {
	case r.URL.Query().Get("watch") != "" || strings.Contains(r.URL.Path, "/leases"):
		return "watch"
	case object && r.Method == http.MethodGet:
		return "get"
	case strings.HasSuffix(r.URL.Path, "/selfsubjectreviews") || r.Method == http.MethodGet:
		return "other"
	}
	return "write"
}

func configMap(i int, value string) string {
	return fmt.Sprintf("apiVersion: v1\nkind: ConfigMap\nmetadata: {name: env-%d}\ndata: {value: %q}\n", i, value)
}

// prepare creates the repository, and a namespace whose account may write ConfigMaps.
func (p *plant) prepare(ctx context.Context, root string, objects, files int) (err error) {
	if err := os.MkdirAll(root, 0o755); err != nil {
		return err
	}
	if p.git, err = gitserver.Start(root, gitserver.Options{}); err != nil {
		return err
	}
	err = gitserver.Try(func(t gitserver.TB) {
		p.repo = gitserver.NewRepo(t, filepath.Join(root, "plant.git"))
		var edits []gitserver.Edit
		for i := range files {
			edits = append(edits, gitserver.Write(fmt.Sprintf("projects/p%d/views/%d/view.json", i%50, i), strings.Repeat(fmt.Sprint(i, " "), 200)))
		}
		for i := range objects {
			edits = append(edits, gitserver.Write(fmt.Sprintf("kubernetes/%d.yaml", i), configMap(i, "first")))
		}
		p.first = p.repo.Commit("first", edits...)
	})
	if err != nil {
		return err
	}
	core := p.admin.Core
	ns, err := core.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "config-"}}, metav1.CreateOptions{})
	if err != nil {
		return err
	}
	p.namespace = ns.Name
	account := metav1.ObjectMeta{Name: v1alpha1.DefaultConfigAccount}
	if _, err := core.CoreV1().ServiceAccounts(ns.Name).Create(ctx, &corev1.ServiceAccount{ObjectMeta: account}, metav1.CreateOptions{}); err != nil {
		return err
	}
	role := &rbacv1.Role{ObjectMeta: account, Rules: []rbacv1.PolicyRule{{APIGroups: []string{""}, Resources: []string{"configmaps"}, Verbs: []string{"get", "create", "patch", "delete"}}}}
	if _, err := core.RbacV1().Roles(ns.Name).Create(ctx, role, metav1.CreateOptions{}); err != nil {
		return err
	}
	_, err = core.RbacV1().RoleBindings(ns.Name).Create(ctx, &rbacv1.RoleBinding{ObjectMeta: account,
		RoleRef:  rbacv1.RoleRef{APIGroup: "rbac.authorization.k8s.io", Kind: "Role", Name: account.Name},
		Subjects: []rbacv1.Subject{{Kind: "ServiceAccount", Name: account.Name, Namespace: ns.Name}}}, metav1.CreateOptions{})
	return err
}

const (
	applied = 2 * time.Minute // bounds the wait for a run
	// The program runs every five seconds while nothing happens, and otherwise only when it is requested.
	often, seldom = "5s", "24h"
)

// while runs the program with a kubeconfig while measure works.
func (p *plant) while(ctx context.Context, binary, kubeconfig string, measure func() error) error {
	cmd, said, end, err := startCommand(ctx, binary, kubeconfig, "config", "run", "--watch-namespace", p.namespace, "--health-addr", "127.0.0.1:0", "--metrics-addr", "127.0.0.1:0")
	if err != nil {
		return err
	}
	defer end()
	p.pid = cmd.Process.Pid
	if err := leads(ctx, said, "this replica applies"); err != nil {
		return err
	}
	if err := measure(); err != nil {
		return fmt.Errorf("%w: %s", err, said.Tail())
	}
	return nil
}

// changes creates the ConfigSync, and changes one object again and again. The program connects to the API server directly, and not through
// the counter.
func (p *plant) changes(ctx context.Context, m *configFigures, rounds int) error {
	cs := &v1alpha1.ConfigSync{ObjectMeta: metav1.ObjectMeta{Name: "plant"}}
	cs.Spec.Source.Git = &v1alpha1.ConfigGit{RepoURL: p.git.URL("plant.git"), Branch: "main", ConfigFiles: v1alpha1.ConfigFiles{Path: "kubernetes"}}
	cs.Spec.RefreshInterval = seldom
	began := time.Now()
	if _, err := kube.ConfigSyncs(p.admin.Dynamic, p.namespace).Create(ctx, cs, metav1.CreateOptions{}); err != nil {
		return err
	}
	commit := p.first
	var err error
	if m.first, err = p.reaches(ctx, commit, began); err != nil {
		return err
	}
	for i := range rounds {
		err := gitserver.Try(func(gitserver.TB) {
			commit = p.repo.Commit("change", gitserver.Write("kubernetes/7.yaml", configMap(7, fmt.Sprint(i))), gitserver.Write("projects/p1/views/1/view.json", fmt.Sprint(i)))
		})
		if err != nil {
			return err
		}
		p.git.Forget()
		began := time.Now()
		if err := p.patch(ctx, fmt.Sprintf(`{"metadata":{"annotations":{%q:"%d"}}}`, v1alpha1.AnnotationForceSync, i)); err != nil {
			return err
		}
		took, err := p.reaches(ctx, commit, began)
		if err != nil {
			return err
		}
		m.changes.add("", "change", "", sample{wall: took, pack: p.git.Stats().Out})
	}
	return nil
}

// idle counts requests while nothing happens.
func (p *plant) idle(ctx context.Context, m *configFigures, runs int) error {
	if err := p.patch(ctx, fmt.Sprintf(`{"spec":{"refreshInterval":%q}}`, often)); err != nil {
		return err
	}
	if err := p.settled(ctx, 3); err != nil { // the first of them are about the start and the patch
		return err
	}
	for _, kind := range []string{"get", "write", "other"} {
		p.api.takeCount(kind)
	}
	before := p.git.Stats()
	if err := p.settled(ctx, runs); err != nil {
		return err
	}
	m.runs, m.gets, m.writes, m.others = runs, p.api.takeCount("get"), p.api.takeCount("write"), p.api.takeCount("other")
	m.idleBytes = (p.git.Stats().Out - before.Out) / int64(runs)
	m.memory = anonymous(p.pid, 0)
	return nil
}

func (p *plant) patch(ctx context.Context, text string) error {
	_, err := kube.ConfigSyncs(p.admin.Dynamic, p.namespace).Patch(ctx, "plant", types.MergePatchType, []byte(text), metav1.PatchOptions{})
	return err
}

// reaches waits until the ConfigSync is Ready at a commit, and returns the time since began.
func (p *plant) reaches(ctx context.Context, commit string, began time.Time) (time.Duration, error) {
	for {
		cs, err := kube.ConfigSyncs(p.admin.Dynamic, p.namespace).Get(ctx, "plant")
		if err != nil {
			return 0, err
		}
		if cs.Status.SourceRevision == commit && meta.IsStatusConditionTrue(cs.Status.Conditions, v1alpha1.ConditionReady) {
			return time.Since(began), nil
		}
		if time.Since(began) > applied {
			return 0, fmt.Errorf("the ConfigSync does not reach %s", commit)
		}
		if !backoff.Wait(ctx, 50*time.Millisecond) {
			return 0, ctx.Err()
		}
	}
}

// settled waits until a number of new runs have begun, and the last of them has ended. Each run asks git for its refs once.
func (p *plant) settled(ctx context.Context, runs int) error {
	last := p.git.Stats().Advertisements
	for wanted, deadline := last+runs, time.Now().Add(applied); last < wanted; last = p.git.Stats().Advertisements {
		if time.Now().After(deadline) {
			return errors.New("the program makes no runs")
		}
		if !backoff.Wait(ctx, 20*time.Millisecond) {
			return ctx.Err()
		}
	}
	if !backoff.Wait(ctx, changeTime) { // less than the pause between two runs
		return ctx.Err()
	}
	return nil
}

func (m configFigures) write(out io.Writer, objects, files int) error {
	var b strings.Builder
	fmt.Fprintf(&b, "# ConfigSyncs\n\n%s/%s, %d cores, %s. `stoker config run` with a ConfigSync of %d ConfigMaps, in a repository with %d other files.\n\n",
		runtime.GOOS, runtime.GOARCH, runtime.NumCPU(), runtime.Version(), objects, files)
	perRun := func(n int) string { return figure(float64(n)/float64(m.runs), 1) }
	kB := func(n int64) string { return figure(float64(n)/1000, 1) }
	k := key{"", "change", ""}
	took, _ := median(m.changes, k, wall)
	slowest, bytes := time.Duration(0), int64(0)
	for _, s := range m.changes[k] {
		slowest, bytes = max(slowest, s.wall), max(bytes, s.pack)
	}
	t := table(&b, "work", "seconds", "kB from git", "GETs of objects", "writes", "other requests")
	fmt.Fprintf(t, "| first run\t| %s\t| \t| \t| \t| \t|\n", figure(m.first.Seconds(), 1))
	fmt.Fprintf(t, "| one object changes (median of %d; slowest %s)\t| %s\t| %s\t| \t| \t| \t|\n", len(m.changes[k]), figure(slowest.Seconds(), 2), figure(took.Seconds(), 2), kB(bytes))
	fmt.Fprintf(t, "| nothing changes (each of %d)\t| \t| %s\t| %s\t| %s\t| %s\t|\n", m.runs, kB(m.idleBytes), perRun(m.gets), fmt.Sprint(m.writes), perRun(m.others))
	if err := t.Flush(); err != nil {
		return err
	}
	b.WriteString("\n## Goals\n\n")
	t = table(&b, "goal", "measured", "")
	for _, g := range []goal{
		{"one object changes: at most 2 s until it is verified", figure(took.Seconds(), 2) + " s", verdict(took <= changeTime)},
		{"one object changes: at most 64 KiB from git", kB(bytes) + " kB", verdict(bytes <= changeBytes)},
		{"nothing changes: one GET for each object", perRun(m.gets) + " GETs", verdict(m.gets == m.runs*objects)},
		{"nothing changes: no write", fmt.Sprint(m.writes), verdict(m.writes == 0)},
		{fmt.Sprintf("nothing changes: at most %d other requests in a run", configIdle), perRun(m.others), verdict(m.others <= m.runs*configIdle)},
	} {
		fmt.Fprintf(t, "| %s\t| %s\t| %s\t|\n", g.what, g.measured, g.verdict)
	}
	if err := t.Flush(); err != nil {
		return err
	}
	fmt.Fprintf(&b, "\nThe program has %s MiB of anonymous memory after that.\n", mebibytes(m.memory))
	_, err := io.WriteString(out, b.String())
	return err
}

// control is a control plane, and the program stoker that is measured beside it.
type control struct {
	work, binary string // a directory, and the program in it
	config       *rest.Config
	progress     *log.Logger
}

// withControl calls measure with a control plane of its own, for at most 20 minutes.
func withControl(ctx context.Context, stderr io.Writer, measure func(context.Context, control) error) (err error) {
	ctx, cancel := context.WithTimeout(ctx, 20*time.Minute)
	defer cancel()
	c := control{progress: log.New(stderr, "", log.Ltime)}
	if c.work, err = os.MkdirTemp("", "stoker-bench-"); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(c.work)) }()
	// A release refuses addresses on loopback that a user names, such as that of the bench's git server.
	const onLoopback = "-X stoker.io/stoker/internal/httpclient.loopback=allowed"
	c.progress.Print("building stoker, and starting a control plane")
	c.binary = filepath.Join(c.work, "stoker")
	if err := build(ctx, c.binary, "stoker.io/stoker/hooks", onLoopback); err != nil {
		return err
	}
	cluster, err := kubetest.Start(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, cluster.Close()) }()
	c.config = cluster.RESTConfig()
	return measure(ctx, c)
}

// leads waits until a program says that it leads.
func leads(ctx context.Context, said *output.Log, text string) error {
	for deadline := time.Now().Add(time.Minute); !strings.Contains(said.String(), text); time.Sleep(50 * time.Millisecond) {
		if time.Now().After(deadline) || ctx.Err() != nil {
			return fmt.Errorf("the program does not lead: %s", said.Tail())
		}
	}
	return nil
}
