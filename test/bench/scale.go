package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"stoker.io/stoker/agent/disk"
	"stoker.io/stoker/test/module"
)

// checkDrift compares all files of the agent's data directory, as the resident agent does every half minute. It runs in
// the bench itself, so that nothing else is measured.
func checkDrift(ctx context.Context, b *bench, who contestant) (s sample, err error) {
	agent, ok := who.(*agentOnce)
	if !ok {
		return s, fmt.Errorf("%s keeps no record of its files", who.name())
	}
	dir, err := disk.Open(agent.data(), disk.Options{})
	if err != nil {
		return s, err
	}
	defer func() { err = errors.Join(err, dir.Close()) }()
	var before, after syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &before); err != nil {
		return s, err
	}
	began := time.Now()
	drift, err := dir.Drift(ctx, false)
	s.wall = time.Since(began)
	if err != nil {
		return s, err
	}
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &after); err != nil {
		return s, err
	}
	s.cpu = time.Duration(after.Utime.Nano() + after.Stime.Nano() - before.Utime.Nano() - before.Stime.Nano())
	if drift.Checked != b.size.Files || drift.Files != 0 || drift.Hashed != 0 {
		return s, fmt.Errorf("%d of %d files were looked at, %d read, %d changed: none of them was touched", drift.Checked, b.size.Files, drift.Hashed, drift.Files)
	}
	return s, nil
}

// lastFigures is the page with the last figures that were written down.
const lastFigures = "test/bench/measured.md"

const (
	// slower is how many times longer than on the page a row may take.
	slower = 1.5
	// enoughRounds is the least number of rounds whose median is compared.
	enoughRounds = 3
)

// errSlower is the error of a run in which the agent became slower.
var errSlower = errors.New("the agent became slower by more than a half: see the table, and find out why or write the new figures down")

// compare prints the rows in which the agent takes more than a half longer than on the page, and returns errSlower if there are any. The
// machine may be another one than that of the page. Its speed is the median ratio of what the other programs take now and on the page.
func (r results) compare(out io.Writer, page string, s settings) error {
	if s.rounds < enoughRounds {
		return nil
	}
	var peers []float64
	type row struct {
		size, work, who string
		was, is         float64
	}
	var rows []row
	for size, works := range tables(page) {
		for _, c := range cases {
			for _, b := range works[c.title] {
				w, ok := median(r, key{size, c.name, b.Who}, wall)
				switch {
				case !ok || b.Wall == 0:
				case b.Who == rsync || b.Who == fetch:
					peers = append(peers, w.Seconds()/b.Wall)
				default:
					rows = append(rows, row{size, c.title, b.Who, b.Wall, w.Seconds()})
				}
			}
		}
	}
	if len(peers) == 0 {
		return nil
	}
	slices.Sort(peers)
	speed := peers[len(peers)/2]
	rows = slices.DeleteFunc(rows, func(x row) bool { return x.is <= slower*speed*x.was })
	if len(rows) == 0 {
		return nil
	}
	slices.SortFunc(rows, func(a, b row) int { return cmp.Or(cmp.Compare(a.size, b.size), cmp.Compare(b.is/b.was, a.is/a.was)) })
	fmt.Fprintf(out, "\n## Slower than on the page\n\nThe other programs take %.2f times as long as there.\n\n", speed)
	t := table(out, "size", "work", "who", "page", "now", "slower, at equal speed")
	for _, x := range rows {
		fmt.Fprintf(t, "| %s\t| %s\t| %s\t| %.3f\t| %.3f\t| %.1f ×\t|\n", x.size, x.work, x.who, x.was, x.is, x.is/x.was/speed)
	}
	return errors.Join(t.Flush(), errSlower)
}

// pageRow is a row of a table: who, and the median of the wall time in seconds.
type pageRow struct {
	Who  string
	Wall float64
}

// tables reads the tables of test/bench/measured.md: size → case → rows. They are those that the bench prints, below headings of the third level.
func tables(page string) map[string]map[string][]pageRow {
	all := map[string]map[string][]pageRow{}
	size := ""
	for line := range strings.Lines(page) {
		if title, ok := strings.CutPrefix(line, "### "); ok {
			size, _, _ = strings.Cut(title, ":")
		}
		cells := strings.Split(line, "|")
		if len(cells) < 5 || !slices.Contains([]string{once, resident, rsync, fetch}, strings.TrimSpace(cells[2])) {
			continue
		}
		wall, err := strconv.ParseFloat(strings.TrimSpace(cells[3]), 64)
		if err != nil {
			continue
		}
		if all[size] == nil {
			all[size] = map[string][]pageRow{}
		}
		work := strings.TrimSpace(cells[1])
		all[size][work] = append(all[size][work], pageRow{strings.TrimSpace(cells[2]), wall})
	}
	return all
}

// readFigures returns the page with the last figures.
func readFigures() (string, error) {
	root, err := module.Root()
	if err != nil {
		return "", err
	}
	page, err := os.ReadFile(filepath.Join(root, lastFigures))
	return string(page), err
}
