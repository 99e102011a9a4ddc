//go:build linux

// Package argocd runs the real Argo CD against a cluster: its controller, repository server, API server and notifications, and the redis
// that they need. They are processes on this machine. The API needs no login and listens only on loopback.
package argocd

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"

	"stoker.io/stoker/test/cluster/node"
	"stoker.io/stoker/test/cluster/process"
)

// Namespace is the namespace of Argo CD's objects.
const Namespace = "argocd"

// Options configure Argo CD.
type Options struct {
	Programs string // directory of the built programs, from build.Cache.ArgoCD
	// RepoServer are additional arguments of the repository server.
	RepoServer []string
	// Tools are the directories of the programs that Argo CD calls: kubectl, which applies roles, kustomize and helm.
	Tools      []string
	Kubeconfig string
	// Dir holds the data and logs of the programs. A socket is created in it, so its path must be short.
	Dir      string
	Progress io.Writer // receives progress messages
	// Authorities are the CA certificates of git servers in PEM, by host.
	Authorities map[string][]byte
}

// ArgoCD is a running Argo CD.
type ArgoCD struct {
	Programs *process.Group
	// CLI is the path of the program argocd, and Env the environment variable with which it finds this Argo CD.
	CLI    string
	Env    string
	client kubernetes.Interface
	base   string // URL of the API
	http   *http.Client
}

// startWithin is the time limit for Start.
const startWithin = 3 * time.Minute

// Start starts Argo CD, and returns when all programs answer. The custom resource definitions of Argo CD must be installed.
func Start(ctx context.Context, o Options) (_ *ArgoCD, err error) {
	redis, err := redis(ctx, o)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, startWithin)
	defer cancel()
	for _, dir := range []string{"home", "tmp", "tls", "ssh", "gpg", "plugins", "logs"} {
		if err := os.MkdirAll(filepath.Join(o.Dir, dir), 0o700); err != nil {
			return nil, err
		}
	}
	for host, pem := range o.Authorities {
		if err := os.WriteFile(filepath.Join(o.Dir, "tls", host), pem, 0o600); err != nil {
			return nil, err
		}
	}
	kubeconfig, err := o.kubeconfig()
	if err != nil {
		return nil, err
	}
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return nil, err
	}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, err
	}
	a := &ArgoCD{
		Programs: process.NewGroup(filepath.Join(o.Dir, "logs")), CLI: filepath.Join(o.Programs, "argocd"),
		client: client, http: &http.Client{Timeout: time.Minute},
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, a.Close())
		}
	}()
	if err := a.objects(ctx, config); err != nil {
		return nil, err
	}
	return a, a.start(ctx, o, redis, kubeconfig)
}

// Close stops the programs.
func (a *ArgoCD) Close() error { return a.Programs.Close(false) }

// ErrNoRedis means that this machine has no redis and cannot install it.
var ErrNoRedis = errors.New("no redis for Argo CD: install redis-server, or run as root with apt-get to install it automatically")

// redis returns the path of the redis server. If there is none, it installs the Debian package redis-tools, whose redis-check-rdb is the
// same program. Unlike redis-server, this package does not start a server.
func redis(ctx context.Context, o Options) (string, error) {
	const inTools = "redis-check-rdb"
	if program, err := exec.LookPath("redis-server"); err == nil {
		return program, nil
	}
	_, noTools := exec.LookPath(inTools)
	_, noInstaller := exec.LookPath("apt-get")
	if noTools != nil && (noInstaller != nil || os.Geteuid() != 0) {
		return "", ErrNoRedis
	}
	if err := node.InstallPackages(ctx, o.Progress, node.Need{Program: inTools, Package: "redis-tools"}); err != nil {
		return "", fmt.Errorf("install redis for Argo CD: %w", err)
	}
	tools, err := exec.LookPath(inTools)
	if err != nil {
		return "", err
	}
	program := filepath.Join(o.Dir, "redis-server")
	return program, os.Symlink(tools, program)
}

// kubeconfig writes a copy of the cluster's kubeconfig with Argo CD's namespace in every context. Outside of a pod, some programs of Argo
// CD use the namespace of the context.
func (o Options) kubeconfig() (string, error) {
	config, err := clientcmd.LoadFromFile(o.Kubeconfig)
	if err != nil {
		return "", err
	}
	for _, c := range config.Contexts {
		c.Namespace = Namespace
	}
	path := filepath.Join(o.Dir, "kubeconfig")
	return path, clientcmd.WriteToFile(*config, path)
}

