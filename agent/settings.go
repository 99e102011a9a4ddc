package main

import (
	"crypto/sha256"
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"stoker.io/stoker/agent/plan"
)

// settings is everything that the agent is told from outside; docs/agent.md lists the same, and a test compares them.
type settings struct {
	// Sidecar is whether the agent runs in a gateway's pod, and Env what that says; Kubeconfig is for one beside a pod.
	Sidecar    bool
	Env        environment
	Kubeconfig string

	File        string
	DataDir     string
	GatewayName string
	Profile     string
	Labels      pairs
	Annotations pairs
	GatewayURL  string
	RepoDir     string
	Secrets     pairs

	Once          bool
	DryRun        bool
	AllowUnseeded bool
	Version       bool

	HealthAddr  string
	MetricsAddr string
	LogFormat   string
	LogLevel    string

	MaxFiles      int
	MaxBlob       bytesize
	MaxRendered   bytesize
	MaxRepository bytesize
	MaxLostFound  bytesize
	LostFoundAge  time.Duration
	MaxPath       int
	MaxDepth      int
}

func (s *settings) flags(out io.Writer) *flag.FlagSet {
	f := flag.NewFlagSet("agent", flag.ContinueOnError)
	f.SetOutput(out)
	l := plan.DefaultLimits
	s.MaxBlob, s.MaxRepository, s.MaxLostFound = 512<<20, 8<<30, 256<<20
	s.MaxRendered = bytesize(l.Rendered)

	f.StringVar(&s.File, "file", "", "the GatewaySync to follow: a YAML `file`; it is watched, and a change is taken up")
	f.StringVar(&s.Kubeconfig, "kubeconfig", "", "in a pod: how to reach the API server, a `file`; else the pod's own service account")
	f.StringVar(&s.DataDir, "data-dir", "", "Ignition's data `directory`")
	f.StringVar(&s.GatewayName, "gateway-name", "", "the `name` of this gateway")
	f.StringVar(&s.Profile, "profile", "", "the profile of the GatewaySync; else \"default\"")
	f.Var(&s.Labels, "label", "a label of this gateway, as a pod would carry it: `key=value` (repeatable)")
	f.Var(&s.Annotations, "annotation", "an annotation of this gateway, as a pod would carry it, for example stoker.io/service-path=services/line-1: `key=value` (repeatable)")
	f.StringVar(&s.GatewayURL, "gateway-url", "", "where the gateway's web server listens, `http://host:8088`; without it files are synced, and nothing is scanned or verified")
	f.StringVar(&s.RepoDir, "repo-dir", "", "where git objects are cached; else a `directory` in the user's cache, one per data directory")
	f.Var(&s.Secrets, "secret", "the file that holds a key of a secret which the GatewaySync names: `NAME/KEY=FILE` (repeatable); else secrets/NAME/KEY beside the GatewaySync's file")

	f.BoolVar(&s.Once, "once", false, "sync once and exit")
	f.BoolVar(&s.DryRun, "dry-run", false, "print what would be done, and change nothing")
	f.BoolVar(&s.AllowUnseeded, "allow-unseeded", false, "also write into a data directory that no gateway has seeded yet (Ignition seeds an empty directory only: with this flag it never will)")
	f.BoolVar(&s.Version, "version", false, "print the version and exit")

	f.StringVar(&s.HealthAddr, "health-addr", "127.0.0.1:8082", "`address` of /healthz, /readyz and /state; \"\" for none")
	f.StringVar(&s.MetricsAddr, "metrics-addr", "127.0.0.1:8083", "`address` of /metrics; \"\" for none")
	f.StringVar(&s.LogFormat, "log-format", "auto", "json, text, or auto: text on a terminal")
	f.StringVar(&s.LogLevel, "log-level", "info", "debug, info, warn or error")

	f.IntVar(&s.MaxFiles, "max-files", l.Files, "how many files a gateway may have from git")
	f.IntVar(&s.MaxPath, "max-path", l.PathBytes, "`bytes` of the longest path")
	f.IntVar(&s.MaxDepth, "max-depth", l.Depth, "directories of the deepest path")
	f.Var(&s.MaxBlob, "max-blob", "the largest file (`size`)")
	f.Var(&s.MaxRendered, "max-rendered", "the largest file that is a template or patched, before and after (`size`)")
	f.Var(&s.MaxRepository, "max-repository", "the most that the cache of git objects may take (`size`)")
	f.Var(&s.MaxLostFound, "max-lost-found", "the most that lost+found may take; the oldest goes first (`size`)")
	f.DurationVar(&s.LostFoundAge, "lost-found-age", 30*24*time.Hour, "how long lost+found keeps a file")
	f.Usage = func() {
		fmt.Fprint(out, "agent keeps an Ignition gateway's data directory at a commit of git.\n\n"+
			"  agent --file gatewaysync.yaml --data-dir DIR --gateway-name NAME [flags]\n"+
			"  agent                                      in a gateway's pod, told by its environment: docs/agent.md\n"+
			"  agent lost-and-found list|show|restore     what syncs replaced and git does not have\n\nFlags:\n")
		f.PrintDefaults()
		fmt.Fprint(out, "\nExit codes: 0 done, 1 failed, 2 usage, 3 timeout, 6 held.\n")
	}
	return f
}

// errUsage marks a command line that cannot be run; it was explained already.
var errUsage = errors.New("usage")

