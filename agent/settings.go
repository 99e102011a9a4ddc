package main

import (
	"crypto/sha256"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"stoker.io/stoker/agent/ignition"
	"stoker.io/stoker/agent/plan"
	"stoker.io/stoker/api/v1alpha1/gatewaypod"
	"stoker.io/stoker/internal/daemon"
	"stoker.io/stoker/internal/tuning"
)

// settings is the configuration of the agent. A test compares the flags with docs/reference/agent.md.
type settings struct {
	// Sidecar is set if the agent runs in a gateway's pod. Env is its environment. Kubeconfig, if set, replaces the pod's service account.
	Sidecar    bool
	Env        environment
	Kubeconfig string

	File        string
	DataDir     string
	GatewayName string
	Profile     string
	Labels      map[string]string
	Annotations map[string]string
	GatewayURL  string
	RepoDir     string
	Secrets     map[string]string // files by NAME/KEY

	Once          bool
	DryRun        bool
	AllowUnseeded bool
	Version       bool

	HealthAddr  string
	MetricsAddr string

	tuning.Settings
}

func (s *settings) flags(out io.Writer) *flag.FlagSet {
	f := daemon.Flags("agent", out, "agent keeps an Ignition gateway's data directory at a commit of git.\n\n"+
		"  agent --file gatewaysync.yaml --data-dir DIR --gateway-name NAME [flags]\n"+
		"  agent                                      in a gateway's pod, set up by its environment: docs/reference/agent.md\n"+
		"  agent lost-and-found list|show|restore     what syncs replaced and git does not have",
		"Exit codes: 0 done, 1 failed, 2 usage, 3 timeout, 6 held.")
	s.Settings = tuning.Settings{
		LogFormat: "auto", LogLevel: "info",
		MaxFiles: plan.DefaultLimits.Files, MaxBlob: 512 << 20, MaxRepository: 8 << 30, MaxLostFound: 256 << 20, LostFoundAge: 30 * 24 * time.Hour,
	}

	f.StringVar(&s.File, "file", "", "the GatewaySync to follow: a YAML `file`; the agent applies each change of it")
	f.StringVar(&s.Kubeconfig, "kubeconfig", "", "in a pod: how to reach the API server, a `file`; else the pod's own service account")
	f.StringVar(&s.DataDir, "data-dir", "", "Ignition's data `directory`")
	f.StringVar(&s.GatewayName, "gateway-name", "", "the `name` of this gateway")
	f.StringVar(&s.Profile, "profile", "", "the profile of the GatewaySync; else \"default\"")
	f.Func("label", "a label of this gateway, as a pod would carry it: `key=value` (repeatable)", addTo(&s.Labels))
	f.Func("annotation", "an annotation of this gateway, as a pod would carry it, for example stoker.io/service-path=services/line-1: `key=value` (repeatable)", addTo(&s.Annotations))
	f.StringVar(&s.GatewayURL, "gateway-url", "", "where the gateway's web server listens, `http://host:8088`; without it files are synced, and nothing is scanned or verified")
	f.StringVar(&s.RepoDir, "repo-dir", "", "where git objects are cached; else a `directory` in the user's cache, one per data directory")
	f.Func("secret", "the file that holds a key of a secret which the GatewaySync names: `NAME/KEY=FILE` (repeatable); else secrets/NAME/KEY beside the GatewaySync's file", addTo(&s.Secrets))

	f.BoolVar(&s.Once, "once", false, "sync once and exit")
	f.BoolVar(&s.DryRun, "dry-run", false, "print what would be done, and change nothing")
	f.BoolVar(&s.AllowUnseeded, "allow-unseeded", false, "also write into a data directory that no gateway has seeded yet (Ignition seeds an empty directory only: with this flag it never will)")
	f.BoolVar(&s.Version, "version", false, "print the version and exit")

	f.StringVar(&s.HealthAddr, "health-addr", "127.0.0.1:8082", "`address` of /healthz, /readyz and /state; \"\" for none")
	f.StringVar(&s.MetricsAddr, "metrics-addr", "127.0.0.1:8083", "`address` of /metrics; \"\" for none")
	s.Register(f)
	return f
}

// parse parses the command line and the environment. Its errors are those of daemon.Parse and daemon.Explain.
func parse(args, env []string, out io.Writer) (settings, error) {
	var s settings
	f := s.flags(out)
	if err := daemon.Parse(f, args); err != nil || s.Version {
		return s, err
	}
	errs := append(s.Problems(f), s.checkSecrets()...)
	if s.Sidecar = s.File == "" && isSidecar(env); s.Sidecar {
		errs = append(errs, s.readPod(f, env)...)
	} else {
		errs = append(errs, s.checkStandalone()...)
	}
	err := daemon.Explain(f, errs...)
	return s, err
}