// environment returns the environment variables of the programs.
func (o Options) environment(kubeconfig string) []string {
	in := func(name string) string { return filepath.Join(o.Dir, name) }
	return []string{
		"PATH=" + strings.Join(append(append([]string{o.Programs}, o.Tools...), os.Getenv("PATH")), ":"),
		"HOME=" + in("home"),
		"TMPDIR=" + in("tmp"),
		"KUBECONFIG=" + kubeconfig,
		"LC_ALL=C",
		"GIT_CONFIG_NOSYSTEM=1",
		"ARGOCD_FAKE_IN_CLUSTER=true",
		"ARGOCD_GPG_ENABLED=false",
		"ARGOCD_GNUPGHOME=" + in("gpg"),
		"ARGOCD_TLS_DATA_PATH=" + in("tls"),
		"ARGOCD_SSH_DATA_PATH=" + in("ssh"),
		"ARGOCD_PLUGINSOCKFILEPATH=" + in("plugins"),
		"ARGOCD_ASK_PASS_SOCK=" + in("askpass.sock"),
	}
}

// start starts the programs and waits until all of them answer.
func (a *ArgoCD) start(ctx context.Context, o Options, redis, kubeconfig string) error {
	var p [7]int
	for i := range p {
		var err error
		if p[i], err = freePort(p[:i]); err != nil {
			return err
		}
	}
	redisPort, repoPort, repoMetrics, serverPort, serverMetrics, controllerMetrics, notificationsMetrics := p[0], p[1], p[2], p[3], p[4], p[5], p[6]
	a.base, a.Env = "http://"+local(serverPort), "ARGOCD_OPTS=--plaintext --server "+local(serverPort)
	repo := []string{"--repo-server", local(repoPort), "--repo-server-plaintext"}
	cache := []string{"--redis", local(redisPort)}
	programs := []struct {
		name, path string
		args       [][]string
		ready      string // URL that answers when the program is ready
	}{
		{"redis", redis, [][]string{{
			"--bind", "127.0.0.1", "--port", strconv.Itoa(redisPort), "--save", "", "--appendonly", "no", "--dir", o.Dir,
		}}, ""},
		{"argocd-repo-server", "", [][]string{cache, {
			"--address", "127.0.0.1", "--port", strconv.Itoa(repoPort), "--metrics-address", "127.0.0.1",
			"--metrics-port", strconv.Itoa(repoMetrics), "--disable-tls",
		}, o.RepoServer}, "http://" + local(repoMetrics) + "/healthz?full=true"},
		{"argocd-application-controller", "", [][]string{cache, repo, {
			"--metrics-port", strconv.Itoa(controllerMetrics),
		}}, "http://" + local(controllerMetrics) + "/healthz"},
		{"argocd-server", "", [][]string{cache, repo, {
			"--address", "127.0.0.1", "--port", strconv.Itoa(serverPort), "--metrics-port", strconv.Itoa(serverMetrics),
			"--disable-auth", "--insecure",
		}}, a.base + "/healthz?full=true"},
		{"argocd-notifications", "", [][]string{{
			"--argocd-repo-server", local(repoPort), "--argocd-repo-server-plaintext", "--metrics-port", strconv.Itoa(notificationsMetrics),
			"--loglevel", "debug",
		}}, "http://" + local(notificationsMetrics) + "/metrics"},
	}
	for _, p := range programs {
		program := process.Program{Name: p.name, Path: p.path, Env: o.environment(kubeconfig)}
		if p.path == "" {
			program.Path = filepath.Join(o.Programs, p.name)
		}
		for _, args := range p.args {
			program.Args = append(program.Args, args...)
		}
		if err := a.Programs.Start(program); err != nil {
			return err
		}
	}
	for _, p := range programs {
		if p.ready == "" {
			continue
		}
		if err := a.Programs.Wait(ctx, p.name, func(ctx context.Context) error { return a.answers(ctx, p.ready) }, p.name, "redis"); err != nil {
			return err
		}
	}
	return nil
}

// answers returns an error unless a GET of url returns 200.
func (a *ArgoCD) answers(ctx context.Context, url string) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	response, err := a.http.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("%s: %s", url, response.Status)
	}
	return nil
}

// Logs returns the end of each program's log.
func (a *ArgoCD) Logs() map[string]string {
	logs := map[string]string{}
	for _, s := range a.Programs.States() {
		logs[s.Name] = a.Programs.Tail(s.Name)
	}
	return logs
}
