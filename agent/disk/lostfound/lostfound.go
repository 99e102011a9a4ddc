// Package lostfound keeps what the agent displaced (replaced or removed) and git does not have, in the folder lost+found of .stoker.
// It removes what is too old, and the oldest of the rest while the total is too large.
package lostfound

import (
	"bufio"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"slices"
	"strings"
	"time"

	"stoker.io/stoker/agent/disk/format"
	"stoker.io/stoker/agent/disk/safe"
	"stoker.io/stoker/agent/plan"
	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/failure"
)

// DirName is the name of the folder in .stoker.
const DirName = "lost+found"

const indexSuffix = ".jsonl"

// Bounds for reading lost+found: entries in total, bytes of an index, and bytes of one entry, which has its path three times.
const (
	maxLost       = 200_000
	maxIndexBytes = 64 << 20
	maxIndexLine  = 1 << 20
)

// Entry is an entry of lost+found: something on the gateway that git does not have and that had to be replaced or
// removed. Each run, which applies one plan, has a folder below .stoker/lost+found, named after its time and commit, with
// the saved files at their old paths, and beside it an index with one Entry per line.
type Entry struct {
	When    time.Time `json:"when"`
	Path    string    `json:"path"`
	RawPath []byte    `json:"rawPath,omitempty"` // the path's bytes if they are not UTF-8
	Size    int64     `json:"size"`              // bytes
	Reason  string    `json:"why"`               // for saving it
	Commit  string    `json:"commit"`            // the commit that was synced
	// File is the saved file, relative to .stoker/lost+found.
	File string `json:"file"`
}

// exact restores Path and File from RawPath, if the path is not valid UTF-8 and JSON has changed it. File is the run's
// folder, the path and possibly a number.
func (l Entry) exact() Entry {
	run, _, _ := strings.Cut(l.File, "/")
	raw := string(l.RawPath)
	number, ok := strings.CutPrefix(l.File, run+"/"+inJSON(raw))
	if raw != "" && inJSON(raw) == l.Path && ok {
		l.Path, l.File = raw, run+"/"+raw+number
	}
	return l
}

// inJSON returns what JSON makes of a name: each invalid byte becomes U+FFFD.
func inJSON(name string) string { return string([]rune(name)) }

// Folder is the folder lost+found in .stoker. A nil Folder is empty.
type Folder struct {
	own    *safe.AgentFolder
	vol    *safe.Volume
	log    *slog.Logger
	max    int64         // bytes in total
	age    time.Duration // of one run
	newest string        // the last run that this process saved
	pruned time.Time     // the time of the last prune; zero makes PruneHourly prune at once
}

// New returns lost+found in own. Pruning removes its oldest folders while they have more than limit bytes, and folders that are
// older than age; see tooOld.
func New(own *safe.AgentFolder, limit int64, age time.Duration) *Folder {
	return &Folder{own: own, vol: own.Vol, log: own.Vol.Log, max: limit, age: age}
}

// NewSaver returns a Saver for the run of that name.
func (f *Folder) NewSaver(name string, commit plan.ID) *Saver {
	return &Saver{to: f, name: name, commit: commit, buf: make([]byte, 64<<10)}
}

// Drop removes what a run saved, and its index.
func (f *Folder) Drop(name string) error {
	lost, err := f.own.OpenExisting(DirName)
	if err != nil || lost == nil {
		return err
	}
	defer lost.Close()
	if err := f.vol.ClearTree(lost, name); err != nil {
		return err
	}
	return f.vol.Vacate(lost, name+indexSuffix)
}

// List returns the entries, oldest first.
func (f *Folder) List() ([]Entry, error) {
	runs, lost, err := f.open()
	if err != nil || lost == nil {
		return nil, err
	}
	defer lost.Close()
	var all []Entry
	for _, name := range runs {
		index, _, err := lost.File(name+indexSuffix, os.O_RDONLY)
		if errors.Is(err, fs.ErrNotExist) {
			continue // its run has not finished
		}
		if err == nil {
			all, err = readIndex(index, all)
			err = errors.Join(err, index.Close())
		}
		if err != nil { // entries of other runs can still be restored
			f.log.Warn("cannot read an index of lost+found", "index", name+indexSuffix, "error", err)
		}
	}
	return all, nil
}

