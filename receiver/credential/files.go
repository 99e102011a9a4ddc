package credential

import (
	"context"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"stoker.io/stoker/internal/file"
	"stoker.io/stoker/internal/secret"
)

// Files holds secrets from files, which are reread periodically.
type Files struct {
	names    []string
	interval time.Duration
	log      *slog.Logger
	values   [][]secret.String
	all      atomic.Pointer[[]secret.String]
}

// ReadFiles reads the files. A file without a value is an error.
func ReadFiles(names []string, every time.Duration, log *slog.Logger) (*Files, error) {
	f := &Files{names: names, interval: every, log: log, values: make([][]secret.String, len(names))}
	for i, name := range names {
		values, err := read(name)
		if err != nil {
			return nil, err
		}
		if len(values) == 0 {
			return nil, fmt.Errorf("%s is empty: an empty secret would admit every caller", name)
		}
		f.values[i] = values
	}
	f.storeAll()
	return f, nil
}

func read(name string) ([]secret.String, error) {
	content, err := file.Read(name, maxContent)
	if err != nil {
		return nil, err
	}
	values, ok := Values(content)
	if !ok {
		return nil, fmt.Errorf("%s has more than %d lines: a secret has one value per line", name, MaxValues)
	}
	return values, nil
}

func (f *Files) storeAll() {
	var all []secret.String
	for _, values := range f.values {
		all = append(all, values...)
	}
	f.all.Store(&all)
}

// Values returns the values of all files.
func (f *Files) Values() []secret.String { return *f.all.Load() }

// Run rereads the files until ctx is done. A file that cannot be read keeps its values; an empty file loses them.
func (f *Files) Run(ctx context.Context) error {
	logged := make([]string, len(f.names))
	ticker := time.NewTicker(f.interval)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
		for i, name := range f.names {
			problem := ""
			values, err := read(name)
			switch {
			case err != nil:
				problem = err.Error()
			case len(values) == 0:
				problem, f.values[i] = name+" is empty", nil
			default:
				f.values[i] = values
			}
			if problem != "" && problem != logged[i] {
				f.log.Error("an install-wide secret cannot be used", "file", name, "error", problem)
			}
			logged[i] = problem
		}
		f.storeAll()
	}
}
