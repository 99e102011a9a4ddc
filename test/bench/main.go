// Command bench compares the agent with common ways to bring git to a disk, and prints the results as Markdown together
// with the project's goals, each met or missed:
//
//	go run ./test/bench                          # 1,000, 10,000 and 100,000 files and large binaries, three rounds
//	go run ./test/bench -sizes S,M -n 1 -cases first,one
//	go run ./test/bench fleet -help              # many agents on one API server: package fleet
//	go run ./test/bench proposals -help          # changes of a gateway that become pull requests
//	go run ./test/bench observe -help            # the page of stoker ui, and the notifier
//	go run ./test/bench config -help             # stoker config run with a large ConfigSync
//	go run ./test/bench safe -help               # snapshots and restores
//
// The contestants take turns (A B A B …) on the same commits of the same synthetic Ignition repository, served by git
// over HTTP on loopback; figures are medians. The agent is the real binary, built by the bench, with durability as
// shipped. It runs without a gateway: files only. The exit code is 0 even if a goal is missed,
// but not if, in three rounds or more, a row takes more than a half longer than test/bench/measured.md says, at equal speed of the
// machine.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"stoker.io/stoker/test/bench/fleet"
	"stoker.io/stoker/test/bench/repository"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Args[1:], os.Stdout, os.Stderr); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

// settings is the command line.
type settings struct {
	sizes   []size
	cases   []benchCase
	rounds  int
	cache   string
	work    string
	timeout time.Duration
	idle    time.Duration
}

func run(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	if asked, err := fleet.RunGateways(ctx, args, os.Stdin, stdout); asked {
		return err
	}
	if len(args) > 0 && args[0] == "fleet" {
		return fleet.Run(ctx, args[1:], stdout, stderr)
	}
	if len(args) > 0 && args[0] == "proposals" {
		return proposals(ctx, args[1:], stdout, stderr)
	}
	if len(args) > 0 && args[0] == "observe" {
		return observe(ctx, args[1:], stdout, stderr)
	}
	if len(args) > 0 && args[0] == "config" {
		return config(ctx, args[1:], stdout, stderr)
	}
	if len(args) > 0 && args[0] == "safe" {
		return safe(ctx, args[1:], stdout, stderr)
	}
	s, err := parse(args, stderr, "S,M,L,H")
	if err != nil {
		return err
	}
	return s.within(ctx, stderr, func(ctx context.Context, programs programs, work string, progress *log.Logger) error {
		all := results{}
		for _, size := range s.sizes {
			if err := benchSize(ctx, s, size, programs, filepath.Join(work, size.Name), progress, all); err != nil {
				return fmt.Errorf("size %s: %w", size.Name, err)
			}
		}
		page, err := readFigures()
		return errors.Join(err, all.write(stdout, s), all.compare(stdout, page, s))
	})
}

// within builds the programs, and calls measure with a directory that is removed afterwards.
func (s settings) within(ctx context.Context, stderr io.Writer, measure func(ctx context.Context, programs programs, work string, progress *log.Logger) error) (err error) {
	ctx, cancel := context.WithTimeout(ctx, s.timeout)
	defer cancel()
	if err := os.MkdirAll(s.work, 0o755); err != nil {
		return err
	}
	work, err := os.MkdirTemp(s.work, "stoker-bench-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(work)) }()
	progress := log.New(stderr, "", log.Ltime)
	progress.Print("building the agent")
	programs := programs{agent: filepath.Join(work, "agent"), nosync: filepath.Join(work, "nosync")}
	if err := errors.Join(build(ctx, programs.agent, "stoker.io/stoker/agent"), build(ctx, programs.nosync, "stoker.io/stoker/test/bench/nosync")); err != nil {
		return err
	}
	return measure(ctx, programs, work, progress)
}

// parse reads the command line. defaultSizes are the repositories without -sizes.
func parse(args []string, out io.Writer, defaultSizes string) (settings, error) {
	var s settings
	cache, err := os.UserCacheDir()
	if err != nil {
		cache = os.TempDir()
	}
	f := flag.NewFlagSet("bench", flag.ContinueOnError)
	f.SetOutput(out)
	sizesFlag := f.String("sizes", defaultSizes, "repositories: S (1,000 files), M (10,000), L (100,000), H (large binaries, in a small container)")
	casesFlag := f.String("cases", strings.Join(caseNames(), ","), "what is measured")
	f.IntVar(&s.rounds, "n", 3, fmt.Sprintf("rounds, 1 to %d", repository.MaxRounds))
	f.StringVar(&s.cache, "cache", filepath.Join(cache, "stoker-bench"), "where the repositories are kept for the next time (600 MB)")
	f.StringVar(&s.work, "work", os.TempDir(), "where the contestants work (3 GB while it runs)")
	f.DurationVar(&s.idle, "idle", time.Minute, "how long nothing happens (proposals)")
	f.DurationVar(&s.timeout, "timeout", time.Hour, "give up after this time")
	if err := f.Parse(args); err != nil {
		return s, err
	}
	for name := range strings.SplitSeq(*sizesFlag, ",") {
		i := slices.IndexFunc(sizes, func(s size) bool { return s.Name == name })
		if i < 0 {
			return s, fmt.Errorf("-sizes: there is no %q", name)
		}
		s.sizes = append(s.sizes, sizes[i])
	}
	if s.rounds < 1 || s.rounds > repository.MaxRounds {
		return s, fmt.Errorf("-n: want 1 to %d", repository.MaxRounds)
	}
	wanted := strings.Split(*casesFlag, ",")
	for _, name := range wanted {
		if !slices.Contains(caseNames(), name) {
			return s, fmt.Errorf("-cases: there is no %q; want some of %s", name, strings.Join(caseNames(), ","))
		}
	}
	for _, c := range cases { // each case builds on the earlier ones
		if slices.Contains(wanted, c.name) {
			s.cases = append(s.cases, c)
		}
	}
	return s, nil
}