// readIndex appends the entries of a run's index, as far as it is readable.
func readIndex(f io.Reader, all []Entry) ([]Entry, error) {
	lines := bufio.NewScanner(io.LimitReader(f, maxIndexBytes))
	lines.Buffer(nil, maxIndexLine)
	for lines.Scan() {
		var l Entry
		if err := json.Unmarshal(lines.Bytes(), &l); err != nil {
			return all, safe.Damaged("%w", err)
		}
		if len(all) == maxLost {
			return all, failure.New(v1alpha1.ReasonLimitExceeded, "lost+found has more than %d entries", maxLost)
		}
		all = append(all, l.exact())
	}
	return all, lines.Err()
}

// open opens lost+found, and returns the names of the runs that saved something, oldest first. lost is nil if there is no
// lost+found.
func (f *Folder) open() (runs []string, lost *safe.Folder, err error) {
	if f == nil {
		return nil, nil, nil
	}
	lost, err = f.own.OpenExisting(DirName)
	if err != nil {
		return nil, nil, fmt.Errorf("open lost+found: %w", err)
	}
	if lost == nil {
		return nil, nil, nil
	}
	list, err := lost.Entries()
	if err != nil {
		lost.Close()
		return nil, nil, fmt.Errorf("list lost+found: %w", err)
	}
	for _, e := range list {
		if e.IsDir() && format.ValidLostFoundName(e.Name()) {
			runs = append(runs, e.Name())
		}
	}
	slices.Sort(runs)
	return runs, lost, nil
}

// PruneHourly removes runs that are too old or too large in total. It does so only if the last time was more than an hour ago, or
// a run was saved since. It logs an error, because pruning only frees space.
func (f *Folder) PruneHourly() {
	now := f.vol.Now()
	if !f.pruned.IsZero() && now.Sub(f.pruned) <= time.Hour {
		return
	}
	if err := f.prune(); err != nil {
		f.log.Warn("cannot prune lost+found", "error", err)
	}
	f.pruned = now
}

// prune removes runs that are too old, and the oldest ones while the total is too large. It keeps the newest run and the one that
// this process saved last, whatever their size and age: a run that is too large by itself is refused before it starts.
func (f *Folder) prune() error {
	runs, lost, err := f.open()
	if err != nil || lost == nil {
		return err
	}
	defer lost.Close()
	now := f.vol.Now()
	slices.SortStableFunc(runs, func(a, b string) int { return cmp.Compare(fromFuture(b, now), fromFuture(a, now)) })
	sizes, total, err := measure(lost, runs)
	if err != nil {
		f.log.Warn("cannot measure all of lost+found", "error", err)
	}
	for i, name := range runs {
		if i == len(runs)-1 || name == f.newest || !f.tooOld(lost, name, now) && total <= f.max {
			continue
		}
		f.log.Info("removing from lost+found", "run", name, "bytes", sizes[i])
		if err := f.Drop(name); err != nil {
			return safe.WriteError(err, "remove %s from lost+found", name)
		}
		total -= sizes[i]
	}
	return nil
}

// fromFuture returns 1 if the time in a run's name is more than a day ahead, and otherwise 0. Such a run is the first to go, and does not
// count as the newest: a program of the gateway made it up, or the clock was wrong.
func fromFuture(name string, now time.Time) int {
	if at, err := runStart(name); err == nil && at.Sub(now) > wrongClock {
		return 1
	}
	return 0
}

// wrongClock is the limit for the difference of two timestamps of the same moment: beyond it, one of the clocks was wrong.
const wrongClock = 24 * time.Hour

