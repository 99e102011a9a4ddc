package reference

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// listener is a testing.TB that records failures and continues.
type listener struct {
	testing.TB
	said []string
}

func (l *listener) Helper()                   {}
func (l *listener) Error(a ...any)            { l.said = append(l.said, fmt.Sprint(a...)) }
func (l *listener) Errorf(f string, a ...any) { l.said = append(l.said, fmt.Sprintf(f, a...)) }

const page = "| flag | default | |\n|---|---|---|\n| `--name` | | |\n| `--age` | `720h` | of it |\n\n| `stoker_lost` | `kind`, `why` | |\n"

func TestComparePage(t *testing.T) {
	flags := func(age time.Duration, more ...string) *flag.FlagSet {
		f := flag.NewFlagSet("x", flag.ContinueOnError)
		f.String("name", "", "")
		f.Duration("age", age, "")
		for _, m := range more {
			f.Bool(m, false, "")
		}
		return f
	}
	metrics := func(labels ...string) *prometheus.Registry {
		r := prometheus.NewRegistry()
		r.MustRegister(prometheus.NewCounterVec(prometheus.CounterOpts{Name: "stoker_lost", Help: "x"}, labels))
		return r
	}
	file := filepath.Join(t.TempDir(), "page.md")
	for name, c := range map[string]struct {
		page  string
		check func(testing.TB)
		fails bool
	}{
		"correct page":  {page, func(t testing.TB) { Flags(t, file, flags(720*time.Hour)); Metrics(t, file, metrics("kind", "why")) }, false},
		"wrong default": {page, func(t testing.TB) { Flags(t, file, flags(time.Hour)) }, true},
		"missing flag":  {page, func(t testing.TB) { Flags(t, file, flags(720*time.Hour, "new")) }, true},
		"unknown flag":  {page + "| `--gone` | | |\n", func(t testing.TB) { Flags(t, file, flags(720*time.Hour)) }, true},
		"other labels":  {page, func(t testing.TB) { Metrics(t, file, metrics("kind")) }, true},
		"no metrics":    {page, func(t testing.TB) { Metrics(t, file, prometheus.NewRegistry()) }, true},
	} {
		t.Run(name, func(t *testing.T) {
			require.NoError(t, os.WriteFile(file, []byte(c.page), 0o644))
			l := &listener{TB: t}
			c.check(l)
			assert.Equal(t, c.fails, len(l.said) > 0, "%s: %q", name, l.said)
		})
	}
}