// parse reads the command line. The error of a bad one wraps errUsage, that of --help is flag.ErrHelp.
func parse(args, env []string, out io.Writer) (settings, error) {
	var s settings
	f := s.flags(out)
	if err := f.Parse(args); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			return s, err
		}
		return s, fmt.Errorf("%w: %w", errUsage, err)
	}
	if s.Version {
		return s, nil
	}
	errs := s.validate(f)
	if s.Sidecar = s.File == "" && inPod(env); s.Sidecar {
		errs = append(errs, s.inPod(f, env)...)
	} else {
		errs = append(errs, s.standalone()...)
	}
	if err := errors.Join(errs...); err != nil {
		fmt.Fprintf(out, "%s\nSee agent --help.\n", err)
		return s, fmt.Errorf("%w: %w", errUsage, err)
	}
	return s, nil
}

func (s *settings) validate(f *flag.FlagSet) []error {
	var errs []error
	bad := func(format string, a ...any) { errs = append(errs, fmt.Errorf(format, a...)) }
	if f.NArg() > 0 {
		bad("unexpected argument %q", f.Arg(0))
	}
	if !slices.Contains([]string{"auto", "json", "text"}, s.LogFormat) {
		bad("--log-format: %q is none of auto, json, text", s.LogFormat)
	}
	if !slices.Contains([]string{"debug", "info", "warn", "error"}, s.LogLevel) {
		bad("--log-level: %q is none of debug, info, warn, error", s.LogLevel)
	}
	for _, k := range slices.Sorted(maps.Keys(s.Secrets)) {
		if name, key, ok := strings.Cut(k, "/"); !ok || name == "" || key == "" || strings.Contains(key, "/") {
			bad("--secret: %q is not NAME/KEY=FILE", k)
		}
	}
	for _, l := range []struct {
		name  string
		value int64
	}{{"max-files", int64(s.MaxFiles)}, {"max-path", int64(s.MaxPath)}, {"max-depth", int64(s.MaxDepth)}, {"max-blob", int64(s.MaxBlob)}, {"max-rendered", int64(s.MaxRendered)},
		{"max-repository", int64(s.MaxRepository)}, {"max-lost-found", int64(s.MaxLostFound)}, {"lost-found-age", int64(s.LostFoundAge)}} {
		if l.value <= 0 {
			bad("--%s must be more than 0", l.name)
		}
	}
	return errs
}

// standalone checks what an agent outside of a pod needs.
func (s *settings) standalone() []error {
	var errs []error
	for _, r := range []struct{ name, value string }{{"file", s.File}, {"data-dir", s.DataDir}, {"gateway-name", s.GatewayName}} {
		if r.value == "" {
			errs = append(errs, fmt.Errorf("--%s is required", r.name))
		}
	}
	if s.Kubeconfig != "" {
		errs = append(errs, errors.New("--kubeconfig is for an agent in a pod"))
	}
	return errs
}

// outside are the flags that say what the environment says in a pod.
var outside = []string{"data-dir", "gateway-name", "profile", "label", "annotation", "gateway-url", "repo-dir", "secret", "once", "dry-run"}

// inPod takes the environment of a pod. Its probes and its scraper come from outside, so that it listens on all addresses.
func (s *settings) inPod(f *flag.FlagSet, env []string) []error {
	errs := []error{s.Env.read(env)}
	given := map[string]bool{}
	f.Visit(func(f *flag.Flag) { given[f.Name] = true })
	for _, name := range outside {
		if given[name] {
			errs = append(errs, fmt.Errorf("--%s: in a pod its environment and the GatewaySync say this", name))
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

// repoDir is where git objects are cached.
func (s *settings) repoDir() (string, error) {
	if s.RepoDir != "" {
		return s.RepoDir, nil
	}
	cache, err := os.UserCacheDir()
	if err != nil {
		return "", fmt.Errorf("no cache directory for git objects (%w): give --repo-dir", err)
	}
	abs, err := filepath.Abs(s.DataDir)
	if err != nil {
		return "", err
	}
	return filepath.Join(cache, "stoker", fmt.Sprintf("%x", sha256.Sum256([]byte(abs)))[:16]), nil
}

// pairs is a repeatable key=value flag.
type pairs map[string]string

func (p *pairs) String() string { return "" }

func (p *pairs) Set(v string) error {
	key, value, ok := strings.Cut(v, "=")
	if !ok || key == "" {
		return fmt.Errorf("%q is not key=value", v)
	}
	if *p == nil {
		*p = pairs{}
	}
	(*p)[key] = value
	return nil
}

// bytesize is a flag that takes bytes, or KiB, MiB and GiB.
type bytesize int64

var units = []struct {
	suffix string
	factor int64
}{{"GiB", 1 << 30}, {"MiB", 1 << 20}, {"KiB", 1 << 10}, {"", 1}}

func (b *bytesize) String() string {
	for _, u := range units {
		if int64(*b)%u.factor == 0 && *b != 0 {
			return fmt.Sprintf("%d%s", int64(*b)/u.factor, u.suffix)
		}
	}
	return "0"
}

func (b *bytesize) Set(v string) error {
	for _, u := range units {
		num, ok := strings.CutSuffix(v, u.suffix)
		if !ok {
			continue
		}
		n, err := strconv.ParseInt(num, 10, 64)
		if err != nil || n < 0 || n > (1<<62)/u.factor {
			return fmt.Errorf("%q is not a size such as 512MiB", v)
		}
		*b = bytesize(n * u.factor)
		return nil
	}
	return fmt.Errorf("%q is not a size such as 512MiB", v)
}
