// Package fleet measures many agents at once, against a real API server and a real git server: their API requests for a
// sync and while idle, how these grow with the number of agents, and how long a commit takes until all of them run it,
// verified. A rollout in steps is compared with the same syncs without steps.
//
//	go run ./test/bench fleet                    # 1, 10, 50 and 200 agents, and 50 GatewaySyncs with 20 each
//	go run ./test/bench fleet -sizes 1,10 -n 1 -idle 15s
//
// The agents are the real loops, follower and lead, in this one process, with the permissions and the admission
// policies of the chart. Each has its own token, connection, data directory and simulated gateway. The gateways share a
// second process. Pods are objects that no node runs. Sharing a process saves the memory of the code, but all agents, the API server, etcd and
// git share the cores of one machine.
package fleet

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log"
	"log/slog"
	"os"
	"path/filepath"
	"runtime/debug"
	"strconv"
	"strings"
	"time"

	"k8s.io/klog/v2"

	"stoker.io/stoker/internal/kube"
	"stoker.io/stoker/test/cluster/build"
	"stoker.io/stoker/test/cluster/kubetest"
)

// settings is the command line.
type settings struct {
	sizes        []size
	stages       size // of a rollout
	rounds       int
	idle, within time.Duration
	work         string
	timeout      time.Duration
	verbose      bool
}

// Bounds of the settings.
const (
	maxAgents = 2000
	maxRounds = 20
)

func parse(args []string, out io.Writer) (settings, error) {
	var s settings
	f := flag.NewFlagSet("fleet", flag.ContinueOnError)
	f.SetOutput(out)
	sizes := f.String("sizes", "1,10,50,200,50x20", "numbers of agents of one GatewaySync, or GatewaySyncs x agents")
	stages := f.String("stages", "4x3", "stages x gateways of a rollout")
	f.IntVar(&s.rounds, "n", 3, fmt.Sprintf("syncs that are measured, 1 to %d", maxRounds))
	f.DurationVar(&s.idle, "idle", time.Minute, "how long nothing happens")
	f.DurationVar(&s.within, "within", 5*time.Minute, "give up on a sync after this time")
	f.StringVar(&s.work, "work", os.TempDir(), "where gateways and repositories lie")
	f.DurationVar(&s.timeout, "timeout", 45*time.Minute, "give up after this time")
	f.BoolVar(&s.verbose, "v", false, "show the agents' logs")
	if err := f.Parse(args); err != nil {
		return s, err
	}
	for text := range strings.SplitSeq(*sizes, ",") {
		of, err := parseSize(text)
		if err != nil {
			return s, fmt.Errorf("-sizes: %w", err)
		}
		s.sizes = append(s.sizes, of)
	}
	var err error
	if s.stages, err = parseSize(*stages); err != nil {
		return s, fmt.Errorf("-stages: %w", err)
	}
	switch {
	case s.rounds < 1 || s.rounds > maxRounds:
		return s, fmt.Errorf("-n: want 1 to %d", maxRounds)
	case s.idle < time.Second:
		return s, errors.New("-idle: want a second at least")
	case f.NArg() > 0:
		return s, fmt.Errorf("unexpected argument %q", f.Arg(0))
	}
	return s, nil
}

func parseSize(text string) (size, error) {
	sites, agents, many := strings.Cut(text, "x")
	if !many {
		sites, agents = "1", text
	}
	var of size
	var err, err2 error
	of.sites, err = strconv.Atoi(sites)
	of.agents, err2 = strconv.Atoi(agents)
	if err != nil || err2 != nil || of.sites < 1 || of.agents < 1 || of.sites > maxAgents || of.agents > maxAgents || of.total() > maxAgents {
		return of, fmt.Errorf("%q: want a number of agents, or GatewaySyncs x agents, with at most %d agents in all", text, maxAgents)
	}
	return of, nil
}

// Run starts a control plane, measures, and writes the report to stdout. If a part fails, its error is returned, and the report has the others.
func Run(ctx context.Context, args []string, stdout, stderr io.Writer) (err error) {
	s, err := parse(args, stderr)
	if errors.Is(err, flag.ErrHelp) {
		return nil
	}
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, s.timeout)
	defer cancel()
	work, err := os.MkdirTemp(s.work, "stoker-fleet-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(work)) }()
	logger := slog.New(slog.DiscardHandler)
	if s.verbose {
		logger = slog.New(slog.NewTextHandler(stderr, nil))
	}
	klog.SetSlogLogger(logger) // client-go has no other way to set a logger
	defer klog.ClearLogger()
	defer debug.SetGCPercent(debug.SetGCPercent(20)) // as in the agent
	progress := log.New(stderr, "", log.Ltime)
	progress.Print("starting a control plane")
	cluster, err := kubetest.Start(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, cluster.Close()) }()
	if err := install(ctx, cluster); err != nil {
		return err
	}
	admin, err := kube.ConnectTo(cluster.RESTConfig(), "bench")
	if err != nil {
		return err
	}
	// A part that fails is left out of the report, which took minutes to measure.
	var all []result
	var failed []error
	for i, of := range s.sizes {
		progress.Printf("%s agents", of)
		r, err := measureSize(ctx, s, of, admin, filepath.Join(work, strconv.Itoa(i)), logger)
		if err != nil {
			failed = append(failed, fmt.Errorf("%s agents: %w", of, err))
			continue
		}
		progress.Printf("%s agents: first sync %.1f s, next %.1f s", of, r.first.verified.Seconds(), r.syncs[0].verified.Seconds())
		all = append(all, r)
	}
	progress.Printf("a rollout in %s", s.stages)
	staged, err := measureRollout(ctx, s, admin, filepath.Join(work, "rollout"), logger)
	if err != nil {
		failed, staged = append(failed, fmt.Errorf("rollout: %w", err)), rollout{}
	}
	if len(all) > 0 {
		failed = append(failed, write(stdout, all, staged))
	}
	return errors.Join(failed...)
}

// install installs the agents' role and the policies, like the chart.
func install(ctx context.Context, cluster *kubetest.Cluster) error {
	cache, err := build.Open(build.Cache{})
	if err != nil {
		return err
	}
	text, err := kubetest.Select(filepath.Join(cache.SourceDir, "kustomize", "base", "objects.yaml"), "ClusterRole/stoker-agent", "ValidatingAdmissionPolicy*/*")
	if err != nil {
		return err
	}
	return cluster.InstallYAML(ctx, text)
}

func measureSize(ctx context.Context, s settings, of size, admin kube.Clients, dir string, log *slog.Logger) (r result, err error) {
	b, err := newTestbed(ctx, admin, dir, of, log)
	if err != nil {
		return r, err
	}
	r, err = b.measure(ctx, of, s.rounds, s.idle, s.within)
	return r, errors.Join(err, b.close(), os.RemoveAll(dir))
}
