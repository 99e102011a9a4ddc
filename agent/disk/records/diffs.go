package records

import (
	"errors"
	"fmt"
	"io"
	"path"
	"regexp"
	"slices"
	"strings"
	"time"

	"stoker.io/stoker/agent/disk/safe"
	"stoker.io/stoker/api/v1alpha1/syntax"
)

const (
	// HistoryDir is the folder of the diffs in .stoker.
	HistoryDir = "history"
	// keptDiffs is how many diffs are kept, whichever gateway they name.
	keptDiffs = 10
	// MaxDiff bounds a diff, in bytes.
	MaxDiff = 1 << 20
)

var diffName = regexp.MustCompile(`^[a-zA-Z0-9][-a-zA-Z0-9._]{0,199}-diff-([0-9]{8}-[0-9]{6})\.json$`)

// diffTime returns the time in the name of a diff, or zero for another name.
func diffTime(name string) time.Time {
	m := diffName.FindStringSubmatch(name)
	if m == nil {
		return time.Time{}
	}
	t, _ := time.Parse(syntax.StampFormat, m[1]) // zero if there is no such day
	return t
}

// AddDiff saves the diff of a sync, durably, and returns the name of its file. Only users read it: no sync depends on it. AddDiff
// removes the oldest diffs beyond keptDiffs. If only that fails, it returns the name and an error.
func (r *Records) AddDiff(gateway string, at time.Time, b []byte) (id string, err error) {
	err = r.exclusive(func() error {
		id, err = addDiff(r.own, gateway, at.UTC().Truncate(time.Second), b)
		return err
	})
	return id, err
}

func addDiff(own *safe.AgentFolder, gateway string, at time.Time, b []byte) (id string, err error) {
	history, err := own.OpenOrMake(HistoryDir)
	if err != nil {
		return "", err
	}
	defer history.Close()
	list, err := history.Entries()
	if err != nil {
		return "", err
	}
	var names []string
	farFuture := at.AddDate(1, 0, 0) // from another program, or a clock that was wrong: the next name must not follow it to the end of time
	for _, e := range list {
		if strings.HasSuffix(e.Name(), ".json.new") { // an agent was killed while it wrote the file
			if err := own.Vol.Vacate(history, e.Name()); err != nil {
				return "", err
			}
		}
		if t := diffTime(e.Name()); !t.IsZero() && t.Before(farFuture) {
			names = append(names, e.Name())
			if !at.After(t) { // the new name sorts last, even if the clock was set back by less than a year
				at = t.Add(time.Second)
			}
		}
	}
	id = gateway[:min(len(gateway), syntax.MaxGatewayName)] + "-diff-" + at.Format(syntax.StampFormat) + ".json"
	if len(b) > MaxDiff || !diffName.MatchString(id) {
		return "", fmt.Errorf("cannot save the diff %.300q of %d bytes", id, len(b))
	}
	if _, err := own.Vol.WriteFile(history, id, func(w io.Writer) error {
		_, err := w.Write(b)
		return err
	}); err != nil {
		return "", err
	}
	slices.SortFunc(names, func(a, b string) int { return diffTime(a).Compare(diffTime(b)) })
	for _, name := range names[:max(0, len(names)-keptDiffs+1)] {
		err = errors.Join(err, own.Vol.Vacate(history, name))
	}
	return id, err
}

// ReadDiff returns a diff that AddDiff saved in a data directory, or nil if there is none. Like ReadAudit, it may run while an
// agent writes, and the caller must not trust the result.
func ReadDiff(dataDir, id string) ([]byte, error) {
	if !diffName.MatchString(id) {
		return nil, nil
	}
	return readOwn(dataDir, path.Join(HistoryDir, id), MaxDiff)
}