// tooOld reports whether a run has expired, without trusting any one clock: the node may have started with a clock that was weeks
// slow, and the clock may be ahead now. When the time in the name first says that the run is too old, tooOld only starts a second
// countdown: it sets the mtime of the index (or of the folder, if there is no index) to now and returns false. The run has
// expired when that mtime is too old as well. So a run is kept for at least its full time, and usually for about twice that.
func (f *Folder) tooOld(lost *safe.Folder, name string, now time.Time) bool {
	saved, err := runStart(name)
	if err != nil {
		return false
	}
	if saved.Sub(now) > wrongClock { // only the countdown counts
		saved = time.Time{}
	}
	stamped := name + indexSuffix
	fi, err := lost.Lstat(stamped)
	if errors.Is(err, fs.ErrNotExist) {
		stamped = name
		fi, err = lost.Lstat(stamped)
	}
	if err != nil {
		return false
	}
	from := fi.ModTime()
	countdown := from.Sub(saved) > min(wrongClock, f.age)
	switch {
	case countdown && from.Sub(now) <= wrongClock:
		return now.Sub(from) > f.age
	case !countdown && now.Sub(saved) <= f.age:
		return false
	}
	if err := f.vol.SetMtime(lost, stamped, now); err != nil { // then it stays, within the total size
		f.log.Debug("cannot set the time of a lost+found folder", "run", name, "error", err)
	}
	return false
}

// Bytes returns the size of what can be read of lost+found.
func (f *Folder) Bytes() (int64, error) {
	runs, lost, err := f.open()
	if err != nil || lost == nil {
		return 0, err
	}
	defer lost.Close()
	_, total, _ := measure(lost, runs)
	return total, nil
}

// measure returns the bytes of each run, and of all, and the first error. It counts all that it can read: a folder that a program of the
// gateway made unreadable must not stop the pruning of the others.
func measure(lost *safe.Folder, runs []string) (sizes []int64, total int64, err error) {
	sizes = make([]int64, len(runs))
	for i, name := range runs {
		folder, openErr := lost.Open(name)
		if err = cmp.Or(err, openErr); openErr != nil {
			continue
		}
		safe.Walk(folder, 0, safe.StatOf, func(f plan.Found, walkErr error) bool {
			sizes[i] += f.Stat.Size
			err = cmp.Or(err, walkErr)
			return true
		})
		folder.Close()
		total += sizes[i]
	}
	return sizes, total, err
}

// NewName returns a name that no folder in lost+found has.
func (f *Folder) NewName(commit plan.ID) string {
	base := f.vol.Now().UTC().Format(TimeFormat) + "-" + commit.Short()
	lost, err := f.own.Open(DirName)
	if err != nil {
		return base // lost+found does not exist, or a later step reports why it cannot be opened
	}
	defer lost.Close()
	name := base
	for i := 2; i < 10000; i++ {
		_, err := lost.Lstat(name)
		_, erru := lost.Lstat(name + UndoSuffix)
		if err != nil && erru != nil {
			break
		}
		name = fmt.Sprintf("%s-%d", base, i)
	}
	return name
}

// TimeFormat is the time format of a run's name: UTC, so that names sort by time.
const TimeFormat = "20060102T150405.000Z"

// UndoSuffix ends the name of the folder that a rollback writes.
const UndoSuffix = "-undo"

func runStart(name string) (time.Time, error) {
	if len(name) < len(TimeFormat) {
		return time.Time{}, fmt.Errorf("%q has no time", name)
	}
	return time.Parse(TimeFormat, name[:len(TimeFormat)])
}

// Open opens the saved file of an entry; the caller closes it. If it is not a regular file, such as a saved link, Open returns an error.
func (f *Folder) Open(l Entry) (*os.File, fs.FileInfo, error) {
	if err := safe.CheckPath(l.File); err != nil {
		return nil, nil, safe.Damaged("an entry of lost+found: %w", err)
	}
	if f == nil {
		return nil, nil, fmt.Errorf("%s: %w", l.File, fs.ErrNotExist)
	}
	c := safe.Cursor{Top: f.own.Vol.Top}
	defer c.Reset()
	folder, name, err := c.Parent(f.own.Join(DirName + "/" + l.File))
	if err != nil {
		return nil, nil, fmt.Errorf("%s in lost+found: %w", l.File, err)
	}
	file, fi, err := folder.File(name, os.O_RDONLY)
	if err != nil {
		return nil, nil, fmt.Errorf("%s in lost+found: %w", l.File, err)
	}
	return file, fi, nil
}