// checkSecrets checks the names of --secret.
func (s *settings) checkSecrets() []error {
	var errs []error
	for _, k := range slices.Sorted(maps.Keys(s.Secrets)) {
		if name, key, ok := strings.Cut(k, "/"); !ok || name == "" || key == "" || strings.Contains(key, "/") {
			errs = append(errs, fmt.Errorf("--secret: %q is not NAME/KEY=FILE", k))
		}
	}
	return errs
}

// checkStandalone checks the settings of an agent outside a pod.
func (s *settings) checkStandalone() []error {
	var errs []error
	for _, r := range []struct{ name, value string }{{"file", s.File}, {"data-dir", s.DataDir}, {"gateway-name", s.GatewayName}} {
		if r.value == "" {
			errs = append(errs, fmt.Errorf("--%s is required", r.name))
		}
	}
	errs = append(errs, s.checkDirs())
	if s.GatewayURL != "" {
		if _, err := ignition.New(ignition.Config{URL: s.GatewayURL}); err != nil {
			errs = append(errs, fmt.Errorf("--gateway-url: %w", err))
		}
	}
	if s.Kubeconfig != "" {
		errs = append(errs, errors.New("--kubeconfig is for an agent in a pod"))
	}
	return errs
}

// checkDirs returns an error if the data directory is the root of the file system, or if it and the cache of git objects contain each other.
func (s *settings) checkDirs() error {
	data, err := filepath.Abs(s.DataDir)
	if s.DataDir == "" || err != nil {
		return err
	}
	if data == string(filepath.Separator) {
		return fmt.Errorf("--data-dir %s is the root of the file system: name Ignition's data directory", s.DataDir)
	}
	objects := ""
	if dir, err := s.repoDir(); err == nil { // otherwise reported when the directory is used, which a dry run does not
		if objects, err = filepath.Abs(dir); err != nil {
			return err
		}
	}
	if objects == "" {
		return nil
	}
	for _, pair := range [][2]string{{data, objects}, {objects, data}} {
		if rel, err := filepath.Rel(resolved(pair[0]), resolved(pair[1])); err == nil && filepath.IsLocal(rel) {
			return fmt.Errorf("--data-dir %s and the directory for git objects, %s (--repo-dir), must not contain each other", data, objects)
		}
	}
	return nil
}

// resolved returns path without links in the part that exists.
func resolved(path string) string {
	if target, err := filepath.EvalSymlinks(path); err == nil {
		return target
	}
	if parent := filepath.Dir(path); parent != path {
		return filepath.Join(resolved(parent), filepath.Base(path))
	}
	return path
}

// standaloneFlags are the flags that an agent in a pod rejects, because its environment and the GatewaySync replace them.
var standaloneFlags = []string{"data-dir", "gateway-name", "profile", "label", "annotation", "gateway-url", "repo-dir", "secret", "once", "dry-run"}

// readPod reads the environment of a pod. By default the servers listen on all addresses, because the kubelet and Prometheus connect from
// outside the pod.
func (s *settings) readPod(f *flag.FlagSet, env []string) []error {
	errs := []error{s.Env.read(env)}
	given := map[string]bool{}
	f.Visit(func(f *flag.Flag) { given[f.Name] = true })
	for _, name := range standaloneFlags {
		if given[name] {
			errs = append(errs, fmt.Errorf("--%s: in a pod, the environment and the GatewaySync set this", name))
		}
	}
	if !given["health-addr"] {
		s.HealthAddr = ":8082"
	}
	if !given["metrics-addr"] {
		s.MetricsAddr = ":8083"
	}
	s.DataDir, s.GatewayName, s.RepoDir = s.Env.DataPath, s.Env.Gateway, filepath.Join(s.Env.RepoPath, "objects")
	return errs
}

// repoDir returns the directory of the cache of git objects.
func (s *settings) repoDir() (string, error) {
	if s.RepoDir != "" {
		return s.RepoDir, nil
	}
	cache, err := os.UserCacheDir()
	if err != nil {
		return "", fmt.Errorf("no cache directory for git objects (%w): set --repo-dir", err)
	}
	abs, err := filepath.Abs(s.DataDir)
	if err != nil {
		return "", err
	}
	return filepath.Join(cache, "stoker", fmt.Sprintf("%x", sha256.Sum256([]byte(abs)))[:16]), nil
}

// addTo returns the function of a repeatable key=value flag.
func addTo(pairs *map[string]string) func(string) error {
	return func(v string) error {
		key, value, ok := strings.Cut(v, "=")
		if !ok || key == "" {
			return fmt.Errorf("%q is not key=value", v)
		}
		if *pairs == nil {
			*pairs = map[string]string{}
		}
		(*pairs)[key] = value
		return nil
	}
}

// environment is the configuration of a sidecar, written by the injector. A test compares the variables with docs/reference/agent.md.
type environment struct {
	PodName, PodNamespace, PodUID string
	GatewaySync, Gateway, Profile string
	RepoPath, DataPath            string
	Port                          int32
	TLS                           bool
	Period                        time.Duration
	SecretsDir, PodInfoDir        string
	KeyDir                        string
	Mounts                        []string
	Secrets                       map[string]bool // by NAME/KEY
}

// variable is one environment variable.
type variable struct {
	name     string
	required bool
	parse    func(value string) error // sets the field of the environment
}

func (e *environment) variables() []variable {
	text := func(into *string) func(string) error {
		return func(v string) error { *into = v; return nil }
	}
	object := func(into *string, maxBytes int) func(string) error {
		return func(v string) error {
			if len(v) > maxBytes || !objectName.MatchString(v) {
				return errors.New("is not a name of an object in Kubernetes")
			}
			*into = v
			return nil
		}
	}
	return []variable{
		{"POD_NAME", true, object(&e.PodName, 253)},
		{"POD_NAMESPACE", true, object(&e.PodNamespace, 63)},
		{"POD_UID", true, text(&e.PodUID)},
		{"CR_NAME", true, object(&e.GatewaySync, 48)},
		{"GATEWAY_NAME", true, func(v string) error {
			if !gatewaypod.ValidName(v) {
				return errors.New("is not the name of a gateway: use at most 253 letters, digits, '.', '_' and '-', a letter or digit first and last")
			}
			e.Gateway = v
			return nil
		}},
		{"PROFILE", false, text(&e.Profile)},
		{"REPO_PATH", false, text(&e.RepoPath)},
		{"DATA_PATH", true, text(&e.DataPath)},
		{"GATEWAY_PORT", false, func(v string) error {
			n, err := strconv.ParseInt(v, 10, 32)
			if err != nil || n < 1 || n > 65535 {
				return errors.New("is not a port")
			}
			e.Port = int32(n)
			return nil
		}},
		{"GATEWAY_TLS", false, func(v string) (err error) {
			if e.TLS, err = strconv.ParseBool(v); err != nil {
				return errors.New("is neither true nor false")
			}
			return nil
		}},
		{"SYNC_PERIOD", false, func(v string) error {
			n, err := strconv.Atoi(v)
			if err != nil || n < 5 || n > 3600 {
				return errors.New("is not a number of seconds from 5 to 3600")
			}
			e.Period = time.Duration(n) * time.Second
			return nil
		}},
		{"SECRETS_DIR", false, text(&e.SecretsDir)},
		{"SECRETS", false, func(v string) error {
			e.Secrets = map[string]bool{}
			for id := range strings.SplitSeq(v, ",") {
				if !secretKey.MatchString(id) {
					return errors.New("is not a list of NAME/KEY, with commas between them")
				}
				e.Secrets[id] = true
			}
			return nil
		}},
		{"KEY_DIR", false, text(&e.KeyDir)},
		{"PODINFO_DIR", false, text(&e.PodInfoDir)},
		{"GATEWAY_MOUNTS", false, func(v string) error {
			if json.Unmarshal([]byte(v), &e.Mounts) != nil {
				return errors.New("is not a list of paths in JSON")
			}
			return nil
		}},
	}
}

// secretKey matches NAME/KEY: a key of a Secret, or of a ConfigMap as secretrefs.Field.Folder names it.
var secretKey = regexp.MustCompile(`^(configmap_)?[a-z0-9]([a-z0-9.-]*[a-z0-9])?/[-._a-zA-Z0-9]+$`)

var objectName = regexp.MustCompile(`^[a-z0-9]([a-z0-9.-]*[a-z0-9])?$`)

const defaultRepoPath = "/repo"

// read parses env, lines of NAME=value. An empty value counts as unset.
func (e *environment) read(env []string) error {
	values := map[string]string{}
	for _, line := range env {
		if name, value, ok := strings.Cut(line, "="); ok {
			values[name] = value
		}
	}
	e.RepoPath = defaultRepoPath
	var errs []error
	for _, v := range e.variables() {
		value := values[v.name]
		switch {
		case value == "" && v.required:
			errs = append(errs, fmt.Errorf("%s is required", v.name))
		case value != "":
			if err := v.parse(value); err != nil {
				errs = append(errs, fmt.Errorf("%s: %.80q %w", v.name, value, err))
			}
		}
	}
	return errors.Join(errs...)
}

// isSidecar reports whether env is that of a sidecar: it names the pod.
func isSidecar(env []string) bool {
	return slices.ContainsFunc(env, func(line string) bool {
		value, ok := strings.CutPrefix(line, "POD_NAME=")
		return ok && value != ""
	})
}
